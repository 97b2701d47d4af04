// What a person may do with a session, with a reason and, where it cannot be taken back, a question.

import { ask, may } from "./api.js";
import { askWords, confirmed, note } from "./dialogs.js";
import { clean, h } from "./dom.js";

async function carryOut(command, words) {
  try {
    const answer = await ask(command);
    note(words(answer));
    return answer;
  } catch (refused) {
    note(refused.words ?? String(refused), "bad");
    return null;
  }
}

export async function suspend(one) {
  const reason = await askWords(`Suspend ${clean(one.name)}?`, { hint: "why, for whoever reads it tomorrow", action: "Suspend" });
  if (reason === null) return;
  await carryOut({ t: "suspend", sid: one.sid, reason }, (r) => {
    const will = r.turn?.will ? `; turn ${r.turn.n} will ${r.turn.will}` : "";
    return `${clean(one.name)} is suspended; proof from seq ${r.seq}${will}`;
  });
}

export async function unsuspend(one) {
  await carryOut({ t: "unsuspend", sid: one.sid }, (r) => `${clean(one.name)} is not suspended any more (seq ${r.seq})`);
}

export async function interrupt(one) {
  const sure = await confirmed(`Interrupt ${clean(one.name)}?`, "The running turn is cut at once; what it streamed is kept.", { action: "Interrupt" });
  if (sure) await carryOut({ t: "interrupt", sid: one.sid }, () => `${clean(one.name)} is interrupted`);
}

export async function send(one) {
  const text = await askWords(`Message to ${clean(one.name)}`, { hint: "what it should know; Ctrl+Enter sends", action: "Send", needed: true, rows: 5 });
  if (!text) return;
  await carryOut({ t: "send", sid: one.sid, text }, (r) =>
    r.held ? `durable as ${r.id}; it waits for ${(r.by ?? []).join(", ")}` : `durable as ${r.id}`,
  );
}

export async function openGate(one) {
  const kinds = (one.holds ?? []).map((hold) => hold.kind).join(", ");
  const reason = await askWords(`Open the gate of ${clean(one.name)}?`, { hint: `removes ${kinds}; why?`, action: "Open the gate", tone: "danger" });
  if (reason !== null) await carryOut({ t: "gate.open", sid: one.sid, reason }, (r) => `the gate is ${r.gate ?? "open"}`);
}

export async function setGoal(one) {
  const text = await askWords(`Goal of ${clean(one.name)}`, { hint: "what it shall reach; Ctrl+Enter sets it", action: "Set the goal", needed: true, rows: 4 });
  if (text) await carryOut({ t: "goal.set", sid: one.sid, text }, () => "the goal is set");
}

export async function switchGoal(one, to) {
  await carryOut({ t: `goal.${to}`, sid: one.sid }, () => `the goal is ${to === "pause" ? "paused" : "active"}`);
}

export async function freeze(frozen) {
  if (frozen) return void (await carryOut({ t: "daemon.unfreeze" }, () => "not frozen: sessions run as their own gates say"));
  const reason = await askWords("Freeze the whole house?", { hint: "no session admits work until it is unfrozen; why?", action: "Freeze", tone: "danger" });
  if (reason !== null) await carryOut({ t: "daemon.freeze", reason }, () => "frozen: no session admits work");
}

/** Answer an agent that asks for approval. */
export async function approve(one, request, answer) {
  const reason = await askWords(`${answer === "allow" ? "Allow" : "Deny"} ${clean(request.tool ?? "it")}?`, {
    hint: "why",
    action: answer === "allow" ? "Allow" : "Deny",
    tone: answer === "allow" ? "primary" : "danger",
  });
  if (reason === null) return;
  await carryOut({ t: "approval.answer", sid: one.sid, id: request.id, answer, reason }, () => `${answer === "allow" ? "allowed" : "denied"}`);
}

/** The buttons for a session; those it may not press are not there. */
export function buttons(one) {
  if (one.status !== "live") return [];
  const suspended = (one.holds ?? []).some((hold) => hold.kind === "UserSuspend");
  const paused = one.goal?.status === "paused";
  const given = [
    may("control") && !suspended && ["Suspend", "s", () => suspend(one), "primary"],
    may("control") && suspended && ["Unsuspend", "u", () => unsuspend(one), "primary"],
    may("control") && one.turn && ["Interrupt", "i", () => interrupt(one), "danger"],
    may("send") && ["Message", "m", () => send(one), ""],
    may("control") && ["Goal", "g", () => setGoal(one), ""],
    may("control") && one.goal && ["active", "paused"].includes(one.goal.status) && [paused ? "Resume goal" : "Pause goal", null, () => switchGoal(one, paused ? "resume" : "pause"), ""],
    may("control") && one.holds?.length && ["Open gate", "o", () => openGate(one), ""],
  ].filter(Boolean);
  return given.map(([label, key, act, tone]) =>
    h("button", { class: tone, "data-key": key, "aria-keyshortcuts": key, onclick: act }, label, key && h("kbd", {}, key)),
  );
}

