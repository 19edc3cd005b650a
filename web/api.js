// The server's API: requests, streams, and errors in words a reader can act on.
const ROOT = new URL("../", import.meta.url);
const ANSWER_MS = 10000; // for everything but streams, which take as long as they take

export class ApiError extends Error {
  // kind: unreachable | key | busy | unavailable | refused | broken
  constructor(kind, message, { status = 0, retryAfter = 0, code = "" } = {}) {
    super(message);
    Object.assign(this, { kind, status, retryAfter, code });
  }
}

const unreachable = () => new ApiError("unreachable", "The server cannot be reached. Is dsmoe serve still running?");

// The server begins its messages with a small letter and ends them without a stop.
function sentenceOf(text) {
  return text === "" ? "" : text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

// What a status means here; `said` is what the server says itself.
function errorOf(status, said, { retryAfter = 0, code = "" } = {}) {
  const text = sentenceOf(said);
  const say = (sentence) => (text ? `${sentence} ${text}` : sentence);
  if (status === 401) return new ApiError("key", say("The server did not accept the API key."), { status });
  if (status === 429) return new ApiError("busy", "The server is busy: its queue is full.", { status, retryAfter });
  if (status === 503 && code === "loading") return new ApiError("unavailable", "The model is still loading; this page goes on when it is there.", { status, retryAfter, code });
  if (status === 503) return new ApiError("unavailable", say("The server takes no requests right now."), { status, retryAfter });
  if (status >= 500) return new ApiError("broken", say("The server failed."), { status });
  return new ApiError("refused", text || `The server answered with status ${status}.`, { status, code });
}

async function failure(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // not the API's error format; the status has to do
  }
  const retryAfter = Number(response.headers.get("retry-after")) || 0;
  return errorOf(response.status, String(error.message ?? ""), { retryAfter, code: error.code ?? "" });
}

const isAbort = (error) => error instanceof DOMException && error.name === "AbortError";

export class Api {
  constructor() {
    try {
      this.key = sessionStorage.getItem("dsmoe.key") ?? "";
    } catch {
      this.key = "";
    }
  }

  useKey(key) {
    this.key = key;
    try {
      if (key) sessionStorage.setItem("dsmoe.key", key);
      else sessionStorage.removeItem("dsmoe.key");
    } catch {
      // kept in memory only
    }
  }

  async #send(method, path, body, signal) {
    const options = { method, headers: {}, signal, cache: "no-store" };
    if (this.key) options.headers.authorization = `Bearer ${this.key}`;
    if (body !== undefined) {
      options.headers["content-type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    let response;
    try {
      response = await fetch(new URL(path, ROOT), options);
    } catch (error) {
      throw isAbort(error) ? error : unreachable();
    }
    if (!response.ok) throw await failure(response);
    return response;
  }

  async json(method, path, body) {
    const response = await this.#send(method, path, body, AbortSignal.timeout(ANSWER_MS));
    try {
      return await response.json();
    } catch {
      throw new ApiError("broken", `The server's answer to ${path} is not JSON.`, { status: response.status });
    }
  }

  // How far the training is that a loading server waits for: { step, total, loss, seconds_left }; null where there is none.
  async training() {
    try {
      const response = await fetch(new URL("health", ROOT), { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
      return (await response.json()).training ?? null;
    } catch {
      return null;
    }
  }

  // Yields the parsed chunks of a stream up to [DONE]. An aborted signal ends it with an AbortError.
  async *stream(path, body, signal) {
    const response = await this.#send("POST", path, body, signal);
    const reader = response.body.getReader();
    try {
      for await (const data of eventsOf(reader)) {
        if (data === "[DONE]") return;
        signal.throwIfAborted(); // what had arrived already is not wanted either
        yield chunkOf(data);
      }
    } catch (error) {
      if (isAbort(error) || error instanceof ApiError) throw error;
      throw new ApiError("unreachable", "The connection broke before the answer was complete.");
    } finally {
      reader.cancel().catch(() => {});
    }
    throw new ApiError("broken", "The connection ended before the answer did.");
  }
}

function chunkOf(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new ApiError("broken", "The server sent a part that is not JSON.");
  }
  if (chunk.error) throw errorOf(chunk.error.code === "draining" ? 503 : 500, String(chunk.error.message ?? ""));
  return chunk;
}

// The data of each server-sent event. A line may arrive in pieces, and a character too.
export async function* eventsOf(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  for (;;) {
    const { done, value } = await reader.read();
    rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "" && data.length > 0) {
        yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
    if (done) return;
  }
}
