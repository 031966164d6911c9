// A report page: its charts are drawn from the data that it holds, its tables sort.
import { Panels, el, heatmap, pair, ratioScale, scatter, tone, themed } from "./charts.js";
import { sortable, table } from "./tables.js";

const data = JSON.parse(document.getElementById("data").textContent);

for (const dot of document.querySelectorAll(".swatch[data-light]")) themed(() => { dot.style.background = tone([dot.dataset.light, dot.dataset.dark]); });

const DRAW = {
  scatter,
  /** Panels over the same time: {time, capacity, panels: [{title, unit, lines: [{label, colors, values}]}]}. */
  lines(host, { time, xLabel = "time (s)", capacity, panels }) {
    const all = new Map(panels.flatMap((panel) => panel.lines.map((one) => [one.label, one])));
    const group = new Panels(host, panels.map((panel, k) => ({
      title: panel.title, unit: panel.unit, height: k ? 150 : 210, of: (one) => panel.lines.find((line) => line.label === one.label)?.values,
    })), { xLabel });
    group.show(time, [...all.values()].map(({ label, colors, dash, width }, k) => ({ label, colors: colors || pair(k), dash, width })), capacity || null);
  },
  /** A metric of every link for every scheme; the metric is chosen. */
  links(host, { links, schemes, metrics, charts }) {
    const box = el("div");
    const choice = el("select", { onchange: () => draw() }, metrics.map((one, k) => el("option", { value: k }, one.title)));
    const draw = () => {
      const { cells, numbers } = metrics[choice.value];
      const rows = links.map((link, k) => ({ link, cells: cells[k], numbers: numbers[k] }));
      const name = ({ link }) => (charts[link] ? el("a", { href: `#${charts[link]}` }, link) : link);
      const columns = [{ head: "link", left: true, of: name, v: (row) => row.link },
        ...schemes.map((scheme, n) => ({ head: scheme, of: (row) => row.cells[n], v: (row) => row.numbers[n] ?? "-" }))];
      box.replaceChildren(table(columns, rows, { label: `${metrics[choice.value].title} per link` }));
    };
    host.append(el("div", { class: "tools" }, el("label", {}, "Metric ", choice)), box);
    draw();
  },
  map(host, { low, high, ...grid }) {
    host.append(ratioScale(low, high));
    const told = (j, k) => `${grid.xLabel} ${grid.xs[k]}, ${grid.yLabel} ${grid.ys[j]}: ${grid.ratio[j][k] ?? "not judged"}`;
    heatmap(host.appendChild(el("div")), { ...grid, told });
  },
};
for (const host of document.querySelectorAll("[data-chart]")) {
  const { kind, ...drawn } = data[host.dataset.chart];
  DRAW[kind](host, drawn);
}
document.querySelectorAll("table").forEach((each) => sortable(each));
