// A session's turns in a row: filled by what began them, outlined by how they ended; below them the rung,
// and a lane for each kind of hold. Each turn is a link; the table behind “as a table” says the same.

import { clean, fill, h, line, s } from "./dom.js";
import { short, stamp, took } from "./time.js";

const STEP = 14;
const WIDE = 11;
const LEFT = 92;
const TURN_Y = 26;
const TURN_H = 34;
const RUNG_Y = 78;
const RUNG_H = 28;
const LANES_Y = 124;
const LANE = 15;
const DRAWN_MAX = 800;
const RUNG_NAMES = ["ok", "nudge", "text only", "closed", "ended"];
const GOOD = new Set(["completed", "idle"]);
const BAD = new Set(["model_error", "failed", "deadline", "interrupted", "empty", "stopped_by_rule", "step_limit"]);

/** How an outcome is outlined. */
export function toneOf(outcome) {
  return GOOD.has(outcome) ? "good" : BAD.has(outcome) ? "bad" : "quiet";
}

export class Timeline {
  /** `href(n)` is where turn `n` is shown; `findingHref(seq)` where a finding is. */
  constructor({ href, findingHref }) {
    this._href = href;
    this._findingHref = findingHref;
    this._box = h("div", { class: "timeline", tabindex: "0", role: "region", "aria-label": "Timeline of turns; scrolls sideways" });
    this._table = h("tbody");
    this.element = h("figure", { class: "plot" },
      h("figcaption", {}, "Turns", legend()),
      this._box,
      h("details", {}, h("summary", {}, "as a table"),
        h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Turns as a table" },
          h("table", {}, h("thead", {}, h("tr", {}, ["Turn", "Began", "By", "Outcome", "Steps", "Calls", "Tokens", "Findings"].map((name) => h("th", { scope: "col" }, name)))), this._table))),
    );
  }

  /** Draw what `past.told` found; `cursor` is the seq that the page shows, or null for now. */
  draw({ turns, holds, findings }, cursor = null) {
    const first = Math.max(0, turns.length - DRAWN_MAX);
    const shown = turns.slice(first);
    const x = (place) => LEFT + (place - first) * STEP;
    const kinds = [...new Set(holds.map((hold) => hold.kind))];
    const width = LEFT + Math.max(10, shown.length) * STEP + 24;
    const height = LANES_Y + kinds.length * LANE + 8;
    const atEnd = this._box.scrollLeft + this._box.clientWidth >= this._box.scrollWidth - 2 * STEP;
    const pieces = [
      s("text", { x: 4, y: TURN_Y + TURN_H - 4, class: "label" }, "turns"),
      s("text", { x: 4, y: RUNG_Y + RUNG_H, class: "label" }, "rung"),
      ...shown.map((turn, place) => this._turn(turn, LEFT + place * STEP)),
      rungs(shown),
      ...kinds.flatMap((kind, lane) => [
        s("text", { x: 4, y: LANES_Y + lane * LANE + 10, class: "label" }, kind.slice(0, 14)),
        ...holds.filter((hold) => hold.kind === kind && (hold.to ?? Infinity) >= first).map((hold) => {
          const from = Math.max(LEFT, x(hold.from));
          const to = hold.to === null ? width - 8 : x(hold.to);
          const bar = s("rect", { x: from, y: LANES_Y + lane * LANE, width: Math.max(4, to - from), height: LANE - 4, rx: 3, class: `hold ${kind}` });
          bar.append(s("title", {}, `${kind}${hold.by ? ` by ${hold.by}` : ""}${hold.reason ? `: ${line(hold.reason)}` : ""}${hold.to === null ? ", stands" : ""}`));
          return bar;
        }),
      ]),
      ...findings.filter((one) => one.place >= first).map((one) => this._finding(one, x(one.place))),
      cursor === null ? null : cursorLine(shown, cursor, height),
    ];
    const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": summary(turns, findings) });
    svg.append(...pieces.filter(Boolean));
    const focused = this._box.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    this._box.replaceChildren(svg);
    if (focused) this._box.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    if (atEnd || !this._drawn) this._box.scrollLeft = this._box.scrollWidth;
    this._drawn = true;
    fill(this._table, shown.slice(-200).reverse().map((turn) =>
      h("tr", {}, h("th", { scope: "row" }, h("a", { href: this._href(turn.n) }, String(turn.n))), h("td", {}, stamp(turn.at_ms)), h("td", {}, turn.trigger),
        h("td", { class: toneOf(turn.outcome) }, turn.outcome), h("td", {}, String(turn.steps)), h("td", {}, String(turn.calls)), h("td", {}, short(turn.tokens)),
        h("td", {}, turn.findings.map((one) => `${one.rule} → ${one.verdict}`).join(", ")))));
  }

  _turn(turn, x) {
    const tall = Math.min(TURN_H, 14 + 4 * Math.max(0, turn.steps - 1));
    const lasted = turn.end_ms ? `, ${took(turn.end_ms - turn.at_ms)}` : "";
    const title = `turn ${turn.n} by ${turn.trigger}: ${turn.outcome}${lasted}, ${turn.steps} steps, ${turn.calls} calls, ${short(turn.tokens)} tokens`;
    const link = s("a", { href: this._href(turn.n), "aria-label": title });
    link.append(
      s("title", {}, `${title}\n${line(turn.text, 160)}`),
      s("rect", { x, y: TURN_Y + TURN_H - tall, width: WIDE, height: tall, rx: 2, class: `turn by-${turn.trigger} out-${toneOf(turn.outcome)}` }),
    );
    if (turn.failed) link.append(s("circle", { cx: x + WIDE / 2, cy: TURN_Y + TURN_H + 5, r: 2.2, class: "failed" }));
    if (turn.changed) link.append(s("circle", { cx: x + WIDE / 2, cy: TURN_Y + TURN_H - tall - 4, r: 2.2, class: "changed" }));
    return link;
  }

  _finding(one, x) {
    const link = s("a", { href: this._findingHref(one.seq), "aria-label": `finding: ${one.rule}, ${one.verdict}` });
    const mid = x + WIDE / 2;
    link.append(s("title", {}, `${one.rule} → ${one.verdict}: ${one.score} of ${one.threshold}`), s("path", { d: `M${mid - 6},4 h12 l-6,11 z`, class: `finding ${one.verdict}` }));
    return link;
  }
}

