// The message box and the sampling controls below it.
import { byId } from "./dom.js";
import { resetSettings, saveSettings, summaryOf } from "./settings.js";

const MAX_BOX_PX = 220;

// Numbers outside their range go to its nearest end; an empty optional field stays empty.
const NUMBERS = {
  temperature: { id: "temperature" },
  topP: { id: "top-p" },
  maxTokens: { id: "max-tokens", whole: true, needed: true },
  experts: { id: "experts", whole: true },
  seed: { id: "seed", whole: true },
};

export class Composer {
  // hooks: { settings, model(), say(text), stop() }
  constructor(hooks) {
    this.hooks = hooks;
    this.box = byId("prompt");
    this.isBusy = false;
    this.isReady = false;
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
    byId("settings-reset").addEventListener("click", () => {
      resetSettings(hooks.settings);
      this.show();
    });
    for (const radio of document.querySelectorAll("#mode input")) {
      radio.addEventListener("change", () => this.setMode(radio.value));
    }
    for (const [name, { id }] of Object.entries(NUMBERS)) {
      byId(id).addEventListener("input", () => byId(id).type === "range" && this.#takeNumber(name));
      byId(id).addEventListener("change", () => this.#takeNumber(name));
    }
    byId("system").addEventListener("input", () => {
      hooks.settings.system = byId("system").value;
      saveSettings(hooks.settings);
    });
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
    const model = this.hooks.model();
    for (const radio of document.querySelectorAll("#mode input")) radio.checked = radio.value === settings.mode;
    const isChat = settings.mode === "chat";
    this.box.placeholder = isChat ? "Message" : "Text to continue";
    byId("prompt-label").textContent = this.box.placeholder;
    byId("system-setting").hidden = !isChat;
    byId("system").value = settings.system;
    if (model?.max_model_len) byId("max-tokens").max = model.max_model_len;
    if (model?.max_experts_per_tok) byId("experts").max = model.max_experts_per_tok;
    if (model?.num_experts_per_tok) byId("experts").placeholder = `${model.num_experts_per_tok}, as trained`;
    for (const [name, { id }] of Object.entries(NUMBERS)) {
      byId(id).value = settings[name];
      const output = byId(id).parentNode.querySelector("output");
      if (output) output.textContent = Number(settings[name]).toFixed(2);
    }
    byId("settings-summary").textContent = summaryOf(settings, model);
    saveSettings(settings);
  }

  #takeNumber(name) {
    const { id, whole, needed } = NUMBERS[name];
    const input = byId(id);
    let value = input.valueAsNumber;
    if (Number.isNaN(value)) {
      if (!needed) this.hooks.settings[name] = "";
    } else {
      if (input.min !== "") value = Math.max(value, Number(input.min));
      if (input.max !== "") value = Math.min(value, Number(input.max));
      this.hooks.settings[name] = whole ? Math.round(value) : value;
    }
    this.show();
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
  }
}
