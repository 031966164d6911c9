// Playground: what senders do on a link that sliders describe.
import { about, ask, failed, keep, settings } from "./app.js";
import { Panels, el, short, swatch } from "./charts.js";
import { table } from "./tables.js";

export const title = "Playground";

const TICKS = 400;
/** Sliders move in equal steps of logarithms; the lowest place of one that may be left out is 0. */
const toValue = ({ low, high, off, name }, place) => {
  if (off && place === 0) return 0;
  const value = low * (high / low) ** (place / TICKS);
  return name === "queue" ? Math.round(value) : Number(value.toPrecision(3));
};
const toPlace = ({ low, high, off }, value) => (off && !value ? 0 : Math.max(Math.round((TICKS * Math.log(value / low)) / Math.log(high / low)), off ? 1 : 0));
const GROUPS = [["The link", ["rate", "rtt", "queue", "trace"]], ["What goes wrong", ["loss", "jitter", "ack_jitter", "aqm"]], ["Somebody else", ["beside", "beside_at"]], ["A change", ["change_at", "change_rate", "change_rtt"]], ["How long", ["seconds"]]];
const NAMES = { rate: "Rate", rtt: "Round trip", queue: "Queue", loss: "Random loss", jitter: "Jitter", ack_jitter: "ACK jitter", aqm: "Queue management", beside: "Second flow", beside_at: "begins at", change_at: "Link changes at", change_rate: "to a rate of", change_rtt: "to a round trip of", seconds: "Time" };

/** Chips that choose senders; `chosen` is a Set of names. */
export function senders(all, chosen, changed) {
  const names = [...all.policies.map((name) => [name, name]), ...all.runs.map((name) => [name, name.slice(4)]), ...all.schemes.map((one) => [one.name, one.shown])];
  return el("div", { class: "chips", role: "group", "aria-label": "Senders" }, names.map(([name, shown]) => el("button", {
    type: "button", class: "chip", "aria-pressed": String(chosen.has(name)), "data-sender": name,
    onclick: (event) => {
      if (!chosen.delete(name)) chosen.add(name);
      event.currentTarget.setAttribute("aria-pressed", String(chosen.has(name)));
      changed();
    },
  }, shown)));
}

