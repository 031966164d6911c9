// Map: two senders compared on 32 by 32 links over any two settings.
import { about, ask, failed, keep, settings } from "./app.js";
import { el, heatmap, ratioScale, short } from "./charts.js";

export const title = "Map";

const NAMES = { rate: "rate (Mbit/s)", rtt: "round trip (ms)", queue: "queue (packets)", loss: "random loss (%)", jitter: "jitter (ms)", ack_jitter: "ACK jitter (ms)" };

export async function show(page) {
  const all = await about(), query = settings();
  const names = [...all.policies, ...all.runs, ...all.schemes.map((one) => one.name)];
  const given = query.getAll("senders").filter((name) => names.includes(name));
  const values = { own: query.get("own") || given[0] || "one", other: query.get("other") || given.find((name) => name !== given[0]) || "cubic", x: query.get("x") || "rate", y: query.get("y") || "rtt", measure: query.get("measure") || "power" };
  // What else the links have, from the playground.
  const plain = Object.fromEntries(all.sliders.map((one) => [one.name, String(one.default)]));
  const rest = Object.fromEntries([...query].filter(([name, value]) => name in plain && value !== plain[name] && !/^(change|beside|seconds)/.test(name)));
  let stopped = false, running = false, waiting = false;

  const choice = (name, label, options) => el("label", {}, `${label} `, el("select", { "data-choice": name, onchange: (event) => { values[name] = event.currentTarget.value; update(); } },
    options.map(([value, text]) => el("option", { value, selected: value === values[name] }, text))));
  const axes = all.axes.map((name) => [name, NAMES[name]]), people = names.map((name) => [name, name.replace(/^run:/, "")]);
  const says = el("p", { class: "answer", "aria-live": "polite" }), box = el("div"), scale = el("div"), note = el("p", { class: "note" });
  page.append(el("h1", {}, "Where is it ahead, and where must it not be used?"), el("p", { class: "lead" }, "1,024 links, each of them simulated with both senders."),
    el("section", {}, el("div", { class: "tools" }, choice("own", "", people), choice("other", "against", people), choice("measure", "by", Object.entries(all.measures)), choice("x", "across", axes), choice("y", "up", axes))),
    el("section", {}, says, scale, box, note));

  async function update() {
    if (running) { waiting = true; return; }
    running = true;
    keep("map", new URLSearchParams({ ...values, ...rest }));
    const begin = performance.now();
    says.textContent = "Computing 2,048 runs …";
    const ticking = setInterval(() => { says.textContent = `Computing 2,048 runs … ${Math.round((performance.now() - begin) / 1000)} s`; }, 1000);
    try {
      const { own, other, ...asked } = values;
      const fixed = Object.fromEntries(Object.entries(rest).filter(([name]) => name !== values.x && name !== values.y));
      const found = await ask("map", { ...asked, own, other, ...fixed });
      if (!stopped) fill(found, performance.now() - begin);
    } catch (error) { says.textContent = ""; scale.replaceChildren(); note.textContent = ""; box.replaceChildren(failed(error)); }
    clearInterval(ticking);
    running = false;
    if (waiting && !stopped) { waiting = false; update(); }
  }

  function fill(found, ms) {
    const [own, other] = found.names;
    setTimeout(() => { says.textContent = found.says; });
    scale.replaceChildren(ratioScale(`${own} a quarter of ${other}`, "four times as much"));
    const told = (j, k) => `${found.x} ${short(found.xs[k])}, ${found.y} ${short(found.ys[j])}: ${own} ${short(found.own[j][k])}, ${other} ${short(found.other[j][k])} ${found.measure === "power" ? "power" : "of the link"}`;
    const pick = (j, k) => {
      const to = new URLSearchParams({ ...rest, [found.x]: found.xs[k], [found.y]: found.ys[j] });
      [values.own, values.other].forEach((name) => to.append("senders", name));
      location.hash = `playground?${to}`;
    };
    heatmap(box, { xs: found.xs, ys: found.ys, ratio: found.ratio, xLabel: NAMES[found.x], yLabel: NAMES[found.y], told, pick });
    const fixed = Object.entries(rest).filter(([name]) => name !== found.x && name !== found.y).map(([name, value]) => `${name} ${value}`).join(", ");
    note.textContent = `All else as in the playground${fixed ? ` (${fixed})` : " (20 Mbit/s, 40 ms, 100 packets)"}; up to 4 s of each link. Computed in ${(ms / 1000).toFixed(1)} s.`;
  }

  update();
  return () => { stopped = true; };
}
