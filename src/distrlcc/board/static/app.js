// The frame: which view is shown, what the server is asked, and what it tells.
import { el } from "./charts.js";
import * as runs from "./runs.js";
import * as playground from "./playground.js";
import * as map from "./map.js";
import * as policies from "./policies.js";

const VIEWS = { runs, playground, map, policies };
const main = document.getElementById("main"), live = document.getElementById("live");
let leave = null;

/** Ask the server; what it refuses is thrown as its one line. */
export async function ask(name, query = {}) {
  const answer = await fetch(`api/${name}?${new URLSearchParams(query)}`);
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(found.error || `the server answered ${answer.status}`);
  return found;
}

let aboutPage = null;
/** What the page's controls show; asked once, or anew. */
export async function about(anew = false) {
  if (!aboutPage || anew) aboutPage = await ask("about");
  return aboutPage;
}

export const failed = (error) => el("p", { class: "error", role: "alert" }, String(error.message || error));

/** The part of the address behind "?", such as #playground?rate=20. */
export const settings = () => new URLSearchParams(location.hash.split("?")[1] || "");

/** Write settings into the address, so that it can be shared; the view stays as it is. */
export function keep(view, query) {
  history.replaceState(null, "", `#${view}${[...query].length ? `?${query}` : ""}`);
}

async function show() {
  const name = location.hash.slice(1).split("?")[0] || "runs", view = VIEWS[name] || runs;
  document.querySelectorAll(".bar nav a").forEach((link) => {
    if (link.hash === `#${view === runs ? "runs" : name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  if (leave) leave();
  leave = null;
  const page = el("div");
  main.replaceChildren(page);
  document.title = `${view.title} · distrlcc board`;
  try { leave = await view.show(page); } catch (error) { page.replaceChildren(failed(error)); }
}

const listeners = new Set();
/** Call back with the names of runs that have something new. */
export function onNews(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const events = new EventSource("api/events");
const said = (text, on) => { live.textContent = text; live.classList.toggle("on", on); };
events.onopen = () => { said("live", true); listeners.forEach((each) => each(null)); };
events.onerror = () => said("not connected", false);
events.addEventListener("runs", (event) => { const keys = JSON.parse(event.data); listeners.forEach((each) => each(keys)); });
addEventListener("hashchange", show);
show();
