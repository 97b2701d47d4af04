// How a session stands and what an event says, in words. Every colour has a word or a mark beside it.

import { clean, line } from "./dom.js";
import { span, took } from "./time.js";

export const REPEAT_NOTABLE = 3;
export const BARREN_NOTABLE = 10;

const kinds = (one) => (one.holds ?? []).map((hold) => hold.kind);

/** Whether it goes in circles by its own counters. */
export function sick(one) {
  return (one.repeat_streak ?? 0) >= REPEAT_NOTABLE || (one.barren_streak ?? 0) >= BARREN_NOTABLE;
}

/** `{mark, word, tone}`: one sign, the state in a word, and its colour. */
export function standing(one) {
  if (one.status !== "live") {
    const bad = one.status.startsWith("aborted");
    return { mark: bad ? "✗" : "✓", word: one.status, tone: bad ? "bad" : "quiet" };
  }
  if (one.imported) return { mark: "⇣", word: "imported", tone: "quiet" };
  if (kinds(one).includes("UserSuspend")) return { mark: "‖", word: "suspended", tone: "held" };
  if (one.goal?.status === "infeasible") return { mark: "!", word: "infeasible", tone: "bad" };
  if (kinds(one).some((kind) => kind === "Degeneration" || kind === "CrashLoop"))
    return { mark: "!", word: "closed", tone: "bad" };
  if (kinds(one).includes("AwaitingApproval")) return { mark: "?", word: "asks", tone: "warn" };
  if (one.turn) return { mark: "▶", word: "running", tone: sick(one) ? "warn" : "good" };
  if (sick(one)) return { mark: "!", word: kinds(one).length ? "closed" : "circling", tone: "warn" };
  if (kinds(one).length) return { mark: "·", word: "closed", tone: "warn" };
  const busy = one.goal?.status === "active" || one.inbox;
  return { mark: "◦", word: busy ? "open" : "idle", tone: "quiet" };
}

/** Order of need: 0 needs a person first. */
export function need(one) {
  const { mark, tone } = standing(one);
  if (one.status !== "live") return 6;
  if (tone === "bad") return 0;
  if (mark === "?") return 1;
  if (mark === "!") return 2;
  return { "▶": 3, "‖": 4, "·": 5 }[mark] ?? 5;
}

/** One hold: `UserSuspend by uid:1000: cost review`. */
export function holdWords(hold) {
  return `${hold.kind}${hold.by ? ` by ${clean(hold.by)}` : ""}${hold.reason ? `: ${line(hold.reason, 300)}` : ""}`;
}

/** Why it is in that state. */
export function because(one) {
  if (one.status !== "live") return clean(one.stop_reason || "ended");
  if (one.holds?.length) return one.holds.map(holdWords).join("; ");
  if (one.turn) return `turn ${one.turn.n}, ${one.turn.trigger}`;
  if (!one.goal) return "no goal";
  return one.goal.status === "active" ? "goal active" : `goal ${one.goal.status}`;
}

/** The last deadline of its holds: a moment, null for “you lift it”, undefined for none. */
export function ends(one) {
  if (one.status !== "live" || !one.holds?.length) return undefined;
  const moments = one.holds.map((hold) => hold.until_ms ?? null);
  return moments.includes(null) ? null : Math.max(...moments);
}

/** Tokens so far. */
export function tokens(one) {
  return one.tokens?.total ?? (one.tokens?.input ?? 0) + (one.tokens?.output ?? 0);
}

const quote = (text) => (text ? `“${line(text, 300)}”` : "");
const join = (...parts) => parts.filter(Boolean).join(" ");

const WORDS = {
  "session.created": (b) => `${b.name} with driver ${b.driver?.kind}, preset ${b.preset}`,
  "session.ended": (b) => join(`${b.status}: ${b.stop_reason}`, b.rule && `by rule ${b.rule}`, b.explanation),
  "session.resumed": (b) => join(`run ${b.run} by ${b.by}`, b.reason),
  "issue.written": (b) => join(b.id, b.status, b.rule ?? b.stop_reason, b.loop),
  "envelope.accepted": (b) => join(b.source, b.job && `from ${b.job}`, quote(b.text)),
  "envelope.held": (b) => `${b.id} waits for ${(b.by ?? []).join(", ")}`,
  "envelope.coalesced": (b) => `${b.id} into ${b.into}, which stands for ${b.count}`,
  "envelope.dropped": (b) => `${b.id}: ${b.reason}`,
  "gate.changed": (b) =>
    join(`${b.gate} by ${b.cause}`, b.added && `+ ${holdWords(b.added)}`, b.removed?.length && `− ${b.removed.join(", ")}`),
  "degeneration.detected": (b) =>
    join(`${b.rule} → ${b.verdict}: ${b.score} of ${b.threshold} ${b.unit ?? "turns"}.`, (b.evidence ?? [])[0]),
  "turn.started": (b) => join(`${b.n} by ${b.trigger}`, b.passing && "passing a hold"),
  "turn.step": (b) => join(`${b.n}.${b.step}`, quote(b.text), (b.calls ?? []).map(callWords).join(" ")),
  "turn.completed": (b) => join(`${b.n} ${b.outcome} in ${took(b.duration_ms ?? 0)}`, b.error),
  "turn.interrupted": (b) => join(`${b.n} by ${b.cause}`, quote(b.partial)),
  "provider.retrying": (b) => `${b.cause}, attempt ${b.attempt}, again in ${span(b.delay_ms ?? 0)}`,
  "goal.changed": (b) => join(`${b.status} by ${b.origin}`, quote(b.text), b.note),
  "agent.reported": (b) => join(b.phase && `phase ${b.phase}`, b.metric && `${b.metric} = ${(b.value_micro ?? 0) / 1e6}`),
  "cron.occurrence": (b) => join(`${b.job} ${b.result}`, b.late_ms && `${span(b.late_ms)} late`),
  "cron.changed": (b) => join(b.job, b.change, b.expr),
  "command.denied": (b) => `${b.principal} asked for ${b.cmd}: ${b.code}`,
};

/** A tool call in a few characters: `bash ✓`. */
export function callWords(call) {
  return `${clean(call.name)} ${call.ok === true ? "✓" : call.ok === false ? "✗" : "?"}`;
}

/** What an event says. A kind that is not known, also one of a newer daemon, is shown as JSON. */
export function eventWords(event) {
  const body = event.b ?? {};
  const say = WORDS[event.k];
  if (say) return line(say(body), 400);
  const { k, ...rest } = body;
  return line(JSON.stringify(rest), 400);
}
