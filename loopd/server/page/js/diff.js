// What the model saw in one turn and not in another, message by message.

import { clean, h, line } from "./dom.js";
import { text } from "./turn.js";

const SIGNS = { same: " ", "=": " ", equal: " ", added: "+", "+": "+", insert: "+", removed: "−", "-": "−", delete: "−" };

/** The answer to `turn.diff` as a list; runs of equal messages are folded. */
export function changes(found, a, b) {
  if (found.same) return h("p", { class: "good" }, `Turn ${a} and turn ${b} saw exactly the same.`);
  const rows = [];
  let equal = [];
  const flush = () => {
    if (equal.length) rows.push(h("details", { class: "same" }, h("summary", {}, `${equal.length} equal messages`), equal));
    equal = [];
  };
  for (const op of found.ops ?? []) {
    const sign = SIGNS[op.op] ?? "?";
    const message = op.message ?? op;
    const row = h("article", { class: `message ${clean(message.role ?? "")} ${sign === "+" ? "added" : sign === "−" ? "removed" : ""}` },
      h("h3", {}, `${sign} ${clean(message.role ?? "")} `, h("span", { class: "quiet" }, line(message.source ?? "", 40))), text(message.text ?? ""));
    if (sign === " ") equal.push(row);
    else {
      flush();
      rows.push(row);
    }
  }
  flush();
  return [h("p", { class: "quiet" }, `− only turn ${a} saw, + only turn ${b} saw`), rows];
}
