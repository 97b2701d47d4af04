// Questions in a window of the browser's own: it keeps the focus inside and Escape closes it.

import { fill, h } from "./dom.js";

function shown(title, body, buttons) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), body);
    const foot = h("div", { class: "buttons" });
    fill(foot, buttons.map(([label, value, tone]) => h("button", { class: tone, onclick: () => dialog.close(value()) }, label)));
    dialog.append(foot);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "" ? null : JSON.parse(dialog.returnValue));
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

const wrapped = (value) => JSON.stringify({ value });

/** Ask for words; null when the person leaves it. `needed`: an empty answer does nothing. */
export async function askWords(title, { hint = "", action = "Do it", tone = "primary", needed = false, rows = 1 } = {}) {
  const field = h(rows > 1 ? "textarea" : "input", { "aria-label": hint || title, placeholder: hint, rows: rows > 1 ? rows : null });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing || (rows > 1 && !event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    if (!needed || field.value.trim()) field.closest("dialog").close(wrapped(field.value.trim()));
  });
  const take = () => (needed && !field.value.trim() ? "" : wrapped(field.value.trim()));
  const result = await shown(title, field, [["Leave it", () => "", ""], [action, take, tone]]);
  return result === null ? null : result.value;
}

/** Yes or no. */
export async function confirmed(title, text, { action = "Do it", tone = "danger" } = {}) {
  const result = await shown(title, h("p", {}, text), [["Leave it", () => "", ""], [action, () => wrapped(true), tone]]);
  return result !== null;
}

/** Something to read. */
export async function told(title, body) {
  await shown(title, body, [["Close", () => "", "primary"]]);
}

let fading = 0;

/** One line at the foot of the page about what came of something. */
export function note(text, tone = "good") {
  const notes = document.getElementById("notes");
  fill(notes, h("p", { class: tone }, text));
  clearTimeout(fading);
  fading = setTimeout(() => fill(notes), tone === "bad" ? 15_000 : 6_000);
}
