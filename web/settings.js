// What the reader chose: kept in this browser, turned into a request. Fields left empty are the server's or the model's choice.
const STORE = "dsmoe.settings";
const DEFAULTS = { mode: "chat", temperature: 0.8, topP: 0.95, maxTokens: 256, seed: "", experts: "", system: "" };

export function loadSettings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(STORE) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

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
  return parts.join(" · ");
}

// A seed is always sent, so that an answer on screen can be had again.
const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;

// The request for what stands in `turns`; the last one is the reader's.
export function requestOf(settings, turns, model) {
  const body = {
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
  if (settings.experts !== "") body.num_experts_per_tok = settings.experts;
  const last = turns.at(-1);
  if (last.mode === "continue") return { path: "v1/completions", body: { ...body, prompt: last.text } };
  const messages = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const turn of turns) {
    // A continued text is no part of the conversation, nor is a question that got no answer.
    if (turn !== last && (turn.mode !== "chat" || !turn.answer.text)) continue;
    messages.push({ role: "user", content: turn.text });
    if (turn !== last) messages.push({ role: "assistant", content: turn.answer.text });
  }
  return { path: "v1/chat/completions", body: { ...body, messages } };
}
