"use strict";
// Sort a table by the column that is clicked, numbers by their value; rows without one come last.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  [...body.rows].forEach((row, number) => { row.dataset.group = number; });
  const heads = [...[...table.tHead.rows].at(-1).cells];
  heads.forEach((head, column) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column];
      const valued = (row) => "value" in key(row).dataset;
      const numbers = [...body.rows].some(valued);
      const order = (a, b) => numbers
        ? key(a).dataset.value - key(b).dataset.value
        : key(a).textContent.localeCompare(key(b).textContent, "en", { numeric: true });
      const sorted = [...body.rows].filter((row) => !numbers || valued(row)).sort(order);
      const last = [...body.rows].filter((row) => numbers && !valued(row));
      body.append(...(down ? sorted.reverse() : sorted), ...last);
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
// Paths are broken behind a slash, not within a name.
for (const cell of document.querySelectorAll("#runs td, #environment .note")) {
  const [first, ...others] = cell.textContent.split("/");
  if (others.length) {
    const parts = others.flatMap((part) => ["/", document.createElement("wbr"), part]);
    cell.replaceChildren(first, ...parts);
  }
}
// Tables that are wider than the page are scrolled by keys, too.
for (const wide of document.querySelectorAll(".wide")) {
  if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
}
// Show the curves of the group under the pointer, in a chart or in the first table, where a row
// is a group.
const curves = [...document.querySelectorAll(".curve")];
const show = (name) => curves.forEach((curve) =>
  curve.classList.toggle("dim", name !== null && !curve.classList.contains(name)));
const compared = document.querySelectorAll("#comparison tbody")[0]?.rows ?? [];
const groups = document.querySelectorAll("#curves .legend .curve").length;
for (const row of compared.length === groups ? compared : []) {
  row.addEventListener("mouseenter", () => show(`g${row.dataset.group}`));
  row.addEventListener("mouseleave", () => show(null));
}
for (const curve of curves) {
  curve.addEventListener("mouseenter", () => show(curve.classList[1]));
  curve.addEventListener("mouseleave", () => show(null));
}
// Say which value of a chart is nearest to the pointer, and mark it.
const shown = (value) => String(Number.isInteger(value) ? value : Number(value.toPrecision(4)));
const filled = (text, values) => text.replace(/\{(\w)\}(%?)/g, (_, name, percent) =>
  (percent ? values[name].toFixed(2) : shown(values[name])) + percent);
const nearest = (lines, place, to) => {
  const points = lines.flatMap(([name, xs, ys, rounds]) =>
    xs.map((x, k) => ({ name, x, y: ys[k], round: rounds?.[k], at: place(x, ys[k]) })));
  const far = ({ at }) => (at[0] - to[0]) ** 2 + (at[1] - to[1]) ** 2;
  return points.reduce((best, each) => (far(each) < far(best) ? each : best));
};
for (const figure of document.querySelectorAll("figure[data-points]")) {
  const { axes, says, lines } = JSON.parse(figure.dataset.points);
  const [left, bottom, right, top, x0, x1, y0, y1] = axes;
  const [svg, output] = [figure.querySelector("svg"), figure.querySelector("output")];
  const { width, height } = svg.viewBox.baseVal;
  const place = (x, y) => [
    width * (left + (right - left) * (x - x0) / (x1 - x0)),
    height * (1 - bottom - (top - bottom) * (y - y0) / (y1 - y0)),
  ];
  const mark = document.createElementNS(svg.namespaceURI, "circle");
  mark.setAttribute("r", 4);
  mark.style.cssText = "fill: none; stroke: currentColor; stroke-width: 1.5; pointer-events: none";
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const to = [(event.clientX - box.left) / box.width * width,
      (event.clientY - box.top) / box.height * height];
    const found = nearest(lines, place, to);
    const round = found.round === undefined ? "" : `, round ${found.round}`;
    output.textContent = `${found.name}: ${filled(says, found)}${round}`;
    mark.setAttribute("cx", found.at[0]);
    mark.setAttribute("cy", found.at[1]);
    svg.append(mark);
  });
  svg.addEventListener("pointerleave", () => { mark.remove(); output.textContent = ""; });
}
// Print what is collapsed, too.
const closed = [...document.querySelectorAll("details:not([open])")];
window.addEventListener("beforeprint", () => closed.forEach((each) => { each.open = true; }));
window.addEventListener("afterprint", () => closed.forEach((each) => { each.open = false; }));
