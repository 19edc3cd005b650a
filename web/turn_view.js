// One turn on screen: what the reader said, its answer, a second answer beside it, and the way to its other versions.
import { AnswerView } from "./answer_view.js";
import { el } from "./dom.js";

export class TurnView {
  // actions: { markdown(), settled(), retry(turn), askKey(), regenerate(turn), edit(turn, text), step(turn, by), siblings(turn),
  //            compare(turn, experts), endCompare(turn), maxExperts(), export(turn, answer, button), isBusy(), isLast(turn) }
  constructor(turn, focus, actions) {
    Object.assign(this, { turn, focus, actions });
    this.said = turn.mode === "chat" ? el("div", { class: "said" }, turn.text) : null;
    this.above = el("div", { class: "turn-actions" });
    this.answers = el("div", { class: "answers" });
    this.node = el("article", { class: `turn ${turn.mode}` }, this.said, this.above, this.answers);
    this.main = this.#viewOf(turn.answer);
    this.rival = turn.rival ? this.#viewOf(turn.rival) : null;
    this.answers.append(this.main.node, ...(this.rival ? [this.rival.node] : []));
    this.#dressPair();
    for (const view of this.views) if (!view.answer.isOpen) view.finish();
    this.showActions();
    this.node.dataset.state = turn.answer.state;
  }

  get views() {
    return this.rival ? [this.main, this.rival] : [this.main];
  }

  viewOf(answer) {
    return this.views.find((view) => view.answer === answer);
  }

