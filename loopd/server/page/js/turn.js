// One turn: what the model saw, what it said and did, and how that differs from another turn.

import { ask } from "./api.js";
import { changes } from "./diff.js";
import { clean, fill, h, line } from "./dom.js";
import { short, stamp, took } from "./time.js";
import { toneOf } from "./timeline.js";

const FOLD_CHARS = 1_500;

export class TurnView {
  constructor(fleet, sid, n) {
    this.sid = sid;
    this.n = n;
  }

  enter() {
    this._said = h("div");
    this._saw = h("div");
    this.element = h("div", { class: "turn-view" }, h("h1", {}, `Turn ${this.n}`), h("p", { class: "quiet" }, "Loading…"));
    void this._begin();
    return this.element;
  }

  leave() {}

  async _begin() {
    let turn;
    try {
      turn = await ask({ t: "turn.get", sid: this.sid, n: this.n, prompt: true }).catch((refused) => {
        if (refused.code !== "not_found") throw refused;
        return ask({ t: "turn.get", sid: this.sid, n: this.n }); // what the model saw is gone, the rest is not
      });
    } catch (refused) {
      fill(this.element, h("h1", {}, `Turn ${this.n}`), h("p", { class: "bad" }, refused.words ?? String(refused)));
      return;
    }
    document.title = `turn ${turn.n} – loopd`;
    const lasted = turn.ended_ms ? `, ${took(turn.ended_ms - turn.started_ms)}` : "";
    const other = h("input", { type: "number", min: 1, value: Math.max(1, turn.n - 1), "aria-label": "Other turn" });
    fill(this.element,
      h("nav", { class: "crumbs", "aria-label": "Where" }, h("a", { href: `#/s/${this.sid}` }, "session"), " / ", `turn ${turn.n}`,
        turn.n > 1 && [" · ", h("a", { href: `#/s/${this.sid}/t/${turn.n - 1}`, rel: "prev" }, "← before")],
        " · ", h("a", { href: `#/s/${this.sid}/t/${turn.n + 1}`, rel: "next" }, "after →")),
      h("h1", {}, `Turn ${turn.n} `, h("span", { class: `badge ${toneOf(turn.outcome)}` }, turn.outcome)),
      h("p", { class: "quiet" }, `by ${turn.trigger}, ${turn.started_ms ? stamp(turn.started_ms) : ""}${lasted}${turn.error ? `: ${clean(turn.error)}` : ""}`),
      h("section", {}, h("h2", {}, "What it said and did"), (turn.steps ?? []).map(step), turn.partial && h("pre", { class: "bad" }, clean(turn.partial)), !(turn.steps ?? []).length && h("p", { class: "quiet" }, "No step ended.")),
      h("section", {}, h("h2", {}, "What the model saw"),
        h("form", { class: "tools", onsubmit: (event) => this._compare(event, other) }, h("label", {}, "Compare with turn ", other), h("button", {}, "Compare")),
        this._saw));
    fill(this._saw, saw(turn.prompt));
  }

  async _compare(event, field) {
    event.preventDefault();
    try {
      const found = await ask({ t: "turn.diff", sid: this.sid, n: Number(field.value), other_n: this.n });
      fill(this._saw, changes(found, Number(field.value), this.n));
    } catch (refused) {
      fill(this._saw, h("p", { class: "bad" }, refused.words ?? String(refused)));
    }
  }
}

/** A step of a turn. */
export function step(one) {
  const usage = one.usage ? `${short(one.usage.input_tokens ?? 0)} in, ${short(one.usage.output_tokens ?? 0)} out` : "";
  return h("article", { class: "step" },
    h("h3", {}, `Step ${one.step} `, h("span", { class: "quiet" }, [usage, one.finish !== "stop" && one.finish, one.compacted && "compacted", one.tools_withheld && "no tools offered"].filter(Boolean).join(" · "))),
    one.text && text(one.text),
    (one.calls ?? []).map((call) => h("div", { class: "call" },
      h("p", {}, h("b", {}, clean(call.name)), " ", h("span", { class: call.ok === false ? "bad" : call.ok ? "good" : "warn" }, call.ok === true ? "✓ ok" : call.ok === false ? "✗ failed" : "? unknown"), " ", h("code", {}, line(JSON.stringify(call.args ?? {}), 600))),
      call.result && text(call.result))));
}

/** Text as it is; long text is folded. */
export function text(words) {
  const whole = clean(words);
  if (whole.length <= FOLD_CHARS) return h("pre", {}, whole);
  return h("details", {}, h("summary", {}, `${line(whole, 160)} (${short(whole.length)} characters)`), h("pre", { tabindex: "0" }, whole));
}

function saw(prompt) {
  if (!prompt) return h("p", { class: "quiet" }, "The record of what the model saw is not there any more, or you may not read it.");
  const same = prompt.recorded_sha256 && prompt.request_sha256 === prompt.recorded_sha256;
  return [
    prompt.request_sha256 && h("p", { class: same ? "good" : "warn" }, same ? `✓ rebuilt byte for byte (sha256 ${prompt.request_sha256.slice(0, 16)}…)` : "rebuilt; there is no recorded digest to compare with"),
    prompt.missing?.length > 0 && h("p", { class: "warn" }, `${prompt.missing.length} messages are not stored any more`),
    prompt.messages.map((message) => h("article", { class: `message ${message.role}` },
      h("h3", {}, clean(message.role), " ", h("span", { class: "quiet" }, [message.source, message.ephemeral && "ephemeral", message.call_id].filter(Boolean).map(clean).join(" · "))),
      text(message.text ?? ""),
      (message.calls ?? []).map((call) => h("p", {}, h("b", {}, clean(call.name)), " ", h("code", {}, line(JSON.stringify(call.args ?? {}), 600)))))),
    prompt.request && h("details", {}, h("summary", {}, "The exact request"), h("pre", { tabindex: "0" }, clean(prompt.request))),
  ];
}
