// An answer as the store keeps it: routes as flat arrays of numbers, a tenth of what lists of lists would take.
import { Answer } from "./answer.js";

export function recordOf(answer) {
  const { request, experts, text, alternatives, state, finish, usage, tokens, error } = answer;
  const record = { request, experts, text, state, finish, usage, seconds: answer.seconds, error: error?.message ?? "" };
  if (tokens.length === 0) return record;
  const shape = [tokens[0].experts.length, Math.max(...tokens[0].experts.map((list) => list.length), 0)];
  const each = shape[0] * shape[1];
  const chosen = new Uint16Array(tokens.length * each).fill(0xffff); // a place that no expert took
  const gates = tokens[0].gates ? new Float32Array(tokens.length * each) : null;
  tokens.forEach((token, t) =>
    token.experts.forEach((list, row) =>
      list.slice(0, shape[1]).forEach((expert, slot) => {
        const at = t * each + row * shape[1] + slot;
        chosen[at] = expert;
        if (gates) gates[at] = token.gates?.[row]?.[slot] ?? 0;
      }),
    ),
  );
  return { ...record, alternatives, routes: { shape, ends: Uint32Array.from(tokens, (token) => token.end), chosen, gates } };
}

// Without what a full store has no room for.
export const lightRecordOf = ({ alternatives, routes, ...record }) => record;

// About as many bytes as the record takes.
export function bytesOf(record) {
  if (!record) return 0;
  const { routes, alternatives = [] } = record;
  const arrays = routes ? routes.ends.byteLength + routes.chosen.byteLength + (routes.gates?.byteLength ?? 0) : 0;
  const texts = alternatives.reduce((sum, list) => list.reduce((part, { text }) => part + 24 + 2 * text.length, sum), 0);
  return 256 + 2 * record.text.length + arrays + texts;
}

export function answerOf(record) {
  const answer = new Answer(record.request, record.experts);
  const { text, finish, usage = null, seconds = 0, alternatives = [], routes } = record;
  Object.assign(answer, { text, finish, usage, alternatives, keptSeconds: seconds });
  // One that was being written when the page went away goes on no more.
  answer.state = record.state === "waiting" || record.state === "streaming" ? "stopped" : record.state;
  if (record.error && answer.state === "failed") answer.error = new Error(record.error);
  if (routes) answer.tokens = tokensOf(routes);
  return answer;
}

function tokensOf({ shape: [rows, slots], ends, chosen, gates }) {
  return Array.from(ends, (end, t) => {
    const experts = [];
    const weights = [];
    for (let row = 0; row < rows; ++row) {
      const at = (t * rows + row) * slots;
      const list = Array.from(chosen.subarray(at, at + slots)).filter((expert) => expert !== 0xffff);
      experts.push(list);
      if (gates) weights.push(Array.from(gates.subarray(at, at + list.length)));
    }
    return { start: t === 0 ? 0 : ends[t - 1], end, experts, gates: gates ? weights : undefined };
  });
}