export async function show(page) {
  const all = await about(), query = settings();
  const chosen = new Set(query.getAll("senders"));
  if (!chosen.size) ["one", "cubic", "bbr"].forEach((name) => chosen.add(name));
  const values = Object.fromEntries(all.sliders.map((one) => [one.name, query.get(one.name) ?? one.default]));
  const traces = { ...all.traces };
  let asked = 0, running = false, stopped = false;

  // Controls.
  const controls = el("section", { "aria-label": "Link" }), parts = {};
  const known = Object.fromEntries(all.sliders.map((one) => [one.name, one]));
  for (const [head, names] of GROUPS) {
    const open = innerWidth > 832 || head === "The link" || names.some((name) => query.has(name));
    const box = controls.appendChild(el("details", { class: "group", open }, el("summary", {}, head)));
    for (const name of names) box.append(name === "trace" ? trace() : field(known[name]));
  }

  function field(one) {
    const id = `s-${one.name}`, label = NAMES[one.name];
    if (one.choices) {
      const select = el("select", { id, onchange: () => { values[one.name] = select.value; update(); } }, el("option", { value: "" }, "none"), one.choices.map((choice) => el("option", { value: choice }, choice)));
      parts[one.name] = () => { select.value = values[one.name]; };
      parts[one.name]();
      return el("div", { class: "field", "data-field": one.name }, el("label", { for: id }, label), select);
    }
    const output = el("output", { for: id });
    const input = el("input", { id, type: "range", min: 0, max: TICKS, oninput: () => { values[one.name] = toValue(one, Number(input.value)); told(); update(); } });
    const told = () => {
      const value = Number(values[one.name]), text = one.off && !value ? "none" : one.unit === "%" ? `${short(value)}%` : `${short(value)} ${one.unit}`;
      output.textContent = text;
      input.setAttribute("aria-valuetext", text);
    };
    parts[one.name] = () => { input.value = toPlace(one, Number(values[one.name])); told(); };
    parts[one.name]();
    return el("div", { class: "field", "data-field": one.name }, el("label", { for: id }, label, output), input);
  }

  function trace() {
    const says = el("span", {}), file = el("input", { type: "file", hidden: true, onchange: () => { if (file.files[0]) take(file.files[0]); } });
    const choose = el("button", { type: "button", onclick: () => file.click() }, "choose a file");
    const clear = el("button", { type: "button", onclick: () => { values.trace = ""; parts.trace(); update(); } }, "use the rate");
    const sample = el("button", { type: "button", onclick: () => { values.trace = `cellular:${1 + Math.floor(Math.random() * 90)}`; parts.trace(); update(); } }, "a cellular one");
    const box = el("div", { class: "drop" }, says, " ", choose, " ", sample, " ", clear, file);
    parts.trace = () => {
      says.textContent = values.trace ? `Trace: ${traces[values.trace] || values.trace}` : "Drop a trace here (mahimahi: a time in ms each line), or";
      clear.hidden = !values.trace;
      controls.querySelector("[data-field=rate]")?.toggleAttribute("hidden", Boolean(values.trace));
    };
    parts.trace();
    const take = async (dropped) => {
      try {
        const answer = await fetch(`api/trace?name=${encodeURIComponent(dropped.name)}`, { method: "POST", body: dropped, headers: { "X-Distrlcc": "board", "Content-Type": "application/octet-stream" } });
        const found = await answer.json();
        if (!answer.ok) throw new Error(found.error);
        traces[found.key] = `${found.name}, ${short(found.mbps)} Mbit/s`;
        Object.assign(all.traces, traces);
        values.trace = found.key;
        parts.trace();
        update();
      } catch (error) { says.textContent = error.message; }
    };
    for (const name of ["dragover", "dragleave", "drop"]) {
      page.addEventListener(name, (event) => {
        event.preventDefault();
        box.classList.toggle("over", name === "dragover");
        if (name === "drop" && event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
      });
    }
    return el("div", { class: "field" }, box);
  }

  // The answer.
  const says = el("p", { class: "answer", "aria-live": "polite" }, "…"), wrong = el("div"), scores = el("div"), drawn = el("div");
  const panels = new Panels(drawn, [
    { title: "Rate", unit: "Mbit/s", of: (one) => one.rate, height: 200 }, { title: "Queueing delay", unit: "ms", of: (one) => one.queue, height: 160 }, { title: "Window", unit: "packets", of: (one) => one.window, height: 160 },
  ], { sync: "play" });
  const toml = el("pre", { tabindex: 0 }), command = el("pre", { tabindex: 0 });
  const copy = (name, text) => {
    const button = el("button", { type: "button", onclick: async () => {
      await navigator.clipboard.writeText(text());
      button.textContent = "copied";
      setTimeout(() => { button.textContent = name; }, 1200);
    } }, name);
    return button;
  };
  const share = el("div", { class: "tools" }, copy("copy link", () => location.href), copy("copy as command", () => command.textContent), copy("copy as TOML", () => toml.textContent),
    el("a", { href: "#map", onclick: (event) => { event.preventDefault(); location.hash = `map?${address()}`; } }, "map around this link"));
  const answer = el("div", { class: "stack" },
    el("section", {}, says, wrong, scores), el("section", {}, drawn, el("p", { class: "note" }, "Drag over a figure to zoom, double click to go back; a name hides or shows its lines. The shade is what the link can carry.")),
    el("section", {}, el("h2", {}, "Take it with you"), share, command, el("details", {}, el("summary", {}, "As TOML, for --suite"), toml)));
  page.append(el("h1", {}, "What does it do on this link?"), el("p", { class: "lead" }, "Each answer is a run of the compiled simulator, packet by packet."),
    el("section", {}, senders(all, chosen, update)), el("div", { class: "split" }, controls, answer));

  function address() {
    const found = new URLSearchParams();
    for (const one of all.sliders) if (String(values[one.name]) !== String(one.default)) found.set(one.name, values[one.name]);
    chosen.forEach((name) => found.append("senders", name));
    return found;
  }

  function update() {
    controls.querySelector("[data-field=beside_at]").hidden = !values.beside;
    controls.querySelector("[data-field=change_rate]").hidden = !Number(values.change_at) || Boolean(values.trace);
    controls.querySelector("[data-field=change_rtt]").hidden = !Number(values.change_at);
    keep("playground", address());
    asked += 1;
    if (!running) next();
  }

  /** Ask for what is set now; moves meanwhile are answered by the newest alone, in order. */
  async function next() {
    running = true;
    while (!stopped) {
      const number = asked, found = Object.fromEntries(address());
      delete found.senders;
      if (!Number(values.change_at)) ["change_rate", "change_rtt"].forEach((name) => delete found[name]);
      if (!values.beside) delete found.beside_at;
      // A change without what changes is half of a setting: nothing is asked until the other half is there.
      const half = Number(values.change_at) && !Number(values.change_rate) && !Number(values.change_rtt);
      if (half) delete found.change_at;
      try {
        if (!chosen.size) throw new Error("Choose a policy or a scheme above.");
        const begin = performance.now();
        fill(await ask("play", { ...found, senders: [...chosen].join("\n") }), performance.now() - begin);
        wrong.replaceChildren();
      } catch (error) { wrong.replaceChildren(failed(error)); }
      page.dataset.answered = String(number);
      if (number === asked) break;
    }
    running = false;
  }

  function fill(found, ms) {
    const rivals = found.senders.filter((one) => one.name !== "oracle" && one.scores.power[0] !== null);
    const best = [...rivals].sort((a, b) => b.scores.power[0] - a.scores.power[0])[0];
    const share = (one) => {
      const from = found.time.findIndex((time) => time >= Number(values.beside_at)), sum = (list) => list.slice(from).reduce((a, b) => a + (b || 0), 0);
      return sum(one.rate) / (sum(one.rate) + sum(one.others) || 1);
    };
    const shares = found.senders.filter((one) => one.rate && one.others).map((one) => `${one.name} gets ${Math.round(100 * share(one))}%`);
    says.textContent = values.beside && shares.length ? `Of what both deliver, once ${values.beside} has begun beside it: ${shares.join(", ")}.` : best ? `${best.name} does best here: it uses ${best.scores.utilisation[1]} of the link and queues for ${best.scores.queueing_delay_rtt[1].replace(" RTT", " round trips")}.` : "No sender delivered anything here.";
    const columns = [{ head: "sender", left: true, of: (one) => el("span", {}, swatch(one.colors), one.name, one.why ? el("small", { class: "bad" }, ` ${one.why}`) : null), v: (one) => one.name },
      ...found.scores.map(({ key, title, about: definition }) => ({ head: el("span", { title: definition }, title), of: (one) => one.scores[key][2], v: (one) => one.scores[key][0] ?? "" }))];
    scores.replaceChildren(table(columns, found.senders, { label: "Scores", row: (one) => ({ class: one.learned ? "learned" : "" }) }), el("p", { class: "note" }, `Answered in ${Math.round(ms)} ms.`));
    const series = found.senders.filter((one) => one.rate).map((one) => ({ ...one, label: one.name, width: one.learned ? 2.2 : 1.4 }));
    const others = series.filter((one) => one.others).map((one) => ({ label: `beside ${one.name}`, colors: one.colors, rate: one.others, dash: [4, 4], width: 1.2 }));
    panels.show(found.time, [...series, ...others], found.capacity);
    toml.textContent = found.toml;
    command.textContent = found.command;
  }

  update();
  return () => { stopped = true; };
}