  #viewOf(answer) {
    const { turn, actions } = this;
    return new AnswerView(turn, answer, this.focus, {
      markdown: actions.markdown,
      askKey: actions.askKey,
      retry: () => actions.retry(turn),
      buttons: (given) => this.#buttons(given),
    });
  }

  #buttons(answer) {
    const { turn, actions } = this;
    const isMain = answer === turn.answer;
    const buttons = [];
    if (answer.request) buttons.push({ name: "As code", says: "This request as a command or a program", run: (button) => actions.export(turn, answer, button) });
    if (!isMain) buttons.push({ name: "Close", says: "Take the second answer away", run: () => actions.endCompare(turn) });
    if (isMain && actions.isLast(turn) && answer.state !== "failed") {
      buttons.push({ name: "Regenerate", says: "Another answer; this one is kept (R)", run: () => actions.regenerate(turn) });
    }
    if (isMain && !turn.rival && answer.text !== "" && actions.maxExperts() > 1) {
      buttons.push({ name: "Compare", says: "The same question and seed with another number of experts", run: () => actions.compare(turn) });
    }
    return buttons;
  }

  // The turn has a new answer, or a second one, or none any more.
  restart() {
    this.main.restart(this.turn.answer);
    this.setRival();
  }

  setRival() {
    this.rival?.remove();
    this.rival = this.turn.rival ? this.#viewOf(this.turn.rival) : null;
    if (this.rival) this.answers.append(this.rival.node);
    this.#dressPair();
    if (!this.turn.answer.isOpen) this.main.showFoot();
  }

  // Two answers have heads that say what differs.
  #dressPair() {
    this.answers.classList.toggle("pair", this.rival !== null);
    for (const view of this.views) {
      view.node.querySelector(".pair-head")?.remove();
      if (this.rival) view.node.prepend(this.#pairHead(view));
    }
    if (this.rival) this.#comparePair();
  }

  #pairHead(view) {
    const { turn, actions } = this;
    const experts = view.answer.experts;
    const name = `${experts} expert${experts === 1 ? "" : "s"} per token`;
    const head = el("div", { class: "pair-head" }, el("span", {}, name));
    if (view === this.main) return head;
    const step = (by, label, sign) => {
      const to = experts + by;
      const disabled = to < 1 || to > actions.maxExperts() || actions.isBusy();
      return el("button", { type: "button", class: "quiet small", "aria-label": label, title: label, disabled, onclick: () => actions.compare(turn, to) }, sign);
    };
    head.append(step(-1, "Fewer experts", "−"), step(1, "More experts", "+"));
    return head;
  }

  // How long two answers with the same seed are the same.
  #comparePair() {
    const [a, b] = [this.turn.answer, this.turn.rival];
    if (!b || a.isOpen || b.isOpen) return;
    let same = 0;
    while (same < a.text.length && a.text[same] === b.text[same]) ++same;
    const isEqual = a.text === b.text;
    const where = a.tokens.findIndex((token) => token.end > same);
    const words = isEqual ? "The same answer" : same === 0 ? "Different from the first token" : `The same up to token ${where < 0 ? a.tokens.length : where}`;
    this.rival.node.querySelector(".pair-head span").append(` · ${words.toLowerCase()}`);
  }

  finish(answer) {
    this.viewOf(answer)?.finish();
    if (answer === this.turn.answer) this.node.dataset.state = answer.state;
    this.#dressPair();
  }

  update(answer, then) {
    if (answer === this.turn.answer) this.node.dataset.state = answer.state;
    this.viewOf(answer)?.showSoon(then);
  }

  repaint() {
    for (const view of this.views) view.repaint();
  }

  // Edit, and the arrows between versions.
  showActions() {
    const { turn, actions } = this;
    const { index, count } = actions.siblings(turn);
    const button = (label, text, run, disabled = false) =>
      el("button", { type: "button", class: "quiet small", "aria-label": label, title: label, onclick: run, disabled }, text);
    const nodes = [button("Edit, and ask again", "Edit", () => this.#edit())];
    if (count > 1) {
      nodes.push(
        el(
          "span",
          { class: "versions", role: "group", "aria-label": "Versions of this turn" },
          button("Previous version", "‹", () => actions.step(turn, -1), index === 0),
          el("span", { class: "version" }, `${index + 1} / ${count}`),
          button("Next version", "›", () => actions.step(turn, 1), index === count - 1),
        ),
      );
    }
    this.above.replaceChildren(...nodes);
    for (const view of this.views) view.showFoot();
    this.#dressPair();
    if (!actions.isLast(turn)) this.main.dropRetry();
  }

  focusVersions() {
    const buttons = [...this.above.querySelectorAll(".versions button")];
    (buttons.find((node) => !node.disabled) ?? this.main.body).focus();
  }

  #edit() {
    const { turn, actions } = this;
    const box = el("textarea", { class: "edit-box", rows: 1, "aria-label": "Edit what you said" });
    box.value = turn.text;
    const end = () => {
      form.remove();
      this.above.hidden = false;
      if (this.said) this.said.hidden = false;
      this.above.querySelector("button")?.focus();
    };
    const form = el(
      "form",
      {
        class: "edit",
        onsubmit: (event) => {
          event.preventDefault();
          const text = turn.mode === "chat" ? box.value.trim() : box.value;
          if (text.trim() === "" || actions.isBusy()) return;
          end();
          actions.edit(turn, text);
        },
        onkeydown: (event) => {
          if (event.key === "Escape") {
            event.preventDefault();
            event.stopPropagation();
            end();
          } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === box) {
            event.preventDefault();
            form.requestSubmit();
          }
        },
      },
      box,
      el(
        "div",
        { class: "edit-actions" },
        el("span", { class: "hint" }, "What stands here now is kept as another version."),
        el("button", { type: "button", class: "small", onclick: end }, "Cancel"),
        el("button", { type: "submit", class: "small primary" }, "Ask again"),
      ),
    );
    this.above.hidden = true;
    if (this.said) this.said.hidden = true;
    this.above.after(form);
    const fit = () => {
      box.style.height = "auto";
      box.style.height = `${Math.min(box.scrollHeight + 2, 320)}px`;
    };
    box.addEventListener("input", fit);
    fit();
    box.focus();
  }

  remove() {
    for (const view of this.views) view.remove();
    this.node.remove();
  }
}
