// Moments and durations for people, and two elements that keep themselves right: one ticker serves all.

import { tell } from "./dom.js";

let ahead = 0; // how far the daemon's clock is ahead of this one, ms

/** Learn what the daemon's clock says. */
export function setClock(nowMs) {
  ahead = nowMs - Date.now();
}

/** The daemon's time, ms. */
export function now() {
  return Date.now() + ahead;
}

/** `0.4s`, `59s`, `3m 20s`, `2h 5m`, `3d 4h`. */
export function span(ms) {
  if (ms < 0) return `-${span(-ms)}`;
  if (ms < 10_000) return `${(Math.round(ms / 100) / 10).toString()}s`;
  const units = [["d", 86_400_000, "h", 3_600_000], ["h", 3_600_000, "m", 60_000], ["m", 60_000, "s", 1_000]];
  for (const [big, bigMs, small, smallMs] of units) {
    if (ms >= bigMs) {
      const rest = Math.floor((ms % bigMs) / smallMs);
      return `${Math.floor(ms / bigMs)}${big}${rest ? ` ${rest}${small}` : ""}`;
    }
  }
  return `${Math.floor(ms / 1_000)}s`;
}

/** How long something took: milliseconds count below a second. */
export function took(ms) {
  return ms < 1_000 ? `${ms}ms` : span(ms);
}

/** `18:05`, or with its date when it is not of these twelve hours. */
export function clock(ms) {
  const at = new Date(ms);
  const time = at.toTimeString().slice(0, 5);
  if (Math.abs(ms - now()) < 43_200_000) return time;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** `2026-11-22 18:05:09` in local time. */
export function stamp(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${at.toTimeString().slice(0, 8)}`;
}

function two(number) {
  return String(number).padStart(2, "0");
}

/** A count in a few characters: `812`, `1.4k`, `38k`, `2.1M`. */
export function short(number) {
  for (const [unit, size] of [["M", 1_000_000], ["k", 1_000]]) {
    if (number >= size) {
      const shown = number < 10 * size ? (Math.floor(number / (size / 10)) / 10).toString() : Math.floor(number / size);
      return `${shown}${unit}`;
    }
  }
  return String(number);
}

const ticking = new Set();
setInterval(() => ticking.forEach((element) => element.tick()), 1_000);

class Ticking extends HTMLElement {
  connectedCallback() {
    ticking.add(this);
    this.tick();
  }

  disconnectedCallback() {
    ticking.delete(this);
  }

  /** The moment, ms; null for none. */
  set at(value) {
    this.moment = value;
    if (this.isConnected) this.tick();
  }
}

/** Until when: `18:05 (in 58m)`; no moment is “you lift it”. */
export class TimeLeft extends Ticking {
  tick() {
    if (this.moment === undefined) return tell(this, "");
    if (this.moment === null) return tell(this, "you lift it");
    const left = this.moment - now();
    tell(this, `${clock(this.moment)} (${left >= 0 ? `in ${span(left)}` : `${span(-left)} overdue`})`);
  }
}

/** How long ago. */
export class TimeAgo extends Ticking {
  tick() {
    tell(this, this.moment ? `${span(Math.max(0, now() - this.moment))} ago` : "never");
  }
}

customElements.define("time-left", TimeLeft);
customElements.define("time-ago", TimeAgo);

/** A `<time-left>` or `<time-ago>` for a moment. */
export function live(tag, moment) {
  const element = document.createElement(tag);
  element.at = moment;
  return element;
}
