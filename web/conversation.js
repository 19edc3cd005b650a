// The conversation: its turns, the one request under way, stop and regenerate.
import { Answer } from "./answer.js";
import { announce, byId, plural } from "./dom.js";
import { requestOf } from "./settings.js";
import { TurnView } from "./turn_view.js";

const NEAR_END_PX = 80; // closer than this to the end, the log follows the answer

export class Conversation {
  // hooks: { settings, model(), busy(isBusy), failed(error), askKey(), changed() }
  constructor(api, focus, hooks) {
    Object.assign(this, { api, focus, hooks });
    this.turns = [];
    this.views = [];
    this.abort = null;
    this.log = byId("log");
    this.scroll = byId("scroll");
    focus.addEventListener("change", () => this.views.forEach((view) => view.repaint()));
  }

  get isBusy() {
    return this.abort !== null;
  }

  say(text) {
    const turn = { mode: this.hooks.settings.mode, text, answer: null };
    this.turns.push(turn);
    this.views.at(-1)?.showFoot({ isLast: false });
    this.#run(turn);
  }

  // A failed turn is asked again, a finished one gets another answer.
  again() {
    if (!this.isBusy && this.turns.length > 0) this.#run(this.turns.at(-1));
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.views = [];
    this.log.replaceChildren();
    this.focus.set({ answer: null, token: -1, picked: null, hinted: null });
  }

  async #run(turn) {
    const request = requestOf(this.hooks.settings, this.turns, this.hooks.model());
    const answer = new Answer(request.body.seed);
    turn.answer = answer;
    const view = this.#viewOf(turn);
    this.focus.set({ answer, token: -1, picked: null, hinted: null });
    const abort = new AbortController();
    this.abort = abort;
    const { signal } = abort;
    this.hooks.busy(true);
    this.#follow();
    let error = null;
    try {
      await this.#read(request, view, signal).catch(async (refusal) => {
        if (refusal.code !== "context_length_exceeded") throw refusal;
        await this.#read(await this.#fitted(request, refusal), view, signal);
      });
    } catch (caught) {
      error = caught;
    }
    answer.end(signal.aborted ? "stopped" : error ? "failed" : "done", signal.aborted ? null : error);
    const follows = this.#isAtEnd();
    view.finish({ isLast: turn === this.turns.at(-1) });
    if (follows) this.#follow();
    if (this.abort !== abort) return; // cleared, and another request is under way
    this.abort = null;
    this.hooks.busy(false);
    this.hooks.changed();
    this.#tell(answer);
  }

  async #read({ path, body }, view, signal) {
    for await (const chunk of this.api.stream(path, body, signal)) {
      const follows = this.#isAtEnd();
      view.answer.take(chunk);
      view.update();
      this.hooks.changed();
      if (follows) this.#follow();
    }
  }

  // The server refuses an answer that might not fit into the context; the reader meant "at most". So: as much as fits.
  async #fitted({ path, body }, refusal) {
    const fitted = { ...body };
    delete fitted.max_tokens; // a chat's answer may then fill the context
    if (body.prompt !== undefined) {
      const { count, max_model_len } = await this.api.json("POST", "tokenize", { prompt: body.prompt });
      if (count >= max_model_len) throw refusal;
      fitted.max_tokens = max_model_len - count;
    }
    return { path, body: fitted };
  }

  #viewOf(turn) {
    const last = this.views.at(-1);
    if (last?.turn === turn) {
      last.problem.hidden = true;
      last.foot.replaceChildren();
      last.restart();
      return last;
    }
    const view = new TurnView(turn, this.focus, {
      regenerate: () => this.again(),
      retry: () => this.again(),
      askKey: () => this.hooks.askKey(),
    });
    this.views.push(view);
    this.log.append(view.node);
    return view;
  }

  #tell(answer) {
    if (answer.state === "failed") this.hooks.failed(answer.error);
    else announce(`${answer.state === "stopped" ? "Stopped" : "Answer complete"}, ${plural(answer.numTokens, "token")}`);
  }

  #isAtEnd() {
    return this.scroll.scrollHeight - this.scroll.scrollTop - this.scroll.clientHeight < NEAR_END_PX;
  }

  #follow() {
    this.scroll.scrollTop = this.scroll.scrollHeight;
  }
}
