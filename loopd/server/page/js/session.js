// One session: how it stands and why, its controls, its past as pictures, and any moment of it.

import { ask, may, stream } from "./api.js";
import { approve, buttons } from "./controls.js";
import { note, told as showText } from "./dialogs.js";
import { clean, fill, h, line, tell } from "./dom.js";
import { EVENTS_MAX, told } from "./past.js";
import { Spending, Timeline } from "./timeline.js";
import { live, now, short, span, stamp } from "./time.js";
import { eventWords, holdWords, standing, tokens } from "./words.js";

const PAGE = 1_000;
const DRAW_MS = 300;
const LIVE_CHARS = 4_000;
const LISTED = 300;

export class SessionView {
  constructor(fleet, sid) {
    this.fleet = fleet;
    this.sid = sid;
    this.events = [];
    this.one = null;
    this.cursor = null; // seq of the shown moment; null is now
    this._text = "";
    this._drawing = null;
    this._left = false;
  }

  enter() {
    this._head = h("div", { class: "session-head" }, h("h1", {}, clean(this.fleet.name(this.sid))));
    this._controls = h("div", { class: "buttons", role: "group", "aria-label": "Controls" });
    this._facts = h("dl", { class: "facts" });
    this._asks = h("div");
    this._live = h("pre", { class: "live", role: "region", "aria-label": "Text as the model writes it", tabindex: "0" });
    this._lists = h("div", { class: "lists" });
    this._list = h("ol", { class: "feed", "aria-label": "Events, newest first" });
    this._moment = h("output", { class: "moment" }, "now");
    this._range = h("input", {
      type: "range", min: 0, max: 0, value: 0, "aria-label": "Moment that is shown",
      oninput: () => this._scrubbed(),
    });
    this._back = h("button", { onclick: () => this._toNow(), disabled: true }, "Back to now");
    this._timeline = new Timeline({ href: (n) => `#/s/${this.sid}/t/${n}`, findingHref: (seq) => `#/s/${this.sid}/f/${seq}` });
    this._spending = new Spending();
    this.element = h("div", { class: "session" },
      this._head, this._controls, this._asks,
      h("section", { class: "columns" }, this._facts, h("div", {}, h("h2", {}, "Live text"), this._live)),
      this._timeline.element,
      h("div", { class: "scrubber" }, h("span", { id: "scrub" }, "Shown moment"), this._range, this._moment, this._back),
      this._spending.element,
      this._lists,
      h("section", {}, h("h2", {}, "Events"), this._list),
    );
    this._changed = () => void this._refresh();
    this._hear = (event) => event.detail.sid === this.sid && this._heard(event.detail);
    this.fleet.addEventListener("frame", this._hear);
    void this._begin();
    return this.element;
  }

  leave() {
    this._left = true;
    this.fleet.removeEventListener("frame", this._hear);
    this._stop?.();
    clearTimeout(this._drawing);
  }

  async _begin() {
    try {
      this.one = await ask({ t: "session.get", sid: this.sid });
      this.sid = this.one.sid;
      document.title = `${clean(this.one.name)} – loopd`;
      this._drawState();
      if (may("read.content")) await this._readPast();
    } catch (refused) {
      if (!refused.code) throw refused;
      fill(this._head, h("h1", {}, refused.code === "not_found" ? "No such session" : "It cannot be shown"), h("p", { class: "bad" }, refused.words));
      return;
    }
    if (this._left) return;
    if (may("read.content")) this._stop = stream({ after: null, sid: this.sid, deltas: true }, (frame) => frame.t === "delta" && this._hearText(frame.text));
    await this._refresh();
  }

  async _readPast() {
    let before = null;
    do {
      const page = await ask({ t: "history.page", sid: this.sid, limit: PAGE, ...(before ? { before } : {}) });
      const known = new Set(this.events.map((event) => event.seq));
      this.events = [...page.events.filter((event) => !known.has(event.seq)), ...this.events];
      before = page.more ? page.events[0]?.seq : null;
      this._drawPast();
    } while (before && this.events.length < EVENTS_MAX && !this._left);
    this.events.sort((a, b) => a.seq - b.seq);
  }

  _heard(event) {
    const last = this.events.at(-1);
    if (!last || event.seq > last.seq) this.events.push(event);
    if (this.events.length > EVENTS_MAX) this.events.splice(0, this.events.length - EVENTS_MAX);
    if (event.k.startsWith("turn.")) this._text = "";
    this._drawing ??= setTimeout(() => {
      this._drawing = null;
      void this._refresh();
    }, DRAW_MS);
  }

