// Charts of the board and of the report pages: lines (uPlot), a scatter and a map (SVG).
/* global uPlot */

const dark = matchMedia("(prefers-color-scheme: dark)");
const redraws = new Set();
dark.addEventListener("change", () => redraws.forEach((draw) => draw()));

/** Run a drawing now, and again whenever the page turns dark or light. */
export function themed(draw) {
  redraws.add(draw);
  draw();
  return () => redraws.delete(draw);
}

/** A pair's colour for the page as it is now: light, dark. */
export const tone = (pair) => pair[dark.matches ? 1 : 0];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Make an element: el("p", {class: "note"}, "text", child). */
export function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "rect", "circle", "line", "text", "title"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** A number with three digits, and thousands as k and M. */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  return String(+value.toPrecision(size >= 100 ? 4 : 3));
}

export function swatch(pair) {
  const made = el("i", { class: "swatch", "aria-hidden": "true" });
  themed(() => { made.style.background = tone(pair); });
  return made;
}

const PALETTE = [["#b04a00", "#ff9350"], ["#0072B2", "#4aa8e0"], ["#00795b", "#2fc79b"], ["#8f3f97", "#d59be0"],
  ["#8a6508", "#e6b23a"], ["#a3161a", "#ff7f82"], ["#4d5fa8", "#a3b2f0"], ["#5c6670", "#aab4be"]];
/** Colours of things without one of their own. */
export const pair = (place) => PALETTE[place % PALETTE.length];

/** Buttons that hide and show what is drawn; `hidden` is a set of labels. */
export function legend(host, entries, hidden, changed) {
  host.classList.add("legend");
  host.replaceChildren(...entries.map(({ label, colors }) => el("button", {
    type: "button", "aria-pressed": String(!hidden.has(label)), title: `Hide or show ${label}`,
    onclick: (event) => {
      if (!hidden.delete(label)) hidden.add(label);
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(label)));
      changed();
    },
  }, swatch(colors), label)));
}

/** One panel of lines over x. `show` draws data; drag zooms, a double click goes back. */
export class Lines {
  constructor(host, { title, unit = "", xLabel = "time (s)", height = 170, sync = "", zero = true }) {
    Object.assign(this, { host, title, unit, xLabel, height, sync, zero, x: [], series: [], hidden: new Set() });
    host.classList.add("chart");
    host.replaceChildren(el("h3", {}, unit ? `${title} (${unit})` : title));
    this.box = host.appendChild(el("div", { role: "img" }));
    this.tip = host.appendChild(el("div", { class: "tip", hidden: true }));
    this.told();
    new ResizeObserver(() => {
      const width = Math.floor(this.host.clientWidth);
      if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
      else if (!this.plot) this.draw();
    }).observe(host);
    themed(() => this.draw());
  }

  /** Draw series: {label, colors, values, fill, dash, width}. */
  show(x, series, hidden = this.hidden) {
    const same = this.plot && series.length === this.series.length && series.every((one, k) => one.label === this.series[k].label);
    Object.assign(this, { x, series, hidden });
    this.told();
    if (!same) { this.draw(); return; }
    this.plot.setData([x, ...series.map((one) => one.values)]);
    this.hide();
  }

  hide() {
    this.series.forEach((one, k) => {
      const show = !this.hidden.has(one.label);
      if (this.plot && this.plot.series[k + 1].show !== show) this.plot.setSeries(k + 1, { show });
    });
  }

  /** Say in words what is drawn. */
  told() {
    const parts = this.series.filter((one) => !one.fill).map((one) => {
      const known = one.values.filter((v) => v !== null && v !== undefined);
      return `${one.label} ${short(known.reduce((a, b) => a + b, 0) / known.length)}`;
    });
    this.box.setAttribute("aria-label", `${this.title} over ${this.xLabel}; means: ${parts.join(", ") || "nothing"} ${this.unit}`);
  }

