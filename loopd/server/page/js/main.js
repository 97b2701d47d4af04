// Where the page begins: the login, the bar, the views by address, the keys.

import { login, logout, may, me, resume } from "./api.js";
import { freeze } from "./controls.js";
import { note, told } from "./dialogs.js";
import { fill, h, tell } from "./dom.js";
import { FindingView } from "./finding.js";
import { FleetView } from "./fleet.js";
import { Fleet } from "./fleet_state.js";
import { SessionView } from "./session.js";
import { TurnView } from "./turn.js";

const bar = document.getElementById("bar");
const view = document.getElementById("view");
const THEMES = ["auto", "light", "dark"];
let fleet = null;
let shown = null;

// -- theme ------------------------------------------------------------------------------------------

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("theme", name);
}

function nextTheme() {
  const name = THEMES[(THEMES.indexOf(localStorage.getItem("theme") ?? "auto") + 1) % THEMES.length];
  theme(name);
  note(`theme: ${name}`);
}

// -- bar ----------------------------------------------------------------------------------------------

function drawBar() {
  const status = fleet?.status ?? {};
  const frozen = Boolean(status.frozen);
  const words = !fleet ? "" : !fleet.connected ? "not connected" : frozen ? "frozen" : status.draining ? "draining" : status.ready === false ? `not ready: ${(status.reasons ?? []).join(", ")}` : "ready";
  const tone = words === "ready" ? "good" : words ? "bad" : "";
  const key = JSON.stringify([words, frozen, me()?.principal]);
  if (key === bar.dataset.key) return;
  bar.dataset.key = key;
  fill(bar,
    h("a", { href: "#/", class: "brand" }, h("span", { "aria-hidden": "true" }, "⟳"), " loopd"),
    h("span", { class: `badge ${tone}`, id: "health" }, words),
    h("span", { class: "space" }),
    me() && may("admin") && h("button", { class: frozen ? "primary" : "", onclick: () => freeze(frozen) }, frozen ? "Unfreeze" : "Freeze"),
    h("button", { onclick: nextTheme, title: "Theme: auto, light, dark" }, "Theme"),
    h("button", { class: "keys", onclick: help, "aria-keyshortcuts": "?" }, "Keys"),
    me() && h("button", { onclick: leave, title: me().principal }, "Log out"));
}

async function leave() {
  try {
    await logout();
  } catch (refused) {
    note(refused.words, "bad");
    if (refused.code !== "unauthenticated") return; // still logged in: the reason must stay to be read
  }
  location.reload();
}

// -- views --------------------------------------------------------------------------------------------

const ROUTES = [
  [/^#\/s\/([^/]+)\/t\/(\d+)$/, (sid, n) => new TurnView(fleet, decodeURIComponent(sid), Number(n))],
  [/^#\/s\/([^/]+)\/f\/(\d+)$/, (sid, seq) => new FindingView(fleet, decodeURIComponent(sid), Number(seq))],
  [/^#\/s\/([^/]+)$/, (sid) => new SessionView(fleet, decodeURIComponent(sid))],
  [/^#?\/?$/, () => new FleetView(fleet)],
];

function route({ focus = true } = {}) {
  shown?.leave();
  shown = null;
  document.title = "loopd";
  for (const [pattern, make] of ROUTES) {
    const match = location.hash.match(pattern);
    if (!match) continue;
    shown = make(...match.slice(1));
    fill(view, shown.enter());
    if (focus) view.focus({ preventScroll: true });
    window.scrollTo(0, 0);
    return;
  }
  fill(view, h("h1", {}, "Nothing here"), h("p", {}, h("a", { href: "#/" }, "To the fleet")));
}

// -- keys ---------------------------------------------------------------------------------------------

const KEYS = [
  ["j / k, ↓ / ↑", "next and previous session"], ["Enter", "open it"], ["/", "filter"], ["f", "to the fleet"],
  ["s / u", "suspend, unsuspend"], ["i", "interrupt"], ["m", "message"], ["g", "goal"], ["o", "open the gate"], ["p", "prove a suspension"], ["?", "this help"],
];

function help() {
  return told("Keys", h("dl", { class: "facts" }, KEYS.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])));
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = { "/": () => document.getElementById("filter")?.focus(), f: () => (location.hash = "#/"), "?": help, j: () => step(1), k: () => step(-1), ArrowDown: () => step(1, event), ArrowUp: () => step(-1, event) }[event.key];
  const button = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!act && !button) return;
  if (event.key.startsWith("Arrow") && !document.activeElement?.closest("table.sessions")) return;
  event.preventDefault();
  if (act) void act();
  else button.click();
}

function step(by) {
  const links = [...document.querySelectorAll("table.sessions th[scope=row] a")];
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))].focus();
}

// -- begin --------------------------------------------------------------------------------------------

function loginForm(words = "") {
  const field = h("input", { type: "password", name: "token", autocomplete: "current-password", required: true, placeholder: "lpd_…", "aria-label": "Token" });
  const told = h("p", { class: "bad", role: "alert" }, words);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await login(field.value.trim());
    } catch (refused) {
      tell(told, refused.words ?? String(refused));
      return;
    }
    await begin();
  };
  fill(view, h("form", { class: "login", onsubmit: submit }, h("h1", {}, "loopd"), h("label", {}, "Access token", field), told, h("button", { class: "primary" }, "Log in"),
    h("p", { class: "quiet" }, "An operator makes one with ", h("code", {}, "loopctl token new --scope read --scope control"), ".")));
  field.focus();
}

/** The connection came or went. A login that ended with the daemon's last life is asked for again. */
async function linked() {
  drawBar();
  if (fleet.connected) return;
  const who = await resume().catch(() => undefined); // undefined: nobody answers yet
  if (who !== null || fleet === null) return;
  fleet.end();
  shown?.leave();
  shown = fleet = null;
  drawBar();
  loginForm("Your login has ended; log in again.");
}

async function begin() {
  let who;
  try {
    who = me() ?? (await resume());
  } catch (refused) {
    const none = refused.code === "not_found" ? "There is no access token yet. An operator makes one on the machine itself: " : `${refused.words ?? refused} `;
    fill(view, h("div", { class: "login" }, h("h1", {}, "loopd"), h("p", {}, none, refused.code === "not_found" && h("code", {}, "loopctl token new --scope read --scope control")), h("button", { onclick: () => location.reload() }, "Try again")));
    return;
  }
  drawBar();
  if (!who) return loginForm();
  fleet = new Fleet();
  fleet.addEventListener("link", linked);
  fleet.addEventListener("sessions", drawBar);
  await fleet.begin(who.head ?? null).catch((refused) => note(refused.words ?? String(refused), "bad"));
  drawBar();
  route({ focus: false });
}

theme(localStorage.getItem("theme") ?? "auto");
window.addEventListener("hashchange", () => fleet && route());
document.addEventListener("keydown", onKey);
drawBar();
void begin();