  _hearText(text) {
    this._text = (this._text + text).slice(-LIVE_CHARS);
    tell(this._live, clean(this._text));
    this._live.scrollTop = this._live.scrollHeight;
  }

  async _refresh() {
    this._drawPast();
    if (this.cursor !== null) return;
    try {
      this.one = await ask({ t: "session.get", sid: this.sid });
      this.why = await ask({ t: "why", sid: this.sid });
      this.inbox = may("read.content") && this.one.inbox ? (await ask({ t: "inbox.list", sid: this.sid })).envelopes : [];
      this.approvals = (this.one.holds ?? []).some((hold) => hold.kind === "AwaitingApproval") ? (await ask({ t: "approval.list", sid: this.sid })).approvals : [];
    } catch (refused) {
      if (!this._left) note(refused.words ?? String(refused), "bad");
      return;
    }
    if (!this._left) this._drawState();
  }

  // -- any moment -----------------------------------------------------------------------------------

  _scrubbed() {
    const event = this.events[Number(this._range.value)];
    if (!event) return;
    this.cursor = event.seq;
    tell(this._moment, `seq ${event.seq}, ${stamp(event.ts)}, ${event.k}`);
    this._back.disabled = false;
    clearTimeout(this._scrubbing);
    this._scrubbing = setTimeout(async () => {
      const seq = this.cursor;
      try {
        const then = await ask({ t: "session.get", sid: this.sid, at: seq });
        if (this.cursor !== seq) return; // moved on meanwhile
        this.one = then;
        this.why = null;
        this._drawState();
        this._drawPast();
      } catch (refused) {
        note(refused.words ?? String(refused), "bad");
      }
    }, 80);
  }

  _toNow() {
    this.cursor = null;
    this._back.disabled = true;
    tell(this._moment, "now");
    this._range.value = this._range.max;
    void this._refresh();
  }

  // -- draw -----------------------------------------------------------------------------------------

  _drawState() {
    const one = this.one;
    const { mark, word, tone } = standing(one);
    fill(this._head,
      h("h1", {}, h("span", { class: `mark ${tone}`, "aria-hidden": "true" }, mark), " ", clean(one.name), " ", h("span", { class: `badge ${tone}` }, word)),
      h("p", { class: "quiet" }, one.sid, " · ", clean(one.driver?.kind ?? ""), one.driver?.model ? ` · ${clean(one.driver.model)}` : "", " · preset ", clean(one.preset),
        Object.entries(one.labels ?? {}).map(([key, value]) => h("span", { class: "label" }, `${clean(key)}=${clean(value)}`))));
    const held = document.activeElement?.dataset?.key;
    fill(this._controls, this.cursor === null ? [buttons(one), this._proofButton()] : h("p", { class: "quiet" }, "This is the past; controls are back with “Back to now”."));
    if (held) this._controls.querySelector(`[data-key="${held}"]`)?.focus();
    fill(this._facts, this._rows().flatMap(([name, ...value]) => [h("dt", {}, name), h("dd", {}, value)]));
    fill(this._asks, (this.approvals ?? []).map((request) =>
      h("div", { class: "asks" }, h("p", {}, h("b", {}, "It asks: "), clean(request.tool ?? request.id), " ", h("code", {}, line(request.args ?? request.what ?? "", 400)), " until ", live("time-left", request.until_ms ?? request.deadline_ms ?? null)),
        may("approve") && h("div", { class: "buttons" }, h("button", { class: "primary", onclick: () => approve(one, request, "allow") }, "Allow"), h("button", { class: "danger", onclick: () => approve(one, request, "deny") }, "Deny")))));
    this._drawLists();
  }

