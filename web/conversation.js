// The conversation on screen: its turns, the one request under way, branches, and what is kept of it.
import { Answer } from "./answer.js";
import { answerOf, recordOf } from "./answer_record.js";
import { ConversationTree, newId } from "./conversation_tree.js";
import { announce, byId, plural } from "./dom.js";
import { fieldsOf, requestOf } from "./settings.js";
import { TurnView } from "./turn_view.js";

const NEAR_END_PX = 80; // closer than this to the end, the log follows the answer
const KEEP_MS = 1000; // a growing answer is kept once in this time
const MAX_TITLE = 60;

const turnRecordOf = ({ id, parent, mode, text, system, created, kept, answer, rival }) => ({
  id, parent, mode, text, system, created, kept, answer: answer && recordOf(answer), rival: rival && recordOf(rival),
});

export class Conversation {
  // hooks: { settings, model(), busy(isBusy), failed(error), askKey(), changed(), opened(), export(turn, answer, button) }
  constructor(api, store, focus, hooks) {
    Object.assign(this, { api, store, focus, hooks });
    this.views = [];
    this.abort = null;
    this.log = byId("log");
    this.scroll = byId("scroll");
    this.isAtEnd = true; // the log follows what grows
    this.scroll.addEventListener("scroll", () => {
      this.isAtEnd = this.scroll.scrollHeight - this.scroll.scrollTop - this.scroll.clientHeight < NEAR_END_PX;
    });
    focus.addEventListener("change", () => this.views.forEach((view) => view.repaint()));
    addEventListener("pagehide", () => this.#keep(this.turns.at(-1)));
    this.#begin();
  }

  #begin() {
    this.tree = new ConversationTree();
    this.head = null; // the last turn on screen
    this.record = null; // the store's record; made with the first turn
    this.unkept = new Set(); // turns that the store had no room for
  }

  get isBusy() {
    return this.abort !== null;
  }

  // The path on screen.
  get turns() {
    return this.head ? this.tree.pathTo(this.head.id) : [];
  }

  get id() {
    return this.record?.id ?? null;
  }

  // ---- what the reader does ----
  say(text) {
    const { mode, system } = this.hooks.settings;
    this.#ask(this.tree.add({ parent: this.head?.id ?? null, mode, text, system }));
  }

  // A failed turn is asked again; a finished one gets another version.
  again(turn = this.head) {
    if (this.isBusy || !turn) return;
    if (turn.answer.text === "" || turn.answer.state === "failed") this.#run(turn, "answer");
    else this.edit(turn, turn.text);
  }

  edit(turn, text) {
    if (!this.isBusy) this.#ask(this.tree.add({ parent: turn.parent, mode: turn.mode, text, system: this.hooks.settings.system }));
  }

  step(turn, by) {
    const siblings = this.tree.siblings(turn);
    const other = siblings[siblings.indexOf(turn) + by];
    if (!other || this.isBusy) return;
    this.head = this.tree.newestLeaf(other);
    this.#showPath();
    this.#keep();
    this.views.find((view) => view.turn === other)?.focusVersions();
    announce(`Version ${siblings.indexOf(other) + 1} of ${siblings.length}`);
  }

  // The same request with another number of experts per token, beside the answer.
  compare(turn, experts = Math.max(1, Math.floor(turn.answer.experts / 2))) {
    if (this.isBusy) return;
    turn.rival = new Answer({ ...turn.answer.request, num_experts_per_tok: experts }, experts);
    this.#run(turn, "rival");
  }

  endCompare(turn) {
    if (turn.rival?.isOpen) this.stop();
    turn.rival = null;
    this.#viewOf(turn)?.setRival();
    this.#keep(turn);
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.#leave();
    this.#begin();
    this.#showPath();
    this.hooks.opened();
  }

  async open(id) {
    const found = await this.store.read(id);
    if (!found || found.conversation.deleted) return false;
    this.#leave();
    this.#begin();
    this.record = found.conversation;
    this.#take(found.turns);
    this.head = this.tree.turns.get(found.conversation.head) ?? this.tree.newestLeaf(null);
    this.#showPath();
    this.#follow();
    this.hooks.opened();
    return true;
  }