function rungs(turns) {
  if (!turns.length) return null;
  const y = (rung) => RUNG_Y + RUNG_H - (rung * RUNG_H) / 4;
  const points = turns.flatMap((turn, place) => [`${LEFT + place * STEP},${y(turn.rung)}`, `${LEFT + place * STEP + STEP},${y(turn.rung)}`]);
  const path = s("polyline", { points: points.join(" "), class: "rung" });
  path.append(s("title", {}, `now: ${RUNG_NAMES[turns.at(-1).rung]}`));
  return path;
}

function cursorLine(turns, cursor, height) {
  const place = turns.findIndex((turn) => turn.seq > cursor);
  const x = LEFT + (place < 0 ? turns.length : place) * STEP - 1.5;
  return s("line", { x1: x, x2: x, y1: 0, y2: height, class: "cursor" });
}

function summary(turns, findings) {
  const last = turns.at(-1);
  if (!last) return "no turns yet";
  return `${turns.length} turns, the last is ${last.n} by ${last.trigger}, ${last.outcome}; ${findings.length} findings`;
}

function legend() {
  const entry = (kind, label) => h("span", { class: `key ${kind}` }, label);
  return h("span", { class: "legend" },
    ["continuation", "human", "cron", "rewake", "heartbeat"].map((name) => entry(`by-${name}`, name)),
    entry("out-good", "ended well"), entry("out-bad", "did not"), entry("is-changed", "something changed"), entry("is-finding", "finding"));
}

/** Tokens so far over the turns; a dot where something outside changed or a metric got better. */
export class Spending {
  constructor() {
    this._box = h("div", { class: "spending" });
    this.element = h("figure", { class: "plot" }, h("figcaption", {}, "Progress against tokens"), this._box);
  }

  draw({ turns }) {
    const width = 640;
    const height = 120;
    if (turns.length < 2) return void fill(this._box, h("p", { class: "quiet" }, "Nothing to draw before the second turn."));
    let sum = 0;
    const sums = turns.map((turn) => (sum += turn.tokens));
    const x = (place) => 44 + (place * (width - 54)) / (turns.length - 1);
    const y = (value) => 100 - (sum ? (value * 88) / sum : 0);
    const changes = turns.map((turn, place) => [turn, place]).filter(([turn]) => turn.changed);
    const last = changes.at(-1);
    const since = last ? sum - sums[last[1]] : sum;
    const words = `${short(sum)} tokens in ${turns.length} turns; ${changes.length} turns changed something; ${short(since)} tokens since the last one`;
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words });
    svg.append(
      s("line", { x1: 44, x2: width - 10, y1: 100, y2: 100, class: "axis" }),
      s("text", { x: 40, y: 14, class: "label end" }, short(sum)), s("text", { x: 40, y: 104, class: "label end" }, "0"),
      s("text", { x: 44, y: 116, class: "label" }, `turn ${turns[0].n}`), s("text", { x: width - 10, y: 116, class: "label end" }, `turn ${turns.at(-1).n}`),
      last ? s("rect", { x: x(last[1]), y: 10, width: Math.max(0, width - 10 - x(last[1])), height: 90, class: "barren" }) : s("rect", { x: 44, y: 10, width: width - 54, height: 90, class: "barren" }),
      s("polyline", { points: sums.map((value, place) => `${x(place)},${y(value)}`).join(" "), class: "spent" }),
      ...changes.map(([, place]) => s("circle", { cx: x(place), cy: y(sums[place]), r: 3.5, class: "changed" })),
    );
    fill(this._box, svg, h("p", { class: "quiet" }, clean(words)));
  }
}
