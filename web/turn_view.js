// One turn on screen: what the reader said, the answer token by token, what can be done with it.
import { announce, el, gateText, plural, quoted } from "./dom.js";
import { paint, unpaint } from "./palette.js";
import { hideTip, showTip } from "./tip.js";

const ENDS = { length: "reached max tokens", stop: "" };

export class TurnView {
  // actions: { regenerate(), retry(), askKey() }
  constructor(turn, focus, actions) {
    this.turn = turn;
    this.focus = focus;
    this.actions = actions;
    this.spans = []; // one per token: what is tinted
    this.leads = []; // the blanks before it, as text nodes
    this.tail = el("span", { class: "tail" });
    this.body = el("div", {
      class: "body",
      tabindex: 0,
      role: "group",
      "aria-roledescription": "answer",
      onclick: (event) => this.#click(event),
      onkeydown: (event) => this.#key(event),
      onmouseover: (event) => this.#hover(event.target),
      onmouseleave: hideTip,
      onblur: hideTip,
    });
    this.foot = el("div", { class: "foot" });
    this.problem = el("div", { class: "problem", role: "alert", hidden: true });
    this.node = el("article", { class: `turn ${turn.mode}` });
    if (turn.mode === "chat") this.node.append(el("div", { class: "said" }, turn.text));
    this.node.append(el("div", { class: "answer" }, this.body, this.problem, this.foot));
    this.restart();
  }

  get answer() {
    return this.turn.answer;
  }

  // The turn has a new answer.
  restart() {
    this.spans = [];
    this.leads = [];
    this.complete = 0; // spans before this one hold all their text
    this.tail.textContent = "";
    this.body.replaceChildren(this.tail);
    if (this.turn.mode === "continue") this.body.prepend(el("span", { class: "given" }, this.turn.text));
    this.update();
  }

  update() {
    const answer = this.answer;
    const fresh = this.spans.length;
    for (let i = fresh; i < answer.tokens.length; ++i) {
      this.leads.push(new Text());
      this.spans.push(el("span", { class: "token" }));
      // The blank that models begin an answer with would set it in by a hair.
      const isFirst = i === 0 && this.turn.mode === "chat";
      this.tail.before(isFirst ? el("span", { class: "no-width" }, this.leads[i]) : this.leads[i], this.spans[i]);
    }
    for (let i = this.complete; i < this.spans.length; ++i) {
      const token = answer.tokens[i];
      // Tinted blanks would hang over the ends of lines; words apart read better. A token of blanks only keeps them.
      const [, lead, word] = /^( *)(.*)$/s.exec(answer.textOf(token));
      this.leads[i].data = word === "" ? "" : lead;
      this.spans[i].textContent = word === "" ? lead : word;
      this.spans[i].classList.toggle("break", word.startsWith("\n"));
      if (this.complete === i && token.end <= answer.text.length) this.complete = i + 1;
    }
    for (let i = fresh; i < this.spans.length; ++i) this.#paint(i);
    this.tail.textContent = answer.tail;
    this.node.dataset.state = answer.state;
    this.body.setAttribute("aria-label", `Answer, ${plural(answer.numTokens, "token")}. Arrow keys go from token to token.`);
    this.body.setAttribute("aria-busy", String(answer.state === "waiting" || answer.state === "streaming"));
  }

  // The answer has ended, one way or the other.
  finish({ isLast }) {
    this.update();
    this.#showProblem();
    this.showFoot({ isLast });
  }

  repaint() {
    this.spans.forEach((_, i) => this.#paint(i));
  }

  #paint(i) {
    const span = this.spans[i];
    const token = this.answer.tokens[i];
    const { focus } = this;
    const experts = token.experts[focus.row] ?? [];
    if (focus.colours && experts.length > 0) paint(span, experts[0]);
    else unpaint(span);
    const isShown = focus.answer === this.answer && focus.token === i;
    span.classList.toggle("selected", isShown);
    const lit = focus.lit;
    const taken = lit !== null && (token.experts[lit.row] ?? []).includes(lit.expert);
    span.classList.toggle("lit", taken);
    span.classList.toggle("dim", lit !== null && !taken);
  }

