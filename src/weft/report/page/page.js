// Tables that sort: headings become buttons, so that a click, Enter and Space all do it.
"use strict";
(() => {
  const told = document.getElementById("told");
  const value = (row, i) => {
    const cell = row.cells[i];
    return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent.trim();
  };
  const order = (a, b) => {
    const empty = (x) => x === "" || x === "\u2013";
    if (empty(a) || empty(b)) return empty(a) - empty(b) || 0;
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  const sort = (table, head, i) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => [value(row, i), row]);
    const missing = (x) => x === "" || x === "\u2013";
    keyed.sort(([a], [b]) => (missing(a) || missing(b) ? order(a, b) : down ? order(b, a) : order(a, b)));
    body.append(...keyed.map(([, row]) => row));
    told.textContent = `Sorted by ${head.textContent.trim()}, ${down ? "descending" : "ascending"}.`;
  };
  // Only what scrolls needs a stop for the keyboard.
  const seen = new ResizeObserver((entries) => {
    for (const { target } of entries) target.tabIndex = target.scrollWidth > target.clientWidth + 1 ? 0 : -1;
  });
  const enhance = (root) => {
    for (const table of root.querySelectorAll("table[data-sorts]")) {
      [...table.tHead.rows[0].cells].forEach((head, i) => {
        if ("still" in head.dataset || head.querySelector("button")) return;
        const button = document.createElement("button");
        button.type = "button";
        button.append(...head.childNodes);
        head.append(button);
        head.setAttribute("aria-sort", "none");
        button.addEventListener("click", () => sort(table, head, i));
      });
    }
    for (const box of root.querySelectorAll(".scroll")) seen.observe(box);
  };
  enhance(document);
  document.addEventListener("weft:new", (event) => enhance(event.target));
})();
