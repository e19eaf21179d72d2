// Makes a page look on the screen as it does on paper.
(() => {
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
  for (const { media } of rules.filter((rule) => rule instanceof CSSMediaRule)) {
    if (media.mediaText.includes("print")) media.mediaText = "all";
    else if (media.mediaText.includes("screen")) media.mediaText = "not all";
  }
  window.dispatchEvent(new Event("beforeprint"));
})();
