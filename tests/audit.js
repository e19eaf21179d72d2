// Checks of a page as it is shown; the value is their findings as JSON.
(() => {
  const DIGEST = 30; // Characters of what is no word, and may be broken.
  const LEADING = 0.3; // Share of a text's height that is above and below its letters.
  const style = (element) => getComputedStyle(element);
  const colour = (text) => {
    const unit = text.startsWith("color(") ? 255 : 1;
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return [r * unit, g * unit, b * unit, a];
  };
  const over = ([r, g, b, a], [R, G, B]) =>
    [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const luminance = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((v) => v / 255).map((v) =>
      v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const ancestors = (element) => element ? [element, ...ancestors(element.parentElement)] : [];
  const backing = (element) => ancestors(element).reverse().reduce(
    (under, each) => over(colour(style(each).backgroundColor), under), [255, 255, 255, 1]);
  const opacity = (element) => ancestors(element).reduce(
    (product, each) => product * Number(style(each).opacity), 1);
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const [node, element] = [walker.currentNode, walker.currentNode.parentElement];
    const range = document.createRange();
    range.selectNodeContents(node);
    const isText = node.textContent.trim() && !element.closest("script, style, title");
    const isSeen = range.getClientRects().length && style(element).visibility !== "hidden";
    if (isText && isSeen) texts.push([node, element]);
  }
  const contrast = texts.flatMap(([node, element]) => {
    const { color, fill, fontSize, fontWeight } = style(element);
    const isSvg = element instanceof SVGElement;
    const ink = colour(isSvg ? fill : color);
    const under = backing(element);
    const seen = over([...ink.slice(0, 3), ink[3] * opacity(element)], under);
    const [size, bold] = [parseFloat(fontSize), Number(fontWeight) >= 700];
    const needed = !isSvg && (size >= 24 || (bold && size >= 18.66)) ? 3 : 4.5;
    const found = ratio(seen, under);
    return found < needed ? [`${node.textContent.trim().slice(0, 40)}: ${found.toFixed(2)}`] : [];
  });
  const broken = texts.flatMap(([node, element]) => {
    if (!element.closest("td, th")) return [];
    const words = [...node.textContent.matchAll(/[\p{L}\p{N}._]+/gu)];
    return words.filter(([word]) => word.length < DIGEST).flatMap((word) => {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      return new Set([...range.getClientRects()].map((box) => box.top)).size > 1 ? [word[0]] : [];
    });
  });
  const charts = [...document.querySelectorAll("figure svg")].map((svg) =>
    [svg, [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim())]);
  const cut = charts.flatMap(([svg, labels]) => {
    const [all, slack] = [svg.getBoundingClientRect(), 1];
    return labels.filter((label) => {
      const box = label.getBoundingClientRect();
      return box.left < all.left - slack || box.right > all.right + slack
        || box.top < all.top - slack || box.bottom > all.bottom + slack;
    }).map((label) => label.textContent.trim());
  });
  const overlap = charts.flatMap(([, labels]) => labels.flatMap((label, place) => {
    const one = label.getBoundingClientRect();
    return labels.slice(place + 1).filter((each) => {
      const other = each.getBoundingClientRect();
      const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      const [width, height] = [Math.min(one.width, other.width), Math.min(one.height, other.height)];
      return wide > (width < height ? LEADING * width : 0)
        && high > (width < height ? 0 : LEADING * height);
    }).map((each) => `${label.textContent.trim()} on ${each.textContent.trim()}`);
  }));
  const named = (element) => element.getAttribute("aria-label") || element.textContent.trim();
  const unnamed = [...document.querySelectorAll("a, button, summary, [role=img]")]
    .filter((element) => !named(element)).map((element) => element.outerHTML.slice(0, 80));
  const { scrollWidth, clientWidth } = document.documentElement;
  return JSON.stringify({
    overflow: scrollWidth - clientWidth, empty: !texts.length,
    contrast, broken, cut, overlap, unnamed,
  });
})();
