// A message above the page, with something to do about it: it stays while the pointer or the keyboard is on it.
import { byId, el } from "./dom.js";

const STAY_MS = 12000;
let timer = 0;

// action: { name, run }, or none. `stays`: until the reader closes it.
export function toast(words, { action = null, stays = false } = {}) {
  const box = byId("toast");
  const close = () => {
    clearTimeout(timer);
    box.hidden = true;
    box.replaceChildren();
  };
  const run = () => {
    close();
    action.run();
  };
  clearTimeout(timer);
  const buttons = [el("button", { type: "button", class: "quiet small", "aria-label": "Close this message", onclick: close }, "✕")];
  if (action) buttons.unshift(el("button", { type: "button", class: "small", onclick: run }, action.name));
  box.replaceChildren(el("p", { role: "status" }, words), ...buttons);
  box.hidden = false;
  // Beside an open dialog nothing can be pressed; so it stands inside.
  const dialog = document.querySelector("dialog[open]");
  (dialog ?? document.body).append(box);
  dialog?.addEventListener("close", () => document.body.append(box), { once: true });
  if (stays) return;
  const again = () => {
    clearTimeout(timer);
    timer = setTimeout(() => (box.matches(":hover, :focus-within") ? again() : close()), STAY_MS);
  };
  again();
}
