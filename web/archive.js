// Conversations as a file, and back. A file comes from anywhere: it is checked field by field, and nothing else of it is used.
import { newId } from "./conversation_tree.js";

export const MAX_FILE_BYTES = 32 << 20;
const FORMAT = "dsmoe-conversations";
const VERSION = 1;
const MAX_CONVERSATIONS = 10000;
const MAX_TURNS = 100000;
const MAX_DEPTH = 5000;
const MAX_TITLE = 200;
const MAX_TEXT = 4 << 20;
const STATES = ["done", "stopped", "failed"];
const FIELDS = {
  model: "string", temperature: "number", top_p: "number", top_k: "number", min_p: "number", presence_penalty: "number",
  frequency_penalty: "number", repetition_penalty: "number", max_tokens: "number", min_tokens: "number", seed: "number",
  num_experts_per_tok: "number",
};

// sources: [{ conversation, turns }] as the store has them. Experts stay behind: the same seed brings them back.
export function exportText(sources) {
  const conversations = sources.map(({ conversation: { title, created, changed }, turns }) => ({
    title,
    created,
    changed,
    turns: [...turns].sort((a, b) => a.created - b.created).map(({ id, parent, mode, text, created: at, answer, rival, system }) => ({
      id, parent, mode, text, system, created: at, answer: answerPart(answer), ...(rival ? { rival: answerPart(rival) } : {}),
    })),
  }));
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

const answerPart = (answer) =>
  answer && {
    text: answer.text, state: answer.state, finish: answer.finish, experts: answer.experts, request: onlyFields(answer.request),
    ...(answer.usage ? { usage: usageOf(answer.usage) } : {}),
  };

const usageOf = ({ prompt_tokens, completion_tokens }) => ({ prompt_tokens, completion_tokens });

const onlyFields = (request) =>
  Object.fromEntries(Object.entries(FIELDS).flatMap(([name, type]) => (typeof request?.[name] === type ? [[name, request[name]]] : [])).concat(stopOf(request)));

const stopOf = (request) => {
  const stop = request?.stop;
  const isList = Array.isArray(stop) && stop.length <= 16 && stop.every((one) => typeof one === "string" && one.length <= 1024);
  return isList ? [["stop", [...stop]]] : [];
};

class Refusal extends Error {}

function expect(holds, place, what) {
  if (!holds) throw new Refusal(`${place} should be ${what}`);
}

const isText = (value, most) => typeof value === "string" && value.length <= most;
const isTime = (value) => Number.isFinite(value) && value >= 0 && value < 1e14;
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// The text of a file, null for one that is too large -> { sources } to be written, with new ids, or { refusal }: a sentence.
export function importText(text) {
  try {
    return { sources: sourcesOf(parsed(text)) };
  } catch (error) {
    if (error instanceof Refusal) return { refusal: `This file was not imported: ${error.message}.` };
    throw error;
  }
}

function parsed(text) {
  if (text === null) throw new Refusal(`it is larger than ${MAX_FILE_BYTES >> 20} MiB`);
  try {
    return JSON.parse(text);
  } catch {
    throw new Refusal("it is not JSON, so it was not exported by this page");
  }
}

function sourcesOf(file) {
  expect(isObject(file) && file.format === FORMAT, "its field format", `"${FORMAT}", as in files that this page exports`);
  expect(file.version === VERSION, "its field version", `${VERSION}; a newer page may have written it`);
  const { conversations } = file;
  expect(Array.isArray(conversations) && conversations.length > 0, "its field conversations", "a list of at least one");
  expect(conversations.length <= MAX_CONVERSATIONS, "its field conversations", `a list of at most ${MAX_CONVERSATIONS}`);
  return conversations.map((given, i) => sourceOf(given, `conversations[${i}]`));
}

function sourceOf(given, place) {
  expect(isObject(given), place, "an object");
  expect(isText(given.title, MAX_TITLE), `${place}.title`, `a text of at most ${MAX_TITLE} characters`);
  expect(isTime(given.created) && isTime(given.changed), `${place}.created and .changed`, "times in milliseconds");
  expect(Array.isArray(given.turns) && given.turns.length > 0, `${place}.turns`, "a list of at least one turn");
  expect(given.turns.length <= MAX_TURNS, `${place}.turns`, `a list of at most ${MAX_TURNS}`);
  const ids = new Map();
  const turns = given.turns.map((turn, i) => turnOf(turn, `${place}.turns[${i}]`, ids));
  checkDepth(turns, place);
  const conversation = { id: newId(), title: given.title, created: given.created, changed: given.changed, head: turns.at(-1).id };
  return { conversation, turns };
}

function turnOf(given, place, ids) {
  expect(isObject(given), place, "an object");
  const { id, parent, mode, text, created, system = "" } = given;
  expect(isText(id, 64) && id !== "" && !ids.has(id), `${place}.id`, "a text that no other turn has");
  expect(parent === null || isText(parent, 64), `${place}.parent`, "null or the id of another turn");
  expect(mode === "chat" || mode === "continue", `${place}.mode`, '"chat" or "continue"');
  expect(isText(text, MAX_TEXT), `${place}.text`, `a text of at most ${MAX_TEXT} characters`);
  expect(isText(system, MAX_TEXT), `${place}.system`, `a text of at most ${MAX_TEXT} characters`);
  expect(isTime(created), `${place}.created`, "a time in milliseconds");
  // Parents stand before their children in every file of this page; so a cycle cannot be written down.
  expect(parent === null || ids.has(parent), `${place}.parent`, "the id of a turn that stands before it");
  ids.set(id, newId());
  const rival = given.rival === undefined ? null : answerFrom(given.rival, `${place}.rival`);
  return { id: ids.get(id), parent: parent === null ? null : ids.get(parent), mode, text, system, created, answer: answerFrom(given.answer, `${place}.answer`), rival };
}

// What is on screen is a path: it must not be longer than one can show.
function checkDepth(turns, place) {
  const depth = new Map();
  let most = 0;
  for (const { id, parent } of turns) {
    depth.set(id, (depth.get(parent) ?? 0) + 1);
    most = Math.max(most, depth.get(id));
  }
  expect(most <= MAX_DEPTH, `${place}.turns`, `at most ${MAX_DEPTH} turns one after the other`);
}

function answerFrom(given, place) {
  expect(isObject(given), place, "an object");
  expect(isText(given.text, MAX_TEXT), `${place}.text`, `a text of at most ${MAX_TEXT} characters`);
  expect(STATES.includes(given.state), `${place}.state`, `one of ${STATES.join(", ")}`);
  expect(isText(given.finish, 32), `${place}.finish`, "a short text");
  expect(Number.isInteger(given.experts) && given.experts >= 0 && given.experts <= 65536, `${place}.experts`, "a number of experts");
  expect(isObject(given.request), `${place}.request`, "an object");
  const { text, finish, experts, usage = null } = given;
  const isCount = (value) => Number.isSafeInteger(value) && value >= 0;
  expect(usage === null || (isCount(usage.prompt_tokens) && isCount(usage.completion_tokens)), `${place}.usage`, "counts of tokens");
  // What failed there cannot be tried again here.
  return { text, state: given.state === "failed" ? "stopped" : given.state, finish, experts, request: onlyFields(given.request), usage: usage && usageOf(usage), seconds: 0, error: "" };
}
