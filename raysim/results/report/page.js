"use strict";
// Sort a table by the column that is clicked, numbers by their value; rows without one come last.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  [...body.rows].forEach((row, number) => { row.dataset.group = number; });
  const heads = [...[...table.tHead.rows].at(-1).cells];
  heads.forEach((head, column) => head.addEventListener("click", () => {
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
  }));
}
// Show the curves of the group under the pointer, in a chart or in the first table, where a row
// is a group.
const curves = [...document.querySelectorAll(".curve")];
const show = (name) => curves.forEach((curve) =>
  curve.classList.toggle("dim", name !== null && !curve.classList.contains(name)));
const compared = document.querySelectorAll("#comparison tbody tr");
const groups = document.querySelectorAll("#curves .legend .curve").length;
for (const row of compared.length === groups ? compared : []) {
  row.addEventListener("mouseenter", () => show(`g${row.dataset.group}`));
  row.addEventListener("mouseleave", () => show(null));
}
for (const curve of curves) {
  curve.addEventListener("mouseenter", () => show(curve.classList[1]));
  curve.addEventListener("mouseleave", () => show(null));
}
// Say which point of a chart is under the pointer.
for (const figure of document.querySelectorAll("figure[data-axes]")) {
  const [left, bottom, right, top, x0, x1, y0, y1] = JSON.parse(figure.dataset.axes);
  const [svg, output] = [figure.querySelector("svg"), figure.querySelector("output")];
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width - left) / (right - left);
    const y = ((box.bottom - event.clientY) / box.height - bottom) / (top - bottom);
    const inside = x >= 0 && x <= 1 && y >= 0 && y <= 1;
    const text = [x0 + x * (x1 - x0), y0 + y * (y1 - y0)].map((v) => v.toPrecision(4));
    output.textContent = inside ? text.join(", ") : "";
  });
}
