// Elements from data. Strings become text nodes, never markup: this is the only place that makes elements.

// el("button", { class: "small", type: "button", onclick: f }, "Copy")
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const byId = (id) => document.getElementById(id);

// For readers of the screen: said once, politely.
export function announce(text) {
  byId("status").textContent = text;
}

// Copies, and says so on the button. Without access to the clipboard (plain http beyond this machine) `shown` is selected.
export async function copyText(text, button, shown) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied");
    button.dataset.said = "Copied";
  } catch {
    getSelection().selectAllChildren(shown);
    announce("Selected");
    button.dataset.said = "Selected";
  }
  if (name === "") return void setTimeout(() => delete button.dataset.said, 1500);
  button.textContent = button.dataset.said;
  setTimeout(() => {
    if (button.textContent === button.dataset.said) button.textContent = name;
  }, 1500);
}

export const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

// 0:07, 12:03, 3:04:05
export function durationText(seconds) {
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

// A token as one can see it: blanks and line breaks shown, in quotation marks.
export function quoted(text) {
  const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥");
  return shown === "" ? "(part of a character)" : `“${shown.replace(/^ | $/g, "␣")}”`;
}

export const gateText = (gate) => (gate === undefined ? "" : gate.toFixed(gate < 0.0095 ? 3 : 2));

export const ratioText = (ratio) => `${ratio >= 10 ? ratio.toFixed(0) : ratio >= 1 ? ratio.toFixed(1) : ratio.toFixed(2)}×`;
