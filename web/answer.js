// One answer as it grows: its text, and its tokens with the experts they took.
//
// Text usually comes first and a token's routes one step later (docs/api.md); held-back text comes after its routes.
// So tokens are ranges of the text, and the text is always what the deltas say: a range may reach beyond it for a while,
// and it may go on beyond the last range (`tail`).

const SHORTEST_S = 0.05; // of an answer that came in fewer pieces than tokens, time says nothing

export class Answer {
  // request: the fields it was asked with, without what was asked. experts: how many per token.
  constructor(request, experts) {
    this.request = request;
    this.experts = experts;
    this.text = "";
    this.tokens = []; // { start, end, experts: [MoE layers][K], gates: same or undefined }
    this.alternatives = []; // per token chosen: [{ text, logprob }], likeliest first; empty where not asked for
    this.state = "waiting"; // waiting | streaming | done | stopped | failed
    this.finish = "";
    this.error = null;
    this.usage = null;
    this.startedAt = performance.now();
    this.firstAt = 0;
    this.endedAt = 0;
  }

  get seed() {
    return this.request.seed;
  }

  // More may come.
  get isOpen() {
    return this.state === "waiting" || this.state === "streaming";
  }

  textOf(token) {
    return this.text.slice(token.start, token.end);
  }

  get tail() {
    return this.text.slice(this.tokens.at(-1)?.end ?? 0);
  }

  get numTokens() {
    return this.usage?.completion_tokens ?? this.tokens.length + (this.tail ? 1 : 0);
  }

  // From the first token to the last.
  get seconds() {
    return this.keptSeconds ?? (this.firstAt ? (this.endedAt - this.firstAt) / 1000 : 0);
  }

  get tokensPerSecond() {
    return this.seconds >= SHORTEST_S && this.numTokens > 1 ? (this.numTokens - 1) / this.seconds : 0;
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const text = choice.delta?.content ?? choice.text ?? "";
    if (text) {
      this.text += text;
      this.state = "streaming";
      this.firstAt ||= performance.now();
    }
    if (choice.routed_experts) this.#takeRoutes(choice);
    if (choice.logprobs) this.alternatives.push(...alternativesOf(choice.logprobs));
    if (choice.finish_reason) this.finish = choice.finish_reason;
  }

  // What the whole conversation takes of the context, once the answer has ended.
  get contextUsed() {
    return this.usage ? this.usage.prompt_tokens + this.usage.completion_tokens : 0;
  }

  #takeRoutes(choice) {
    choice.routed_experts.forEach((experts, i) => {
      const position = choice.routed_start + i - choice.routed_prompt;
      if (position !== this.tokens.length) return; // the prompt's, or out of order
      const start = this.tokens.at(-1)?.end ?? 0;
      const end = start + (choice.routed_text?.[i] ?? "").length;
      this.tokens.push({ start, end, experts, gates: choice.routed_gates?.[i] });
    });
  }

  end(state, error = null) {
    this.state = state;
    this.error = error;
    this.endedAt = performance.now();
  }
}

// Both routes' forms of log-probabilities -> per token [{ text, logprob }], likeliest first.
function alternativesOf(logprobs) {
  const tokens = logprobs.content
    ? logprobs.content.map(({ token, logprob, top_logprobs: top }) => [...top.map((one) => [one.token, one.logprob]), [token, logprob]])
    : (logprobs.top_logprobs ?? []).map((top) => Object.entries(top ?? {}));
  return tokens.map((pairs) =>
    [...new Map(pairs)].map(([text, logprob]) => ({ text, logprob })).sort((a, b) => b.logprob - a.logprob),
  );
}

// How often each expert is some token's strongest in MoE layer `row`, most often first: [{ expert, count }].
export function topExperts(tokens, row) {
  const counts = new Map();
  for (const token of tokens) {
    const top = token.experts[row]?.[0];
    if (top !== undefined) counts.set(top, (counts.get(top) ?? 0) + 1);
  }
  return [...counts].map(([expert, count]) => ({ expert, count })).sort((a, b) => b.count - a.count || a.expert - b.expert);
}