  showFoot({ isLast }) {
    const answer = this.answer;
    const notes = [];
    if (answer.text !== "") {
      notes.push(plural(answer.numTokens, "token"));
      const rate = answer.tokensPerSecond;
      if (rate > 0) notes.push(`${rate.toFixed(rate < 10 ? 1 : 0)} per second`);
      if (answer.state === "stopped") notes.push("stopped");
      else if (ENDS[answer.finish]) notes.push(ENDS[answer.finish]);
      notes.push(`seed ${answer.seed}`);
    } else if (answer.state === "stopped") {
      notes.push("Stopped before the first token");
    } else if (answer.state === "done") {
      notes.push("The model ended its answer at once");
    }
    const button = (name, action) => el("button", { type: "button", class: "quiet small", onclick: action }, name);
    const buttons = [];
    if (answer.text !== "") buttons.push(button("Copy", (event) => this.#copy(event.currentTarget)));
    if (isLast && answer.state !== "failed") buttons.push(button("Regenerate", () => this.actions.regenerate()));
    if (notes.length > 0) buttons.unshift(el("span", { class: "notes" }, notes.join(" · ")));
    this.foot.replaceChildren(...buttons);
    if (!isLast) this.problem.querySelector("button")?.remove(); // only the last turn can be asked again
  }

  #showProblem() {
    const { error } = this.answer;
    this.problem.hidden = !error;
    if (!error) return;
    const button =
      error.kind === "key"
        ? el("button", { type: "button", class: "small", onclick: () => this.actions.askKey() }, "Enter key")
        : el("button", { type: "button", class: "small", onclick: () => this.actions.retry() }, "Try again");
    this.problem.replaceChildren(el("p", {}, error.message), button);
    if (error.kind === "busy" || error.kind === "unavailable") countDown(button, error.retryAfter);
  }

  async #copy(button) {
    try {
      await navigator.clipboard.writeText(this.answer.text);
      button.textContent = "Copied";
    } catch {
      // Without clipboard access (plain http beyond this machine) the text is at least selected.
      getSelection().selectAllChildren(this.body);
      button.textContent = "Selected";
    }
    announce(button.textContent);
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }

  #tipLines(i) {
    const token = this.answer.tokens[i];
    const experts = token.experts[this.focus.row] ?? [];
    if (experts.length === 0) return [quoted(this.answer.textOf(token))];
    const gate = token.gates?.[this.focus.row]?.[0];
    const expert = `${this.focus.layerName(this.focus.row)}: expert ${experts[0]}`;
    return [quoted(this.answer.textOf(token)), gate === undefined ? expert : `${expert}, gate ${gateText(gate)}`];
  }

  #hover(target) {
    const i = this.spans.indexOf(target);
    if (i < 0 || !this.focus.colours) hideTip();
    else showTip(target, this.#tipLines(i));
  }

  #click(event) {
    const i = this.spans.indexOf(event.target);
    if (i < 0 || !getSelection().isCollapsed) return; // the reader marks text
    const again = this.focus.answer === this.answer && this.focus.token === i;
    if (again) this.focus.clear();
    else this.focus.selectToken(this.answer, i);
    this.spans[i].scrollIntoView({ block: "nearest" }); // the atlas may just have opened below
    hideTip();
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || this.spans.length === 0) return;
    const at = this.focus.answer === this.answer ? this.focus.token : -1;
    const last = this.spans.length - 1;
    const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const i = Math.max(0, Math.min(last, to));
    this.focus.selectToken(this.answer, i);
    this.spans[i].scrollIntoView({ block: "nearest" });
    const lines = this.#tipLines(i);
    showTip(this.spans[i], lines);
    announce(lines.join(", "));
  }
}

// "Try again in 3 s", then "Try again".
function countDown(button, seconds) {
  let left = Math.min(Math.ceil(seconds), 60);
  const tick = () => {
    button.disabled = left > 0;
    button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left-- > 0 && button.isConnected !== false) setTimeout(tick, 1000);
  };
  tick();
}