  draw() {
    const width = Math.floor(this.host.clientWidth);
    if (this.plot) { this.plot.destroy(); this.plot = null; }
    if (!width || !this.series.length) return;
    const font = "12px system-ui, sans-serif";
    const axis = { stroke: css("--muted"), font, grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1, size: 4 }, gap: 4 };
    const options = {
      width, height: this.height, legend: { show: false }, scales: { x: { time: false }, y: { range: (_, low, high) => this.range(low, high) } },
      axes: [{ ...axis, label: undefined, size: 26, values: (_, ticks) => ticks.map(short) }, { ...axis, size: 48, values: (_, ticks) => ticks.map(short) }],
      cursor: { drag: { x: true, y: false }, points: { size: 6 }, ...(this.sync ? { sync: { key: this.sync } } : {}) },
      series: [{}, ...this.series.map((one) => ({
        label: one.label, stroke: one.fill ? css("--capacity") : tone(one.colors), width: one.fill ? 0 : one.width || 1.6, dash: one.dash, points: { show: one.values.length < 3 },
        fill: one.fill ? css("--capacity") : undefined, show: !this.hidden.has(one.label), spanGaps: Boolean(one.gaps),
        ...(one.fill ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
      }))],
      hooks: { setCursor: [(plot) => this.hover(plot)] },
    };
    this.plot = new uPlot(options, [this.x, ...this.series.map((one) => one.values)], this.box);
    this.told();
  }

  range(low, high) {
    if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
    if (this.zero && low >= 0) return [0, high > 0 ? high * 1.06 : 1];
    const pad = 0.06 * (high - low || Math.abs(high) || 1);
    return [low - pad, high + pad];
  }

  hover(plot) {
    const { idx, left, top } = plot.cursor;
    this.tip.hidden = idx === null || idx === undefined || left < 0 || !this.host.matches(":hover");
    if (this.tip.hidden) return;
    const rows = this.series.filter((one) => !this.hidden.has(one.label) && one.values[idx] !== null && one.values[idx] !== undefined)
      .map((one) => el("div", {}, el("i", { class: "swatch", style: { background: one.fill ? css("--capacity") : tone(one.colors) } }), `${one.label} ${short(one.values[idx])}`));
    this.tip.replaceChildren(el("strong", {}, `${this.xLabel.replace(/ \(.*/, "")} ${short(this.x[idx])}`), ...rows);
    const right = left + this.tip.offsetWidth + 90 > plot.width;
    this.tip.style.left = `${right ? Math.max(left - this.tip.offsetWidth + 30, 0) : left + 64}px`;
    this.tip.style.top = `${Math.max(top - 10, 0) + 14}px`;
  }
}

/** Several panels with one legend over the same x; panels are {title, unit, of: series -> values}. */
export class Panels {
  constructor(host, panels, options = {}) {
    this.hidden = new Set();
    this.keys = host.appendChild(el("div", {}));
    const sync = options.sync || `s${Math.random()}`;
    this.parts = panels.map((panel) => ({ panel, lines: new Lines(host.appendChild(el("div")), { ...options, ...panel, sync }) }));
  }

  show(x, series, capacity = null) {
    legend(this.keys, series, this.hidden, () => this.parts.forEach(({ lines }) => { lines.hidden = this.hidden; lines.hide(); }));
    this.parts.forEach(({ panel, lines }, k) => {
      const drawn = series.filter((one) => panel.of(one)).map((one) => ({ ...one, values: panel.of(one) }));
      const below = k === 0 && capacity ? [{ label: "capacity", fill: true, values: capacity, colors: ["", ""] }] : [];
      lines.show(x, [...below, ...drawn], this.hidden);
    });
  }
}

