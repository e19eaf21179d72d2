// Returns, as JSON, what is wrong with the looks of this page: a width beyond the window's, and
// texts whose contrast is below that of WCAG 2, level AA (4.5, or 3 of large ones).
(() => {
  const numbers = (color) => {
    const found = (color.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const unit = color.startsWith("color(") ? 255 : 1;
    return [...found.slice(0, 3).map((value) => value * unit), found[3] ?? 1];
  };
  const over = (top, below) =>
    [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((value) => value / 255)
      .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.push(numbers(getComputedStyle(each).backgroundColor));
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const found = new Set();
  if (document.documentElement.scrollWidth > innerWidth) {
    found.add(`${document.documentElement.scrollWidth} pixels wide, of ${innerWidth}`);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, style = getComputedStyle(element);
    const words = texts.currentNode.textContent.trim();
    if (!words || !element.getClientRects().length || style.visibility === "hidden") continue;
    const behind = background(element), color = over(numbers(style.color), behind);
    const [dark, bright] = [luminance(behind), luminance(color)].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05), pixels = parseFloat(style.fontSize);
    const large = pixels >= 24 || (pixels >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (large ? 3 : 4.5)) {
      found.add(`contrast ${contrast.toFixed(2)} of ${element.tagName}: ${words.slice(0, 30)}`);
    }
  }
  return JSON.stringify([...found]);
})();
