document.querySelectorAll("table.sortable").forEach(table => {
  const body = table.tBodies[0];
  table.querySelectorAll("th").forEach((th, column) => th.addEventListener("click", () => {
    const up = th.getAttribute("aria-sort") !== "ascending";
    table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    th.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => {
      const cell = row.cells[column];
      return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
    };
    const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, {numeric: true});
    [...body.rows].sort((a, b) => (up ? 1 : -1) * order(key(a), key(b))).forEach(row => body.append(row));
  }));
});
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