/** Means with their intervals; up and, with `better` left of x, to the right is better. */
export function scatter(host, { points, xLabel, yLabel }) {
  themed(() => {
    const width = Math.max(host.clientWidth || 640, 300), narrow = width < 520, height = narrow ? 300 : 360;
    const pad = { left: 46, right: 14, top: 24, bottom: 40 };
    const xs = points.flatMap((p) => [p.x, p.xl, p.xh]).filter((v) => Number.isFinite(v) && v > 0);
    const ys = points.flatMap((p) => [p.y, p.yl, p.yh]).filter(Number.isFinite);
    const log = Math.max(...xs) / Math.min(...xs) > 8, f = log ? Math.log : (v) => v;
    let [x0, x1] = [f(Math.min(...xs)), f(Math.max(...xs))], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
    const px = 0.12 * (x1 - x0 || 1), py = 0.15 * (y1 - y0 || Math.abs(y1) || 1);
    [x0, x1, y0, y1] = [x0 - px, x1 + px, Math.max(y0 - py, 0), y1 + py];
    const X = (v) => pad.left + (1 - (f(Math.max(v, 1e-9)) - x0) / (x1 - x0)) * (width - pad.left - pad.right);
    const Y = (v) => height - pad.bottom - ((v - y0) / (y1 - y0)) * (height - pad.top - pad.bottom);
    const svg = el("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yLabel} against ${xLabel}: ` + points.map((p) => `${p.label} ${short(p.y)} at ${short(p.x)}`).join("; ") });
    for (let k = 0; k <= 4; k += 1) {
      const yv = y0 + (k / 4) * (y1 - y0), xv = x0 + (k / 4) * (x1 - x0), real = log ? Math.exp(xv) : xv;
      svg.append(el("line", { class: "axis", x1: pad.left, x2: width - pad.right, y1: Y(yv), y2: Y(yv) }), el("text", { x: pad.left - 6, y: Y(yv) + 4, "text-anchor": "end" }, short(+yv.toPrecision(3))));
      svg.append(el("text", { x: X(real), y: height - pad.bottom + 17, "text-anchor": "middle" }, short(+real.toPrecision(2))));
    }
    svg.append(el("text", { x: width - pad.right, y: height - 6, "text-anchor": "end" }, `← ${xLabel}`), el("text", { x: 4, y: 13 }, `↑ ${yLabel}`), el("text", { x: width - pad.right, y: 13, "text-anchor": "end" }, "better ↗"));
    const taken = [];
    for (const p of [...points].sort((a, b) => a.learned - b.learned)) {
      const color = tone(p.colors), stroke = { stroke: color, "stroke-width": 1.4, opacity: 0.6 };
      if (Number.isFinite(p.xl)) svg.append(el("line", { x1: X(p.xl), x2: X(p.xh), y1: Y(p.y), y2: Y(p.y), ...stroke }), el("line", { x1: X(p.x), x2: X(p.x), y1: Y(p.yl), y2: Y(p.yh), ...stroke }));
      svg.append(el("circle", { cx: X(p.x), cy: Y(p.y), r: p.learned ? 7.5 : 5.5, fill: color, stroke: css("--card"), "stroke-width": 1.5 }, el("title", {}, `${p.label}: ${short(p.y)} at ${short(p.x)}`)));
      const flip = X(p.x) > width - 90;
      let y = Y(p.y) - 9;
      while (taken.some(([a, b]) => Math.abs(a - X(p.x)) < 70 && Math.abs(b - y) < 13)) y += 13;
      taken.push([X(p.x), y]);
      svg.append(el("text", { class: "name", x: X(p.x) + (flip ? -9 : 9), y, "text-anchor": flip ? "end" : "start", "font-weight": p.learned ? 700 : 400 }, p.label));
    }
    host.replaceChildren(svg);
  });
}

function mix(a, b, share) {
  const rgb = (hex) => [1, 3, 5].map((k) => parseInt((hex.length === 4 ? hex.replace(/\w/g, "$&$&") : hex).slice(k, k + 2), 16));
  const [p, q] = [rgb(a), rgb(b)];
  return `rgb(${p.map((v, k) => Math.round(v + (q[k] - v) * share)).join(",")})`;
}

/** The colour of a ratio: one side's where it is above 1, the other's below. */
export function ratioColor(value) {
  if (value === null || value === undefined) return css("--line");
  const size = Math.min(Math.abs(Math.log2(value)) / 2, 1);
  return mix(css("--mid"), css(value >= 1 ? "--ahead" : "--behind"), Math.sqrt(size));
}

/** A grid of ratios `[y][x]`; arrow keys move over it, Enter or a click picks a cell. */
export function heatmap(host, { xs, ys, ratio, xLabel, yLabel, told, pick }) {
  const says = el("p", { class: "note", "aria-live": "polite" }, pick ? "Point at a cell for its links; a click opens it in the playground." : "Point at a cell for its value.");
  const box = el("div", {});
  host.replaceChildren(box, says);
  let at = [ys.length >> 1, xs.length >> 1];
  themed(() => {
    const left = 58, bottom = 40, cell = 16, width = left + cell * xs.length + 12, height = cell * ys.length + bottom + 18;
    const svg = el("svg", { class: "plot map", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application", "aria-label": `Map over ${xLabel} and ${yLabel}; arrow keys move, Enter opens a cell` });
    const X = (k) => left + cell * k, Y = (k) => 16 + cell * (ys.length - 1 - k);
    ratio.forEach((row, j) => row.forEach((value, k) => svg.append(el("rect", { x: X(k), y: Y(j), width: cell + 0.4, height: cell + 0.4, fill: ratioColor(value), "data-x": k, "data-y": j }))));
    const mark = svg.appendChild(el("rect", { width: cell, height: cell, fill: "none", stroke: css("--ink"), "stroke-width": 2, x: X(at[1]), y: Y(at[0]), visibility: "hidden" }));
    for (let k = 0; k < xs.length; k += Math.ceil(xs.length / 6)) svg.append(el("text", { x: X(k) + cell / 2, y: height - bottom + 14, "text-anchor": "middle", "font-size": 15 }, short(xs[k])));
    for (let k = 0; k < ys.length; k += Math.ceil(ys.length / 6)) svg.append(el("text", { x: left - 6, y: Y(k) + cell / 2 + 5, "text-anchor": "end", "font-size": 15 }, short(ys[k])));
    svg.append(el("text", { x: width - 8, y: height - 8, "text-anchor": "end", "font-size": 15 }, `${xLabel} →`), el("text", { x: 2, y: 12, "font-size": 15 }, `↑ ${yLabel}`));
    const move = (j, k) => {
      at = [j, k];
      for (const [name, value] of [["x", X(k)], ["y", Y(j)], ["visibility", "visible"]]) mark.setAttribute(name, value);
      says.textContent = told(j, k);
    };
    const under = (event) => event.target.dataset && event.target.dataset.x !== undefined && [Number(event.target.dataset.y), Number(event.target.dataset.x)];
    svg.addEventListener("pointermove", (event) => { const place = under(event); if (place) move(...place); });
    svg.addEventListener("click", (event) => { const place = under(event); if (place && pick) pick(...place); });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (step) move(Math.min(Math.max(at[0] + step[0], 0), ys.length - 1), Math.min(Math.max(at[1] + step[1], 0), xs.length - 1));
      else if (event.key === "Enter" && pick) pick(...at);
      else return;
      event.preventDefault();
    });
    mark.setAttribute("pointer-events", "none");
    box.replaceChildren(svg);
  });
}

/** The scale of `ratioColor`, with what its ends mean. */
export function ratioScale(low, high) {
  const canvas = el("canvas", { width: 240, height: 16, "aria-hidden": "true" });
  themed(() => {
    const pen = canvas.getContext("2d");
    for (let k = 0; k < 240; k += 1) { pen.fillStyle = ratioColor(2 ** ((k / 239) * 4 - 2)); pen.fillRect(k, 0, 1, 16); }
  });
  return el("div", { class: "scale" }, el("span", {}, low), canvas, el("span", {}, high));
}