  _rows() {
    const one = this.one;
    const rows = [];
    if (one.status !== "live") rows.push(["Ended", `${one.status}: ${clean(one.stop_reason)}`]);
    for (const hold of one.holds ?? [])
      rows.push(["Held by", h("span", { class: hold.kind === "Degeneration" ? "bad" : "warn" }, holdWords(hold)), " until ", live("time-left", hold.until_ms ?? null)]);
    if (this.why?.house) rows.push(["House", `${this.why.house}: no session admits work`]);
    if (one.goal) rows.push(["Goal", h("b", { class: one.goal.status === "infeasible" ? "bad" : "" }, one.goal.status), ": ", clean(one.goal.text), one.goal.note ? ` (${clean(one.goal.note)})` : ""]);
    if (one.turn) rows.push(["Turn", h("a", { href: `#/s/${this.sid}/t/${one.turn.n}` }, `${one.turn.n}`), ` by ${one.turn.trigger}, ${one.turn.steps ?? 0} steps, began `, live("time-ago", one.turn.started_ms)]);
    if (this.why?.next?.at_ms) rows.push(["Next", `${this.why.next.what.replace("_", " ")} `, live("time-left", this.why.next.at_ms)]);
    rows.push(["So far", `${one.turns} turns, ${one.steps} steps, ${short(tokens(one))} tokens (${short(one.tokens?.barren ?? 0)} barren)`]);
    rows.push(["Streaks", `repeat ${one.repeat_streak}, barren ${one.barren_streak}, rung ${one.rung ?? "ok"}`]);
    rows.push(["Progress", live("time-ago", one.progress_ms)]);
    if (one.parent) rows.push(["Parent", h("a", { href: `#/s/${one.parent}` }, one.parent)]);
    if (one.workspace) rows.push(["Workspace", h("code", {}, clean(one.workspace))]);
    return rows;
  }

  _drawLists() {
    const one = this.one;
    const list = (title, items) => items.length > 0 && h("section", {}, h("h2", {}, title), h("ul", {}, items));
    fill(this._lists,
      list("Inbox", (this.inbox ?? []).map((envelope) => h("li", {}, h("b", {}, envelope.source), " ", line(envelope.text, 300), envelope.by?.length ? h("span", { class: "warn" }, ` waits for ${envelope.by.join(", ")}`) : ""))),
      list("Crons", (one.crons ?? []).map((job) => h("li", {}, h("b", {}, clean(job.job)), " ", h("code", {}, clean(job.expr)), " ", line(job.text, 120), " ", job.paused ? h("span", { class: "warn" }, "paused") : live("time-left", job.next_ms ?? undefined)))),
      list("Wake-ups", (one.wakes ?? []).map((wake) => h("li", {}, clean(wake.note || wake.id), " ", live("time-left", wake.due_ms)))));
  }

  _drawPast() {
    if (this._left) return;
    const past = told(this.events);
    this._timeline.draw(past, this.cursor);
    this._spending.draw(past);
    const most = String(Math.max(0, this.events.length - 1));
    if (this._range.max !== most) {
      this._range.max = most;
      if (this.cursor === null) this._range.value = most;
    }
    const key = `${this.events.at(-1)?.seq}:${this.cursor}`;
    if (key === this._listKey) return;
    this._listKey = key;
    const until = this.cursor === null ? this.events : this.events.filter((event) => event.seq <= this.cursor);
    fill(this._list, until.slice(-LISTED).reverse().map((event) =>
      h("li", { class: event.k.startsWith("degeneration") ? "found" : "" }, h("time", {}, stamp(event.ts)), " ", h("b", { class: `kind ${event.k.split(".")[0]}` }, event.k), " ",
        event.k === "degeneration.detected" ? h("a", { href: `#/s/${this.sid}/f/${event.seq}` }, eventWords(event)) : eventWords(event))));
  }

  _proofButton() {
    const since = this.events.findLast((event) => event.k === "gate.changed" && event.b?.added?.kind === "UserSuspend");
    const suspended = (this.one.holds ?? []).some((hold) => hold.kind === "UserSuspend");
    if (!since || !suspended) return null;
    return h("button", { "data-key": "p", "aria-keyshortcuts": "p", onclick: () => this._prove(since) }, "Prove it", h("kbd", {}, "p"));
  }

  async _prove(since) {
    try {
      const proof = await ask({ t: "verify", sid: this.sid, suspended_since: since.seq });
      const verdict = proof.ok ? `Proven on the journal: no turn began in the ${span(now() - since.ts)} since seq ${since.seq}.` : "NOT proven; see below.";
      await showText("Proof of the suspension", h("div", {}, h("p", { class: proof.ok ? "good" : "bad" }, verdict), h("pre", { tabindex: "0" }, JSON.stringify(proof, null, 2))));
    } catch (refused) {
      note(refused.words ?? String(refused), "bad");
    }
  }
}
