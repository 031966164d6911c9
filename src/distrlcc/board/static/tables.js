// Tables that sort by a click on a head, and that long ones filter by what is typed.
import { el } from "./charts.js";

const value = (cell) => {
  if (!cell) return "";
  const text = cell.dataset.v ?? cell.textContent.trim();
  const number = text === "" ? NaN : Number(text);
  return Number.isNaN(number) ? text : number;
};

function compare(a, b) {
  const blank = (v) => v === "" || v === "-" || v === "–";
  if (blank(a) || blank(b)) return blank(a) - blank(b);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

/** Let a table's heads sort its rows; a table of `filterFrom` rows or more has a field that filters. */
export function sortable(table, filterFrom = 9) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  if (!body || table.dataset.ready || table.dataset.plain !== undefined) return;
  table.dataset.ready = "yes";
  heads.forEach((head, column) => {
    const button = el("button", { type: "button" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = typeof value(body.rows[0]?.cells[column]) === "number" ? "descending" : "ascending";
      const was = head.getAttribute("aria-sort");
      const now = was === null ? first : was === "ascending" ? "descending" : "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", now);
      const rows = [...body.rows].map((row) => [value(row.cells[column]), row]);
      const blank = (v) => v === "" || v === "-" || v === "–";
      rows.sort(([a], [b]) => (blank(a) || blank(b) ? compare(a, b) : (now === "ascending" ? 1 : -1) * compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  });
  if (body.rows.length < filterFrom) return;
  const count = el("span", { class: "note", "aria-live": "polite" });
  const input = el("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows", oninput: () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${body.rows.length} rows` : "";
  } });
  const place = table.closest(".scroll") || table;
  place.before(el("div", { class: "tools" }, input, count));
}

/** Build a table: columns are {head, left, of: row -> text or node, v: row -> what sorts}. */
export function table(columns, rows, { label = "", row: rowAttributes = () => ({}) } = {}) {
  const head = el("tr", {}, columns.map((c) => el("th", { scope: "col", class: c.left ? "left" : "" }, c.head)));
  const body = rows.map((row) => el("tr", rowAttributes(row), columns.map((c, k) => {
    const v = c.v ? c.v(row) : undefined;
    return el(k === 0 ? "th" : "td", { ...(k === 0 ? { scope: "row" } : {}), class: `${c.left ? "left" : ""} ${c.wrap ? "wrap" : ""}`.trim(), "data-v": v === undefined || v === null ? undefined : v }, c.of(row) ?? "–");
  })));
  const made = el("table", { "aria-label": label }, el("thead", {}, head), el("tbody", {}, body));
  const scroll = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, made);
  const box = el("div", {}, scroll);
  sortable(made);
  return box;
}
