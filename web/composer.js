// The message box, what to do with it, and how full the context is.
import { byId, plural } from "./dom.js";
import { summaryOf } from "./settings.js";
import { SettingsPanel } from "./settings_panel.js";

const MAX_BOX_PX = 220;
const COUNT_MS = 400; // after the last key, before the server counts tokens
const NEARLY_FULL = 0.85;

export class Composer {
  // hooks: { settings, model(), say(text), stop(), count(text) -> tokens, used() -> tokens, changed(name) }
  constructor(hooks) {
    this.hooks = hooks;
    this.box = byId("prompt");
    this.isBusy = false;
    this.isReady = false;
    this.drafted = 0; // tokens in the box
    this.panel = new SettingsPanel({
      settings: hooks.settings,
      model: hooks.model,
      changed: (name) => {
        this.show();
        hooks.changed(name);
      },
    });
    this.box.addEventListener("input", () => this.#boxChanged());
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.isBusy) this.#submit();
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.isBusy) hooks.stop();
      else this.#submit();
    });
    byId("settings-toggle").addEventListener("click", () => this.toggleSettings());
    for (const radio of document.querySelectorAll("#mode input")) {
      radio.addEventListener("change", () => this.setMode(radio.value));
    }
    this.show();
  }

  toggleSettings() {
    const panel = byId("settings");
    panel.hidden = !panel.hidden;
    byId("settings-toggle").setAttribute("aria-expanded", String(!panel.hidden));
  }

  setMode(mode) {
    this.hooks.settings.mode = mode;
    this.show();
  }

  setBusy(isBusy) {
    this.isBusy = isBusy;
    byId("composer").classList.toggle("busy", isBusy);
    byId("send").setAttribute("aria-label", isBusy ? "Stop" : "Send");
    byId("send").title = isBusy ? "Stop (Esc)" : "Send (Enter)";
    this.#boxChanged();
  }

  setReady(isReady) {
    this.isReady = isReady;
    this.#boxChanged();
  }

  fill(text) {
    this.box.value = text;
    this.box.focus();
    this.#boxChanged();
  }

  show() {
    const { settings } = this.hooks;
    for (const radio of document.querySelectorAll("#mode input")) radio.checked = radio.value === settings.mode;
    this.box.placeholder = settings.mode === "chat" ? "Message" : "Text to continue";
    byId("prompt-label").textContent = this.box.placeholder;
    byId("settings-summary").textContent = summaryOf(settings, this.hooks.model());
    this.panel.show();
    this.showContext();
  }

  // The conversation as the server counted it last, and what stands in the box.
  showContext() {
    const most = this.hooks.model()?.max_model_len ?? 0;
    const earlier = this.hooks.settings.mode === "chat" ? this.hooks.used() : 0;
    const used = earlier + this.drafted;
    byId("context").hidden = most === 0 || used === 0;
    if (byId("context").hidden) return;
    const words = `${used.toLocaleString("en")} of ${plural(most, "token")}`;
    byId("context-text").textContent = `${used.toLocaleString("en")} / ${most.toLocaleString("en")}`;
    byId("context-bar").value = Math.min(1, used / most);
    byId("context").classList.toggle("nearly", used > NEARLY_FULL * most);
    byId("context").title = used > most ? "More than the context holds: the server will refuse it." : `Context: ${words} are in use, as far as counted.`;
  }

  #submit() {
    const text = this.hooks.settings.mode === "chat" ? this.box.value.trim() : this.box.value;
    if (text.trim() === "" || !this.isReady) return;
    this.box.value = "";
    this.#boxChanged();
    this.hooks.say(text);
  }

  #boxChanged() {
    this.box.style.height = "auto";
    this.box.style.height = `${Math.min(this.box.scrollHeight, MAX_BOX_PX)}px`;
    byId("send").disabled = !this.isBusy && (this.box.value.trim() === "" || !this.isReady);
    clearTimeout(this.timer);
    if (this.box.value === "") {
      this.drafted = 0;
      this.showContext();
    } else if (this.isReady) {
      this.timer = setTimeout(() => this.#count(this.box.value), COUNT_MS);
    }
  }

  async #count(text) {
    const count = await this.hooks.count(text);
    if (this.box.value !== text) return;
    this.drafted = count;
    this.showContext();
  }
}
