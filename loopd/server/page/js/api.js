// The daemon: commands, and the log as a stream that survives restarts. The cookie carries the token;
// no script ever sees it again.

import { setClock } from "./time.js";

/** A refusal, with the daemon's own code and words. */
export class Refused extends Error {
  constructor(code, detail, status, path) {
    super(detail);
    this.code = code;
    this.status = status;
    this.path = path;
  }

  get words() {
    return `${this.code}: ${this.message}${this.path ? ` (${this.path})` : ""}`;
  }
}

let session = null;
let number = 0;

/** Who we are, or null: `{principal, scopes, csrf, head, now_ms}`. */
export function me() {
  return session;
}

/** Whether this principal has a scope; the daemon decides all the same. */
export function may(scope) {
  return session !== null && (session.scopes.includes(scope) || session.scopes.includes("admin"));
}

async function answer(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Refused("unavailable", "the daemon does not answer", 0);
  }
  const body = response.status === 204 ? null : await response.json().catch(() => null);
  if (response.ok) return body;
  const code = body?.code ?? (response.status === 401 ? "unauthenticated" : `http_${response.status}`);
  throw new Refused(code, body?.detail ?? response.statusText, response.status, body?.path);
}

function begun(given) {
  session = given;
  if (given?.now_ms) setClock(given.now_ms);
  return given;
}

/** Take up the cookie's login; null when there is none. */
export async function resume() {
  try {
    return begun(await answer("/v1/login"));
  } catch (refused) {
    if (refused.status === 401 || refused.status === 403) return begun(null);
    throw refused;
  }
}

/** Log in with a token. */
export async function login(token) {
  const headers = { "content-type": "application/json" };
  return begun(await answer("/v1/login", { method: "POST", headers, body: JSON.stringify({ token }) }));
}

/** Forget the login. */
export async function logout() {
  await answer("/v1/login", { method: "DELETE", headers: { "x-csrf-token": session?.csrf ?? "" } });
  begun(null);
}

/** Carry out a command; its result. Changes get a key, so a repeated request happens once. */
export async function ask(command) {
  const frame = { t: "cmd", id: String(++number), key: randomKey(), c: command };
  const headers = { "content-type": "application/json", "x-csrf-token": session?.csrf ?? "" };
  const ok = await answer("/v1/commands", { method: "POST", headers, body: JSON.stringify(frame) });
  return { ...ok.r, seq: ok.r.seq ?? ok.seq };
}

/**
 * Frames of the log after `after`, for ever: the browser takes the stream up again with the cursor of
 * the last event, so none is missed. `state` hears true and false as the connection comes and goes.
 * Returns a function that ends it.
 */
export function stream({ after, sid = null, deltas = false }, hear, state = () => {}) {
  let source = null;
  let last = after;
  let pause = 500;
  let timer = null;
  const open = () => {
    const query = new URLSearchParams();
    if (last !== null && last !== undefined) query.set("after", String(last));
    if (sid) query.set("sid", sid);
    if (deltas) query.set("deltas", "1");
    source = new EventSource(`/v1/events?${query}`);
    source.onopen = () => {
      pause = 500;
      state(true);
    };
    source.onmessage = (message) => {
      const frame = JSON.parse(message.data);
      if (frame.t === "ev") last = frame.seq;
      hear(frame);
    };
    source.onerror = () => {
      state(false);
      if (source.readyState === EventSource.CLOSED) {
        timer = setTimeout(open, pause); // refused, not broken: the browser itself would not try again
        pause = Math.min(2 * pause, 10_000);
      }
    };
  };
  open();
  return () => {
    clearTimeout(timer);
    source?.close();
  };
}

function randomKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
