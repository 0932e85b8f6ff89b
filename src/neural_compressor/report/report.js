"use strict";
// Sort a table by the column whose heading was clicked; a second click turns the order round.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const body = heading.closest("table").tBodies[0];
    const ascending = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const key = (row) => row.cells[heading.cellIndex].dataset.value ?? row.cells[heading.cellIndex].textContent;
    const numeric = heading.classList.contains("number");
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === ""); // what is missing stays at the end
      const order = numeric ? Number(x) - Number(y) : x.localeCompare(y, undefined, { numeric: true });
      return ascending ? order : -order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
// Show only the ops whose row contains the typed words.
const filter = document.getElementById("filter");
if (filter) {
  const rows = [...document.querySelectorAll("#ops tbody tr")];
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
}
