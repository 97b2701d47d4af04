// A finding with its evidence: what the rule measured, and the steps it looked at, side by side.

import { ask } from "./api.js";
import { clean, fill, h } from "./dom.js";
import { short, stamp } from "./time.js";
import { step } from "./turn.js";

const BESIDE = 4;

export class FindingView {
  constructor(fleet, sid, seq) {
    this.sid = sid;
    this.seq = seq;
  }

  enter() {
    this.element = h("div", { class: "finding-view" }, h("h1", {}, "Finding"), h("p", { class: "quiet" }, "Loading…"));
    void this._begin();
    return this.element;
  }

  leave() {}

  async _begin() {
    try {
      const page = await ask({ t: "history.page", sid: this.sid, before: this.seq + 1, limit: 400 });
      const event = page.events.find((one) => one.seq === this.seq);
      if (!event || event.k !== "degeneration.detected") throw new Error(`seq ${this.seq} is no finding of this session`);
      document.title = `${event.b.rule} – loopd`;
      this._draw(event, page.events.filter((one) => one.k === "turn.step" && one.seq < this.seq).slice(-BESIDE));
    } catch (refused) {
      fill(this.element, h("h1", {}, "Finding"), h("p", { class: "bad" }, refused.words ?? String(refused)));
    }
  }

  _draw(event, steps) {
    const b = event.b;
    const facts = [
      ["Verdict", `${b.verdict}${b.shadow ? " (only watches)" : ""}`], ["Level", b.level], ["Measured", `${b.score} of ${b.threshold} ${b.unit ?? "turns"}`],
      ["Window", b.window && `${b.window}`], ["Relapse", b.relapse && `${b.relapse}`], ["Tokens since it began", b.tokens_since_onset && short(b.tokens_since_onset)],
      ["Loop", b.loop_id && b.loop_id.slice(0, 16)], ["Settings", b.config_revision && b.config_revision.slice(0, 16)], ["When", `${stamp(event.ts)}, seq ${event.seq}`],
    ].filter(([, value]) => value);
    fill(this.element,
      h("nav", { class: "crumbs", "aria-label": "Where" }, h("a", { href: `#/s/${this.sid}` }, "session"), " / finding"),
      h("h1", {}, clean(b.rule), " ", h("span", { class: `badge ${b.level === "hard" ? "bad" : "warn"}` }, b.verdict)),
      h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, clean(value))])),
      h("section", {}, h("h2", {}, "Evidence"), h("ul", { class: "evidence" }, (b.evidence ?? []).map((one) => h("li", {}, clean(one))))),
      h("section", {}, h("h2", {}, `The last ${steps.length} steps before it, side by side`),
        h("div", { class: "beside" }, steps.map((one) => h("div", {}, h("p", { class: "quiet" }, h("a", { href: `#/s/${this.sid}/t/${one.b.n}` }, `turn ${one.b.n}`), ` · ${stamp(one.ts)}`), step(one.b))))));
  }
}
