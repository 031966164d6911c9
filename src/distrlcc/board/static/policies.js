// Policies: a card for each that ships, and for each run's.
import { ask } from "./app.js";
import { el, short } from "./charts.js";

export const title = "Policies";

export async function show(page) {
  page.append(el("h1", {}, "Policies"), el("p", { class: "lead" }, "What ships with distrlcc, and what was trained in these folders."));
  const found = await ask("policies");
  page.append(el("div", { class: "cards" }, found.map((one) => {
    if (one.error) return el("article", { class: "card" }, el("h2", {}, one.name), el("p", { class: "bad" }, one.error));
    const play = new URLSearchParams([["senders", one.sender], ["senders", "cubic"]]), scores = Object.entries(one.power);
    const facts = [["network", one.network], ["sees", one.observation], ["does", one.action], ["acts each", `${one.step_ms} ms`], ["size", `${short(one.bytes / 1e3)} kB, ${short(one.parameters)} numbers`], ["runs in", one.runs_in.join(", ")]];
    return el("article", { class: "card" }, el("h2", {}, one.name), el("p", {}, one.about),
      el("dl", {}, facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])),
      scores.length ? el("details", {}, el("summary", {}, `Power: ${scores.slice(0, 2).map(([suite, value]) => `${short(value)} on ${suite}`).join(", ")}`), el("dl", {}, scores.flatMap(([suite, value]) => [el("dt", {}, suite), el("dd", {}, value.toFixed(3))]))) : null,
      one.not_for ? el("p", { class: "note" }, one.not_for) : null,
      el("p", {}, el("a", { href: `#playground?${play}` }, "try it on a link"), " · ", el("a", { href: `#map?${new URLSearchParams({ own: one.sender, other: "cubic" })}` }, "its map against CUBIC")));
  })));
  return null;
}
