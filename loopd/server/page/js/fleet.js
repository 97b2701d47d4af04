// The fleet: who needs a person stands first; every row says why and until when.

import { clean, fill, h, line, tell } from "./dom.js";
import { live, short, stamp } from "./time.js";
import { because, BARREN_NOTABLE, ends, eventWords, need, REPEAT_NOTABLE, standing, tokens } from "./words.js";

const SORTS = {
  "needs you first": (a, b) => need(a) - need(b) || (b.repeat_streak ?? 0) - (a.repeat_streak ?? 0) || (a.progress_ms ?? 0) - (b.progress_ms ?? 0),
  name: (a, b) => a.name.localeCompare(b.name),
  "longest without progress": (a, b) => (a.progress_ms ?? 0) - (b.progress_ms ?? 0),
  "most tokens": (a, b) => tokens(b) - tokens(a),
};
const COLUMNS = ["Session", "State", "Why", "Until", "Goal", "Turns", "Repeat", "Barren", "Tokens", "Progress"];
const DRAW_MS = 250;
const FEED_SHOWN = 12;

export class FleetView {
  constructor(fleet) {
    this.fleet = fleet;
    this.sort = Object.keys(SORTS)[0];
    this.wanted = "";
    this.only = null;
    this._rows = new Map();
    this._order = [];
    this._drawing = null;
    this._draw = () => (this._drawing ??= setTimeout(() => this._drawn(), DRAW_MS));
  }

  /** The view's element; `leave` ends it. */
  enter() {
    const pick = (event) => {
      this.sort = event.target.value;
      this._drawn();
    };
    const search = h("input", {
      id: "filter", type: "search", placeholder: "name, goal, label or hold", "aria-label": "Only sessions with this in them",
      oninput: (event) => {
        this.wanted = event.target.value;
        this._drawn();
      },
    });
    const ended = h("input", {
      type: "checkbox", checked: this.fleet.ended,
      onchange: (event) => {
        this.fleet.ended = event.target.checked;
        void this.fleet.reload().catch(() => {});
      },
    });
    this._tiles = h("div", { class: "tiles", role: "group", "aria-label": "Counts" });
    this._body = h("tbody");
    this._empty = h("p", { class: "quiet empty" });
    this._feed = h("ol", { class: "feed", "aria-label": "Latest events" });
    this.element = h("div", { class: "fleet" },
      h("h1", { class: "unseen" }, "Fleet"),
      this._tiles,
      h("div", { class: "tools" },
        search,
        h("label", {}, "Order ", h("select", { onchange: pick }, Object.keys(SORTS).map((name) => h("option", { selected: name === this.sort }, name)))),
        h("label", { class: "check" }, ended, " ended too"),
      ),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Sessions" },
        h("table", { class: "sessions" },
          h("thead", {}, h("tr", {}, COLUMNS.map((name) => h("th", { scope: "col" }, name)))),
          this._body,
        ),
      ),
      this._empty,
      h("section", { "aria-labelledby": "latest" }, h("h2", { id: "latest" }, "Latest"), this._feed),
    );
    this.fleet.addEventListener("sessions", this._draw);
    this.fleet.addEventListener("frame", this._draw);
    this._drawn();
    return this.element;
  }

  leave() {
    this.fleet.removeEventListener("sessions", this._draw);
    this.fleet.removeEventListener("frame", this._draw);
    clearTimeout(this._drawing);
  }

  _drawn() {
    this._drawing = null;
    const all = [...this.fleet.sessions.values()];
    this._drawTiles(all);
    const word = this.wanted.toLowerCase();
    const shown = all
      .filter((one) => (!this.only || TILES[this.only](one)) && (!word || words(one).includes(word)))
      .sort(SORTS[this.sort]);
    const sids = shown.map((one) => one.sid);
    shown.forEach((one) => this._drawRow(one));
    if (sids.join() !== this._order.join()) {
      const focused = document.activeElement;
      this._body.replaceChildren(...sids.map((sid) => this._rows.get(sid).row));
      if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
      this._order = sids;
    }
    for (const sid of this._rows.keys()) if (!this.fleet.sessions.has(sid)) this._rows.delete(sid);
    tell(this._empty, shown.length ? "" : all.length ? "No session matches." : "No sessions yet; `loopctl new --help` shows how to make one.");
    this._drawFeed();
  }

  _drawTiles(all) {
    const made = Object.entries(TILES).map(([name, test]) => [name, all.filter(test).length]);
    const key = JSON.stringify([made, this.only]);
    if (key === this._tilesKey) return;
    this._tilesKey = key;
    const focused = document.activeElement?.dataset?.tile;
    fill(this._tiles, made.map(([name, count]) =>
      h("button", {
        class: `tile ${count ? TONES[name] : ""}`, "data-tile": name, "aria-pressed": String(this.only === name),
        onclick: () => {
          this.only = this.only === name ? null : name;
          this._drawn();
        },
      }, h("b", {}, String(count)), " ", name),
    ));
    if (focused) this._tiles.querySelector(`[data-tile="${focused}"]`)?.focus();
  }

  _drawRow(one) {
    let kept = this._rows.get(one.sid);
    if (!kept) this._rows.set(one.sid, (kept = newRow(one)));
    if (kept.one === one) return;
    kept.one = one;
    const { mark, word, tone } = standing(one);
    tell(kept.name, one.name);
    tell(kept.mark, mark);
    kept.state.className = `state ${tone}`;
    kept.mark.className = `mark ${tone}`;
    tell(kept.state, word);
    tell(kept.why, because(one));
    kept.until.at = ends(one);
    tell(kept.goal, one.goal?.status ?? "–");
    kept.goal.className = one.goal?.status === "infeasible" ? "bad" : "";
    kept.goal.title = line(one.goal?.text ?? "", 500);
    tell(kept.turns, String(one.turns ?? 0));
    streak(kept.repeat, one.repeat_streak, REPEAT_NOTABLE);
    streak(kept.barren, one.barren_streak, BARREN_NOTABLE);
    tell(kept.tokens, short(tokens(one)));
    kept.progress.at = one.progress_ms;
  }

  _drawFeed() {
    const last = this.fleet.feed.slice(-FEED_SHOWN);
    const key = last.at(-1)?.seq;
    if (key === this._feedKey) return;
    this._feedKey = key;
    fill(this._feed, last.reverse().map((event) =>
      h("li", {}, h("time", {}, stamp(event.ts).slice(11)), " ",
        event.sid ? h("a", { href: `#/s/${event.sid}` }, clean(this.fleet.name(event.sid))) : "daemon", " ",
        h("b", { class: `kind ${event.k.split(".")[0]}` }, event.k), " ", eventWords(event)),
    ));
  }
}