  // Another tab has written to this conversation: its turns join the tree.
  async refresh() {
    this.isStale = this.isBusy; // then it is done when the answer has ended
    if (this.isBusy || !this.record) return;
    const found = await this.store.read(this.record.id);
    if (!found || this.isBusy || found.conversation.id !== this.record?.id) return;
    this.record = { ...found.conversation, head: this.record.head };
    if (!this.#take(found.turns)) return;
    if (this.head) this.head = this.tree.newestLeaf(this.head);
    this.#showPath();
  }

  showActions() {
    for (const view of this.views) view.showActions();
  }

  // Its name was changed in the list.
  renamed({ id, title }) {
    if (this.record?.id === id) this.record = { ...this.record, title };
  }

  // The text on screen is read as Markdown, or is not any more.
  reshow() {
    for (const turn of this.views) for (const view of turn.views) view.restart(), view.finish();
  }

  // ---- requests ----
  #ask(turn) {
    turn.answer = new Answer(fieldsOf(this.hooks.settings, turn.mode, this.hooks.model()), this.#expertsOf(this.hooks.settings));
    this.head = turn;
    this.#run(turn, "answer");
  }

  #expertsOf(settings) {
    return settings.experts || (this.hooks.model().num_experts_per_tok ?? 0);
  }

  // which: "answer", or "rival" for the one beside it.
  async #run(turn, which) {
    const { settings } = this.hooks;
    if (which === "answer" && turn.answer.state !== "waiting") {
      turn.answer = new Answer(fieldsOf(settings, turn.mode, this.hooks.model()), this.#expertsOf(settings));
    }
    const answer = turn[which];
    const request = requestOf(answer.request, this.tree.pathTo(turn.id));
    if (which === "answer") this.#showPath(turn);
    else this.#viewOf(turn).setRival();
    const view = this.#viewOf(turn);
    this.focus.set({ answer, token: -1, picked: null, hinted: null });
    const abort = new AbortController();
    this.abort = abort;
    this.hooks.busy(true);
    this.#follow();
    this.#keep(turn);
    let error = null;
    try {
      await this.#read(request, { answer, turn, view, abort }).catch(async (refusal) => {
        if (refusal.code !== "context_length_exceeded") throw refusal;
        await this.#read(await this.#fitted(request, refusal), { answer, turn, view, abort });
      });
    } catch (caught) {
      error = caught;
    }
    const { aborted } = abort.signal;
    answer.end(aborted ? "stopped" : error ? "failed" : "done", aborted ? null : error);
    if (this.abort !== abort) return; // left, and kept as it was; another request may be under way
    this.abort = null;
    const follows = this.isAtEnd;
    view.finish(answer);
    if (follows) this.#follow();
    this.hooks.busy(false);
    this.hooks.changed();
    this.#tell(answer);
    this.#keep(turn);
    if (this.isStale) this.refresh();
  }

  async #read({ path, body }, { answer, turn, view, abort }) {
    const owner = this.record;
    for await (const chunk of this.api.stream(path, body, abort.signal)) {
      answer.take(chunk);
      view.update(answer, () => this.isAtEnd && this.#follow());
      this.hooks.changed();
      if (this.record === owner) this.#keepSoon(turn);
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

  // ---- the screen ----
  #viewOf(turn) {
    return this.views.find((view) => view.turn === turn);
  }

  // Views of turns that stay on the path stay; `fresh` has a new answer.
  #showPath(fresh = null) {
    const path = this.turns;
    let same = 0;
    while (same < this.views.length && this.views[same].turn === path[same] && path[same] !== fresh) ++same;
    for (const view of this.views.splice(same)) view.remove();
    for (const turn of path.slice(same)) {
      const view = new TurnView(turn, this.focus, this.#actions());
      this.views.push(view);
      this.log.append(view.node);
    }
    for (const view of this.views.slice(Math.max(0, same - 1))) view.showActions();
    if (!path.some((turn) => turn.answer === this.focus.answer || turn.rival === this.focus.answer)) {
      this.focus.set({ answer: path.at(-1)?.answer ?? null, token: -1, picked: null, hinted: null });
    }
  }

  #actions() {
    return {
      markdown: () => this.hooks.settings.markdown,
      askKey: () => this.hooks.askKey(),
      retry: (turn) => this.again(turn),
      regenerate: (turn) => this.again(turn),
      edit: (turn, text) => this.edit(turn, text),
      step: (turn, by) => this.step(turn, by),
      siblings: (turn) => {
        const all = this.tree.siblings(turn);
        return { index: all.indexOf(turn), count: all.length };
      },
      compare: (turn, experts) => this.compare(turn, experts),
      endCompare: (turn) => this.endCompare(turn),
      maxExperts: () => this.hooks.model()?.max_experts_per_tok ?? 0,
      export: (turn, answer, button) => this.hooks.export(requestOf(answer.request, this.tree.pathTo(turn.id)), button),
      isBusy: () => this.isBusy,
      isLast: (turn) => turn === this.head,
    };
  }

  #tell(answer) {
    if (answer.state === "failed") this.hooks.failed(answer.error);
    else announce(`${answer.state === "stopped" ? "Stopped" : "Answer complete"}, ${plural(answer.numTokens, "token")}`);
  }

  #follow() {
    this.scroll.scrollTop = this.scroll.scrollHeight;
    this.isAtEnd = true;
  }

  // ---- the store ----
  // Returns whether any of them is new, or has changed since this tab read or wrote it.
  #take(records) {
    let isNew = false;
    for (const { id, parent, mode, text, system, created, kept = 0, answer, rival } of records) {
      const known = this.tree.turns.get(id);
      if (!answer || (known && (known.kept ?? 0) >= kept)) continue;
      const fresh = { kept, answer: answerOf(answer), rival: rival ? answerOf(rival) : null };
      if (known) this.#replace(known, fresh);
      else this.tree.take({ id, parent, mode, text, system, created, ...fresh });
      isNew = true;
    }
    return isNew;
  }

  // Another tab has gone on with this turn: it and those below it are shown anew.
  #replace(turn, fresh) {
    Object.assign(turn, fresh);
    const at = this.views.findIndex((view) => view.turn === turn);
    if (at >= 0) for (const view of this.views.splice(at)) view.remove();
  }

  // The conversation goes from the screen; its answer ends where it is.
  #leave() {
    const left = this.head;
    this.stop();
    if (this.abort && left) this.#keep(left);
    this.abort = null;
    clearTimeout(this.timer);
    this.timer = 0;
    this.hooks.busy(false);
  }

  #keepSoon(turn) {
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      this.#keep(turn);
    }, KEEP_MS);
  }

  // Writes this turn, if any, and where the reader is.
  #keep(turn = null) {
    clearTimeout(this.timer);
    this.timer = 0;
    if (!this.head || !this.store.isOpen) return;
    if (!this.record) {
      const title = this.tree.pathTo(this.head.id)[0].text.trim().replace(/\s+/g, " ");
      this.record = { id: newId(), title: title.length > MAX_TITLE ? `${title.slice(0, MAX_TITLE - 1)}…` : title, created: Date.now(), changed: 0 };
      this.hooks.opened();
    }
    this.record = { ...this.record, head: this.head.id, changed: Date.now() };
    if (turn) {
      turn.kept = Math.max(Date.now(), (turn.kept ?? 0) + 1);
      this.unkept.add(turn);
    }
    this.#write(this.record, this.unkept, this.tree);
  }

  // What found no room is written again with the next turn: one without its parent would be lost.
  async #write(record, unkept, tree) {
    const turns = [...unkept];
    const stamps = turns.map((turn) => turn.kept);
    const all = () => [...tree.turns.values()].filter(({ answer }) => answer).map(turnRecordOf);
    if (!(await this.store.write(record, turns.map(turnRecordOf), all))) return;
    turns.forEach((turn, i) => turn.kept === stamps[i] && unkept.delete(turn)); // unless it has changed meanwhile
  }
}
