// One answer as it grows: its text, and its tokens with the experts they took.
//
// Text usually comes first and a token's routes one step later (docs/serving.md); held-back text comes after its routes.
// So tokens are ranges of the text, and the text is always what the deltas say: a range may reach beyond it for a while,
// and it may go on beyond the last range (`tail`).

export class Answer {
  constructor(seed) {
    this.seed = seed;
    this.text = "";
    this.tokens = []; // { start, end, experts: [MoE layers][K], gates: same or undefined }
    this.state = "waiting"; // waiting | streaming | done | stopped | failed
    this.finish = "";
    this.error = null;
    this.usage = null;
    this.startedAt = performance.now();
    this.firstAt = 0;
    this.endedAt = 0;
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

  get tokensPerSecond() {
    const seconds = (this.endedAt - this.firstAt) / 1000;
    return this.firstAt && seconds > 0 && this.numTokens > 1 ? (this.numTokens - 1) / seconds : 0;
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
    if (choice.finish_reason) this.finish = choice.finish_reason;
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

// How often each expert is some token's strongest in MoE layer `row`, most often first: [{ expert, count }].
export function topExperts(tokens, row) {
  const counts = new Map();
  for (const token of tokens) {
    const top = token.experts[row]?.[0];
    if (top !== undefined) counts.set(top, (counts.get(top) ?? 0) + 1);
  }
  return [...counts].map(([expert, count]) => ({ expert, count })).sort((a, b) => b.count - a.count || a.expert - b.expert);
}
