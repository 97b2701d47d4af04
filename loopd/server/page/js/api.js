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

/** Take up the cookie's login; null when there is none. */
export async function resume() {
  try {
    session = await answer("/v1/me");
    return await welcomed();
  } catch (refused) {
    if (refused.status === 401 || refused.status === 403) return (session = null);
    throw refused;
  }
}

async function welcomed() {
  const { head, now_ms } = await answer("/v1/welcome");
  setClock(now_ms);
  session = { ...session, head };
  return session;
}

/** Log in with a token. */
export async function login(token) {
  const headers = { "content-type": "application/json" };
  session = await answer("/v1/login", { method: "POST", headers, body: JSON.stringify({ token }) });
  return welcomed();
}

/** Forget the login. */
export async function logout() {
  await answer("/v1/logout", { method: "POST", headers: { "x-csrf-token": session?.csrf ?? "" } });
  session = null;
}

const READS = new Set([
  "session.list", "session.get", "daemon.status", "history.page", "turn.get", "turn.diff", "why", "inbox.list", "approval.list", "verify",
]);

/** Carry out a command; its result. Changes get a key, so a repeated request happens once. */
export async function ask(command) {
  const headers = { "content-type": "application/json", "x-csrf-token": session?.csrf ?? "" };
  if (!READS.has(command.t)) headers["idempotency-key"] = randomKey();
  const ok = await answer("/v1/commands", { method: "POST", headers, body: JSON.stringify(command) });
  return { ...ok.r, seq: ok.r.seq ?? ok.seq };
}

const PAUSE_MS = 400;
const PAUSE_MAX_MS = 8_000;
const SUB = "page";

/**
 * Frames of the log behind the cursor `after` (`{log, seq}`; null: from now on), for ever. When the connection
 * breaks, a new one goes on behind the last event, so none is missed. `state` hears true and false.
 * A WebSocket, because a browser opens only six streams of events to one server, over all its tabs.
 * Returns a function that ends it.
 */
export function stream({ after, sid = null, deltas = false }, hear, state = () => {}) {
  let cursor = after;
  let socket = null;
  let pause = PAUSE_MS;
  let timer = null;
  let over = false;

  function open() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(`${scheme}//${location.host}/v1/ws`);
    socket.onopen = () => say({ t: "hello", v: [1, 1], client: { name: "page" }, want: deltas ? ["delta"] : [] });
    socket.onmessage = (message) => message.data.split("\n").forEach((part) => part && take(JSON.parse(part)));
    socket.onclose = () => {
      if (over) return;
      state(false);
      timer = setTimeout(open, pause);
      pause = Math.min(2 * pause, PAUSE_MAX_MS);
    };
  }

  const say = (frame) => socket.send(JSON.stringify(frame) + "\n");

  function take(frame) {
    switch (frame.t) {
      case "welcome":
        setClock(frame.now_ms);
        cursor ??= frame.head;
        say({ t: "sub", id: SUB, after: cursor, sel: sid ? { sids: [sid] } : {} });
        break;
      case "subd":
        pause = PAUSE_MS;
        state(true);
        break;
      case "pong":
        if (frame.cursors?.[SUB]) cursor = { log: frame.head.log, seq: Math.max(frame.cursors[SUB], cursor.log === frame.head.log ? cursor.seq : 0) };
        break;
      case "gap":
        cursor = { log: frame.log || cursor.log, seq: frame.next - 1 };
        hear(frame);
        break;
      case "ev":
        cursor = { log: cursor.log, seq: frame.seq };
        hear(frame);
        break;
      default:
        hear(frame);
    }
  }

  open();
  return () => {
    over = true;
    clearTimeout(timer);
    if (socket.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close(); // closed earlier, the browser complains
    else socket.close();
  };
}

function randomKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
