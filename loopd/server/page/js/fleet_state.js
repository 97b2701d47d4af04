// What the page knows of all sessions. Events say which ones changed; those are asked for again, a few
// times a second at most, so a busy log costs no more than a quiet one.

import { ask, stream } from "./api.js";

const GATHER_MS = 400;
const FEED_MAX = 200;
const PAGE = 200;

export class Fleet extends EventTarget {
  constructor() {
    super();
    this.sessions = new Map();
    this.status = {};
    this.feed = [];
    this.connected = false;
    this.ended = false;
    this._dirty = new Set();
    this._timer = null;
    this._busy = false;
    this._stop = null;
  }

  /** Read everything, then follow the log from `head`. */
  async begin(head) {
    this._stop = stream(
      { after: head },
      (frame) => this._heard(frame),
      (up) => this._linked(up),
    );
    await this.reload();
  }

  end() {
    this._stop?.();
    clearTimeout(this._timer);
  }

  /** Read all sessions again; ended ones too when `ended` says so. */
  async reload() {
    const found = await pages({ t: "session.list", selector: { ended: this.ended } });
    this.sessions = new Map(found.map((one) => [one.sid, one]));
    this.status = await ask({ t: "daemon.status" });
    this._tell("sessions");
  }

  name(sid) {
    return this.sessions.get(sid)?.name ?? sid ?? "–";
  }

  _heard(frame) {
    if (frame.t === "ev") {
      this.feed.push(frame);
      if (this.feed.length > FEED_MAX) this.feed.shift();
      if (frame.sid) this._dirty.add(frame.sid);
      else this._daemon = true;
      this._soon();
      this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
    } else if (frame.t === "gap") {
      this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
      void this.reload().catch(() => {});
    }
  }

  _linked(up) {
    if (up && !this.connected && this._wasDown) void this.reload().catch(() => {});
    this._wasDown = !up;
    this.connected = up;
    this._tell("link");
  }

  _soon() {
    this._timer ??= setTimeout(() => this._ask(), GATHER_MS);
  }

  async _ask() {
    this._timer = null;
    if (this._busy) return this._soon();
    this._busy = true;
    const sids = [...this._dirty].slice(0, PAGE);
    sids.forEach((sid) => this._dirty.delete(sid));
    try {
      if (this._daemon || sids.length) this.status = await ask({ t: "daemon.status" });
      this._daemon = false;
      if (sids.length) {
        const found = await ask({ t: "session.list", selector: { sids, ended: true } });
        for (const one of found.sessions) {
          if (one.status === "live" || this.ended || this.sessions.has(one.sid)) this.sessions.set(one.sid, one);
        }
      }
      this._tell("sessions");
    } catch {
      sids.forEach((sid) => this._dirty.add(sid)); // asked again with the next event or connection
    } finally {
      this._busy = false;
      if (this._dirty.size && this.connected) this._soon();
    }
  }

  _tell(what) {
    this.dispatchEvent(new Event(what));
  }
}

/** Every session on every page of an answer. */
export async function pages(command) {
  const found = [];
  let after = null;
  do {
    const page = await ask(after ? { ...command, after } : command);
    found.push(...page.sessions);
    after = page.next;
  } while (after);
  return found;
}
