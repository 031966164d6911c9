// Runs: a list, learning curves side by side, and one run's ranks, workers and events.
import { about, ask, failed, onNews } from "./app.js";
import { Lines, el, legend, pair, short } from "./charts.js";
import { table } from "./tables.js";

export const title = "Runs";

/** Seconds as people say them. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${+(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}
const clock = (seconds) => (seconds === null || seconds === undefined ? "" : `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`);
const state = (name) => el("span", { class: `state ${name}` }, name);
const METRICS = ["", "episode_return", "utilisation", "queueing_delay", "loss", "policy_entropy", "steps_per_second", "workers"];

export async function show(page) {
  const found = await ask("runs");
  const chosen = new Set(found.filter((run) => run.updates).slice(0, 4).map((run) => run.key));
  let metric = "", over = "steps", open = null, busy = false, again = false;
  const list = el("section", { "aria-label": "Runs" }), curves = el("section"), detail = el("div", { class: "stack" }), differ = el("section", { hidden: true });
  page.append(el("h1", {}, "Runs"), list, curves, differ, detail);

  // The curves and their controls.
  const pick = el("select", { "aria-label": "Metric", onchange: () => { metric = pick.value; draw(); } });
  const axis = el("select", { "aria-label": "Over", onchange: () => { over = axis.value; draw(); } },
    ["steps", "seconds", "update"].map((name) => el("option", { value: name }, name === "update" ? "updates" : name)));
  const keys = el("div"), says = el("p", { class: "note" });
  curves.append(el("h2", {}, "Learning curves"), el("div", { class: "tools" }, el("label", {}, "Metric ", pick), el("label", {}, "over ", axis)), keys, says);
  const box = curves.appendChild(el("div"));
  const lines = new Lines(box, { title: "held-out reward", xLabel: "steps", height: 260, zero: false });
  const hidden = new Set();

  function listed(all) {
    if (!all.length) {
      list.replaceChildren(el("div", { class: "empty" }, el("h2", {}, "No run here yet"), el("p", {}, "Start one, and it appears within seconds:"), el("pre", {}, "distrlcc train quickstart --out runs/first"),
        el("p", {}, "Or ask what a shipped policy does on your link: ", el("a", { href: "#playground" }, "open the playground"), ".")));
      curves.hidden = true;
      return;
    }
    curves.hidden = false;
    const box = (run) => el("input", { type: "checkbox", checked: chosen.has(run.key), "aria-label": `Draw ${run.key}`, onchange: (event) => {
      if (event.currentTarget.checked) chosen.add(run.key); else chosen.delete(run.key);
      draw();
    } });
    const running = all.filter((run) => run.state === "running").length;
    const columns = [
      { head: "run", left: true, of: (run) => el("span", {}, box(run), " ", el("a", { href: "#runs", onclick: (event) => { event.preventDefault(); opened(run.key, true); } }, run.key)), v: (run) => run.key },
      { head: "state", left: true, of: (run) => state(run.state), v: (run) => run.state },
      { head: "recipe", left: true, of: (run) => run.recipe },
      { head: "best held-out reward", of: (run) => short(run.best), v: (run) => run.best ?? "" },
      { head: "steps", of: (run) => (run.total && run.state === "running" ? `${short(run.steps)} of ${short(run.total)}` : short(run.steps)), v: (run) => run.steps ?? "" },
      { head: "steps/s", of: (run) => short(run.speed), v: (run) => run.speed ?? "" },
      { head: "ran for", of: (run) => duration(run.seconds), v: (run) => run.seconds },
      { head: "last heard", of: (run) => (run.quiet === null ? "–" : `${duration(run.quiet)} ago`), v: (run) => run.quiet ?? "" },
      { head: "workers", of: (run) => (run.workers ? String(run.workers) : "–"), v: (run) => run.workers },
      { head: "alarms", of: (run) => el("span", { class: run.alarms ? "bad" : "" }, String(run.alarms)), v: (run) => run.alarms },
    ];
    const count = `${all.length} run${all.length === 1 ? "" : "s"}; ${running || "none"} running now.`;
    const rows = new Map([...list.querySelectorAll("tbody tr")].map((row) => [row.cells[0].dataset.v, row.cells]));
    if (list.contains(document.activeElement) && rows.size === all.length && all.every((run) => rows.has(run.key))) {
      // A rebuilt table would lose the focus: cells change where they are.
      for (const run of all) columns.slice(1).forEach((c, k) => { const cell = rows.get(run.key)[k + 1]; cell.replaceChildren(c.of(run)); if (c.v) cell.dataset.v = c.v(run); });
      list.querySelector(".answer").textContent = count;
      return;
    }
    const sorted = list.querySelector("th[aria-sort]"), place = sorted ? [...sorted.parentNode.children].indexOf(sorted) : -1, way = sorted?.getAttribute("aria-sort");
    const words = list.querySelector("input[type=search]")?.value;
    list.replaceChildren(el("p", { class: "answer" }, count), table(columns, all, { label: "Runs" }));
    if (place >= 0) { const head = list.querySelectorAll("thead th")[place]; head.querySelector("button").click(); if (head.getAttribute("aria-sort") !== way) head.querySelector("button").click(); }
    if (words) { const field = list.querySelector("input[type=search]"); field.value = words; field.dispatchEvent(new Event("input")); }
  }

  async function draw() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const names = [...chosen];
      const found = names.length ? await ask("curves", { keys: names.join("\n"), metric }) : [];
      const drawn = found.filter((one) => one.value.length);
      says.textContent = drawn.length ? "" : names.length ? (metric ? "No chosen run has measured this." : "The first held-out score comes after some updates; take another metric until then.") : "Choose runs in the list to draw them.";
      const xs = [...new Set(drawn.flatMap((one) => one[over].filter((v) => v !== null)))].sort((a, b) => a - b);
      const series = drawn.map((one) => {
        const at = new Map(one[over].map((x, k) => [x, one.value[k]]));
        return { label: one.key, colors: pair(names.indexOf(one.key)), values: xs.map((x) => at.get(x) ?? null), gaps: true };
      });
      Object.assign(lines, { title: metric || "held-out reward", xLabel: over });
      box.querySelector("h3").textContent = `${(metric || "held-out reward").replaceAll("_", " ")} over ${over === "update" ? "updates" : over}`;
      lines.show(xs, series, hidden);
      legend(keys, series, hidden, () => lines.hide());
      await differences(names);
    } catch (error) { says.replaceChildren(failed(error)); }
    busy = false;
    if (again) { again = false; draw(); }
  }

  async function differences(names) {
    differ.hidden = names.length < 2;
    if (differ.hidden) return;
    const { rows } = await ask("differences", { keys: names.join("\n") });
    const columns = [{ head: "setting", left: true, of: (row) => row.key }, ...names.map((name, k) => ({ head: name, left: true, wrap: true, of: (row) => row.values[k] }))];
    differ.replaceChildren(el("h2", {}, "What differs between them"), rows.length ? table(columns, rows, { label: "Settings that differ" }) : el("p", { class: "muted" }, "Nothing: their configurations are the same."));
  }

  async function opened(key, scroll = false) {
    open = key;
    try { fill(await ask("run", { key })); } catch (error) { detail.replaceChildren(failed(error)); }
    if (scroll) detail.scrollIntoView({ behavior: "smooth" });
  }

  function fill(run) {
    for (const key of run.keys) if (![...pick.options].some((option) => option.value === key)) pick.append(el("option", { value: key }, key));
    const gone = run.timeline.filter((one) => !one.here), here = run.timeline.length - gone.length;
    const tiles = [["state", run.state], ["best held-out reward", short(run.best)], ["steps/s", short(run.speed)], ["ran for", duration(run.seconds)]];
    const top = el("section", {}, el("h2", {}, run.key),
      el("div", { class: "tiles" }, tiles.map(([name, text]) => el("div", { class: "tile" }, el("b", {}, text), el("span", {}, name)))),
      run.policy ? el("p", {}, el("a", { href: `#playground?${new URLSearchParams([["senders", `run:${run.key}`], ["senders", "cubic"]])}` }, "See what its policy does on a link"), ".") : null,
      el("p", { class: "note" }, "Checkpoints: ", run.checkpoints.map((one) => `${one.name} (${short(one.bytes / 1e3)} kB, ${duration(one.age)} ago)`).join(", ") || "none yet", "."));
    const parts = [top];
    if (run.timeline.length) {
      const end = Math.max(run.seconds, 1), begin = Math.min(...run.timeline.map((one) => one.begin), end - 1);
      const lanes = [...run.timeline].sort((a, b) => b.here - a.here || b.end - a.end).slice(0, 64).map((one) => el("div", { class: `lane ${one.here ? "" : "gone"}` },
        el("span", { title: one.name }, one.name, one.link ? el("small", { class: "muted" }, ` ${one.link}`) : null),
        el("span", { class: "track" }, el("i", { style: { left: `${(100 * (one.begin - begin)) / (end - begin)}%`, right: `${100 - (100 * ((one.here ? end : one.end) - begin)) / (end - begin)}%` } })),
        el("span", {}, one.here ? `${short(one.steps_per_second)} steps/s, lag ${one.lag ?? "–"}` : el("span", { class: "bad" }, `gone since ${clock(one.end)}`))));
      parts.push(el("section", { "data-part": "workers" }, el("h2", {}, "Workers"), el("p", { class: "answer" }, `${here} of ${run.timeline.length} are here${gone.length && run.state === "running" ? `; gone: ${gone.map((one) => one.name).join(", ")}` : ""}.`), el("div", { class: "bars" }, lanes)));
    }
    const events = [...run.events].reverse();
    parts.push(el("section", { "data-part": "events" }, el("h2", {}, "What happened"), events.length
      ? el("ul", { class: "log", tabindex: 0, "aria-label": "Events" }, events.map((one) => el("li", { class: one.kind }, el("time", {}, clock(one.seconds)), " ", one.text)))
      : el("p", { class: "muted" }, "No worker or rank joined or left, and no alarm rang.")));
    parts.push(el("section", {}, el("details", {}, el("summary", {}, "Configuration and versions"), el("pre", { tabindex: 0 }, run.config || "no config.toml"), el("p", { class: "note" }, Object.entries(run.versions).map(([name, version]) => `${name} ${version}`).join(", ")))));
    const opened = detail.querySelector("details")?.open;
    detail.replaceChildren(...parts);
    if (opened) detail.querySelector("details").open = true;
  }

  METRICS.forEach((key) => pick.append(el("option", { value: key }, key ? key.replaceAll("_", " ") : "held-out reward")));
  // Held-out scores are rare: until a run has some, what it collects is drawn.
  const early = found.length ? await ask("curves", { keys: [...chosen].join("\n"), metric: "" }) : [];
  if (early.length && early.every((one) => one.value.length < 3)) { metric = "episode_return"; pick.value = metric; }
  listed(found);
  await draw();
  if (found.length) await opened((found.find((run) => run.state === "running") || found[0]).key);
  let pending = false, missed = false;
  async function news(names) {
    missed = pending;
    if (pending) return;
    pending = true;
    const now = await ask("runs").catch(() => null);
    if (now) {
      for (const run of now) if (!chosen.size && run.updates) chosen.add(run.key);
      if (!open && now.length) open = now[0].key;
      listed(now);
      if (names === null || names.some((name) => chosen.has(name))) draw();
      if (open && (names === null || names.includes(open))) await opened(open);
      if (now.length !== found.length) about(true);
    }
    setTimeout(() => { pending = false; if (missed) news(null); }, 400);
  }
  return onNews(news);
}
