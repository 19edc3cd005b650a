// Shortcuts. Those of a single character can be switched off, and never act while the reader types.
import { byId, el } from "./dom.js";

const STORE = "dsmoe.single-keys";

const isTyping = (node) => node.matches?.("textarea, select, input:not([type=checkbox], [type=radio], [type=range])");

// shortcuts: [{ keys: "E", says: "Show or hide the atlas", run }]; keys is one character, "Esc" or "Alt+X".
// Those without `run` are only listed.
export function startKeyboard(shortcuts) {
  const single = byId("single-keys");
  try {
    single.checked = localStorage.getItem(STORE) !== "off";
  } catch {
    // on, then
  }
  single.addEventListener("change", () => {
    try {
      localStorage.setItem(STORE, single.checked ? "on" : "off");
    } catch {
      // until the page is closed
    }
  });
  byId("keys").replaceChildren(
    ...shortcuts.map(({ keys, says }) => {
      const caps = keys.split(" ").map((key) => el("kbd", {}, key));
      return el("div", {}, el("dt", {}, ...caps), el("dd", {}, says));
    }),
  );
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
    // With Alt the key may stand for another character; its place on the keyboard says which letter was meant.
    const plain = event.key === "Escape" ? "Esc" : event.key.toUpperCase();
    const pressed = event.altKey ? `Alt+${event.code.replace("Key", "")}` : plain;
    if (pressed.length === 1 && (!single.checked || isTyping(event.target))) return;
    const shortcut = shortcuts.find(({ keys, run }) => run && keys === pressed);
    if (shortcut && shortcut.run() !== false) event.preventDefault();
  });
}