const holds = (kind) => (one) => one.status === "live" && (one.holds ?? []).some((hold) => hold.kind === kind);
const TILES = {
  live: (one) => one.status === "live",
  "need you": (one) => one.status === "live" && need(one) <= 2,
  running: (one) => one.status === "live" && Boolean(one.turn),
  suspended: holds("UserSuspend"),
  held: (one) => one.status === "live" && one.holds?.length > 0,
  ended: (one) => one.status !== "live",
};
const TONES = { "need you": "bad", running: "good", suspended: "held", held: "warn" };

function words(one) {
  const labels = Object.entries(one.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  return [one.name, one.sid, one.status, one.goal?.text, one.goal?.status, ...labels, ...(one.holds ?? []).map((hold) => hold.kind)]
    .join(" ").toLowerCase();
}

function streak(cell, value = 0, notable) {
  tell(cell, value >= notable ? `${value} !` : String(value));
  cell.className = value >= notable ? "number bad" : "number";
}

function newRow(one) {
  const cell = (label, ...children) => h("td", { "data-label": label }, ...children);
  const kept = {
    mark: h("span", { "aria-hidden": "true" }), name: h("a", { href: `#/s/${one.sid}` }), state: h("span"), why: h("span", { class: "why" }),
    until: live("time-left", undefined), goal: h("span"), turns: h("span", { class: "number" }), repeat: h("span"), barren: h("span"),
    tokens: h("span", { class: "number" }), progress: live("time-ago", null),
  };
  kept.row = h("tr", { "data-sid": one.sid },
    h("th", { scope: "row" }, kept.mark, " ", kept.name), cell("State", kept.state), cell("Why", kept.why), cell("Until", kept.until),
    cell("Goal", kept.goal), cell("Turns", kept.turns), cell("Repeat", kept.repeat), cell("Barren", kept.barren),
    cell("Tokens", kept.tokens), cell("Progress", kept.progress));
  return kept;
}
