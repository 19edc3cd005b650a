// The fields of sampling, each with a sentence: what the server takes, for a reader to set.
import { byId, el } from "./dom.js";
import { resetSettings, saveSettings } from "./settings.js";

// Numbers outside their range go to its nearest end; an empty field is left to the server.
const FIELDS = [
  { name: "temperature", id: "temperature", label: "Temperature", kind: "range", min: 0, max: 2, step: 0.05, says: "How daring the choice of each token is. At 0 the likeliest is always taken." },
  { name: "topP", id: "top-p", label: "Top-p", kind: "range", min: 0.05, max: 1, step: 0.05, says: "Only the likeliest tokens that together reach this probability may be drawn." },
  { name: "maxTokens", id: "max-tokens", label: "Max tokens", min: 1, whole: true, needed: true, says: "An answer ends here at the latest." },
  { name: "experts", id: "experts", label: "Experts per token", min: 1, whole: true, empty: "as trained", says: "Fewer are faster and know less." },
  { name: "seed", id: "seed", label: "Seed", min: 0, max: 2147483647, whole: true, empty: "new each time", says: "The same seed and question give the same answer." },
  { name: "system", id: "system", label: "System prompt", kind: "text", empty: "None", wide: true, says: "Said to the model before the conversation; chats only." },
];
const FURTHER = [
  { name: "topK", id: "top-k", label: "Top-k", min: 0, whole: true, empty: "all", says: "Only this many of the likeliest tokens may be drawn." },
  { name: "minP", id: "min-p", label: "Min-p", min: 0, max: 1, step: 0.01, empty: "0", says: "Tokens below this part of the likeliest one's probability are left out." },
  { name: "presence", id: "presence", label: "Presence penalty", min: -2, max: 2, step: 0.1, empty: "0", says: "Above 0, tokens that the answer has already become less likely, once." },
  { name: "frequency", id: "frequency", label: "Frequency penalty", min: -2, max: 2, step: 0.1, empty: "0", says: "The same, for every time that the answer has them." },
  { name: "repetition", id: "repetition", label: "Repetition penalty", min: 0.01, max: 100, step: 0.05, empty: "1", says: "Above 1, tokens of question and answer become less likely." },
  { name: "minTokens", id: "min-tokens", label: "Min tokens", min: 0, whole: true, empty: "0", says: "The model may not end its answer before." },
  { name: "stop", id: "stop", label: "Stop", kind: "text", empty: "None", wide: true, says: "An answer ends before any of these texts. One per line; \\n is a line break." },
];
const SWITCHES = [
  { name: "markdown", id: "use-markdown", label: "Show chats as Markdown", says: "Off: every character as the model wrote it." },
  { name: "alternatives", id: "ask-alternatives", label: "Ask for alternatives", says: "A selected token shows what else was likely there." },
];

export class SettingsPanel {
  // hooks: { settings, model(), changed(name) }
  constructor(hooks) {
    this.hooks = hooks;
    byId("fields").replaceChildren(...FIELDS.map((field) => this.#make(field)));
    byId("further-fields").replaceChildren(...FURTHER.map((field) => this.#make(field)), ...SWITCHES.map((field) => this.#makeSwitch(field)));
    byId("settings-reset").addEventListener("click", () => {
      resetSettings(hooks.settings);
      hooks.changed();
    });
  }

  #make(field) {
    const { id, label, says, kind = "number", wide } = field;
    const about = { id, "aria-describedby": `${id}-says` };
    const input = kind === "text" ? el("textarea", { ...about, rows: 2, placeholder: field.empty }) : el("input", { ...about, type: kind, ...rangeOf(field) });
    if (kind === "text") {
      input.addEventListener("input", () => {
        this.hooks.settings[field.name] = input.value;
        saveSettings(this.hooks.settings);
      });
      input.addEventListener("change", () => this.hooks.changed(field.name));
    } else {
      input.addEventListener("input", () => kind === "range" && this.#takeNumber(field));
      input.addEventListener("change", () => this.#takeNumber(field));
    }
    return el(
      "div",
      { class: `setting${wide ? " wide" : ""}`, id: `${id}-setting` },
      el("label", { for: id }, label),
      kind === "range" && el("output", { for: id }),
      input,
      el("p", { class: "hint", id: `${id}-says` }, says),
    );
  }

  #makeSwitch({ name, id, label, says }) {
    const input = el("input", { type: "checkbox", id, "aria-describedby": `${id}-says` });
    input.addEventListener("change", () => {
      this.hooks.settings[name] = input.checked;
      this.hooks.changed(name);
    });
    return el("div", { class: "setting switch-setting" }, el("label", { class: "switch" }, input, el("span", {}, label)), el("p", { class: "hint", id: `${id}-says` }, says));
  }

  #takeNumber({ name, id, whole, needed }) {
    const input = byId(id);
    const value = input.valueAsNumber;
    if (Number.isNaN(value)) {
      if (!needed) this.hooks.settings[name] = "";
    } else {
      const most = input.max === "" ? Infinity : Number(input.max);
      const near = Math.min(Math.max(value, Number(input.min)), most);
      this.hooks.settings[name] = whole ? Math.round(near) : near;
    }
    this.hooks.changed(name);
  }

  show() {
    const { settings } = this.hooks;
    const model = this.hooks.model();
    if (model?.max_model_len) byId("max-tokens").max = byId("min-tokens").max = model.max_model_len;
    if (model?.max_experts_per_tok) byId("experts").max = model.max_experts_per_tok;
    if (model?.num_experts_per_tok) byId("experts").placeholder = `${model.num_experts_per_tok}, as trained`;
    byId("system-setting").hidden = settings.mode !== "chat";
    for (const { name, id, kind } of [...FIELDS, ...FURTHER]) {
      if (byId(id) !== document.activeElement || kind !== "text") byId(id).value = settings[name];
      const output = byId(id).parentNode.querySelector("output");
      if (output) output.textContent = Number(settings[name]).toFixed(2);
    }
    for (const { name, id } of SWITCHES) byId(id).checked = settings[name];
    saveSettings(settings);
  }
}

const rangeOf = ({ min, max, step = 1, empty, whole }) => ({ min, max, step: whole ? 1 : step, placeholder: empty, inputmode: whole ? "numeric" : "decimal" });
