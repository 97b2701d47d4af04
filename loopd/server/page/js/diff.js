// What the model saw in one turn and not in another, message by message.

import { clean, h } from "./dom.js";
import { text } from "./turn.js";

/** The answer to `turn.diff` as a list; runs of equal messages are one line. */
export function changes(found, a, b) {
  if (found.same) return h("p", { class: "good" }, `Turn ${a} and turn ${b} saw exactly the same.`);
  const rows = (found.ops ?? []).map((op) => {
    if (op.op === "same") return h("p", { class: "quiet same" }, `${op.a[1] - op.a[0] + 1} equal messages`);
    if (op.op === "changed") return h("div", { class: "beside" }, message(op.before, "−", "removed"), message(op.after, "+", "added"));
    return op.op === "removed" ? message(op.message, "−", "removed") : message(op.message, "+", "added");
  });
  return [h("p", { class: "quiet" }, `− only turn ${a} saw, + only turn ${b} saw`), rows];
}

function message(one, sign, tone) {
  return h("article", { class: `message ${clean(one.role)} ${tone}` },
    h("h3", {}, `${sign} ${clean(one.role)} `, h("span", { class: "quiet" }, clean(one.source ?? ""))),
    text(one.text ?? ""),
    (one.calls ?? []).map((call) => h("p", {}, h("b", {}, clean(call.name)), " ", h("code", {}, clean(JSON.stringify(call.args ?? {}))))));
}
