// What the reader chose: kept in this browser, turned into a request. Fields left empty are the server's or the model's choice.
const STORE = "dsmoe.settings";
const DEFAULTS = {
  mode: "chat", temperature: 0.8, topP: 0.95, topK: "", minP: "", presence: "", frequency: "", repetition: "",
  maxTokens: 256, minTokens: "", seed: "", stop: "", experts: "", system: "", markdown: true, alternatives: true,
};
const NUM_ALTERNATIVES = 5;

// Optional fields of a request: as the server calls them.
const OPTIONAL = {
  topK: "top_k", minP: "min_p", presence: "presence_penalty", frequency: "frequency_penalty", repetition: "repetition_penalty",
  minTokens: "min_tokens", experts: "num_experts_per_tok",
};

export function loadSettings() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORE) ?? "{}");
    const known = Object.entries(DEFAULTS).map(([name, value]) => [name, isLike(kept?.[name], value) ? kept[name] : value]);
    return Object.fromEntries(known);
  } catch {
    return { ...DEFAULTS };
  }
}

// Numbers may be empty, and what is empty by default may be a number.
const isLike = (value, model) => typeof value === typeof model || (model === "" && typeof value === "number") || (value === "" && typeof model === "number");

export function saveSettings(settings) {
  try {
    localStorage.setItem(STORE, JSON.stringify(settings));
  } catch {
    // storage may be forbidden; they last until the page is closed
  }
}

// Everything but the mode and the system prompt, which belong to the conversation.
export function resetSettings(settings) {
  Object.assign(settings, { ...DEFAULTS, mode: settings.mode, system: settings.system });
}

export function summaryOf(settings, model) {
  const parts = [settings.temperature === 0 ? "greedy" : `temperature ${settings.temperature}`];
  if (settings.temperature > 0 && settings.topP < 1) parts.push(`top-p ${settings.topP}`);
  parts.push(`${settings.maxTokens} tokens`);
  const experts = settings.experts || model?.num_experts_per_tok;
  if (experts) parts.push(`${experts} expert${experts === 1 ? "" : "s"}`);
  if (settings.seed !== "") parts.push(`seed ${settings.seed}`);
  const further = ["topK", "minP", "presence", "frequency", "repetition", "minTokens", "stop"].filter((name) => settings[name] !== "").length;
  if (further > 0) parts.push(`${further} more`);
  return parts.join(" · ");
}

// A line each; \n and \t stand for a line break and a tab, \\ for a backslash.
export function stopsOf(text) {
  const signs = { n: "\n", t: "\t", "\\": "\\" };
  return text.split("\n").filter((line) => line !== "").map((line) => line.replace(/\\([nt\\])/g, (_, sign) => signs[sign]));
}

// A seed is always sent, so that an answer on screen can be had again.
const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;

// The fields of a request that are not what is asked.
export function fieldsOf(settings, mode, model) {
  const fields = {
    model: model.id,
    stream: true,
    stream_options: { include_usage: true },
    temperature: settings.temperature,
    top_p: settings.topP,
    max_tokens: settings.maxTokens,
    seed: settings.seed === "" ? newSeed() : settings.seed,
    return_routed_experts: true,
    return_routed_gates: true,
  };
  for (const [name, field] of Object.entries(OPTIONAL)) if (settings[name] !== "") fields[field] = settings[name];
  const stops = stopsOf(settings.stop);
  if (stops.length > 0) fields.stop = stops;
  if (settings.alternatives && mode === "chat") Object.assign(fields, { logprobs: true, top_logprobs: NUM_ALTERNATIVES });
  if (settings.alternatives && mode === "continue") fields.logprobs = NUM_ALTERNATIVES;
  return fields;
}

// The request for the last turn of `path` with these fields.
export function requestOf(fields, path) {
  const last = path.at(-1);
  const system = last.system ?? "";
  if (last.mode === "continue") return { path: "v1/completions", body: { ...fields, prompt: last.text } };
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of path) {
    // A continued text is no part of the conversation, nor is a question that got no answer.
    if (turn !== last && (turn.mode !== "chat" || !turn.answer.text)) continue;
    messages.push({ role: "user", content: turn.text });
    if (turn !== last) messages.push({ role: "assistant", content: turn.answer.text });
  }
  return { path: "v1/chat/completions", body: { ...fields, messages } };
}
