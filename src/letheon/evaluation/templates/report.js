"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = table.querySelectorAll("th[data-column]");
  const key = (row, column) => row.cells[column].dataset.sort ?? "";
  const sort = (head, column) => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    const compare = (a, b) => {
      const [x, y] = [key(a, column), key(b, column)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return up ? order : -order;
    };
    body.append(...[...body.rows].sort(compare));
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  };
  for (const head of heads) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head, Number(head.dataset.column)));
    head.append(button);
  }
}
