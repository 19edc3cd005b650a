// One answer on screen: its tokens, what went wrong, and what can be done with it.
import { announce, copyText, el, gateText, plural, quoted } from "./dom.js";
import { paint, unpaint } from "./palette.js";
import { TextView } from "./text_view.js";
import { hideTip, showTip } from "./tip.js";

const ENDS = { length: "reached max tokens", stop: "" };
const SHORT = 4000; // characters that are shown in less than a millisecond or two
const LONGEST_REST_MS = 1000;
const NEAR = "1200px"; // what is farther out of sight is painted when it comes nearer

const watcher = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => target.near?.(isIntersecting)), {
  rootMargin: NEAR,
});

export class AnswerView {
  // turn: { mode, text }. actions: { markdown(), buttons(answer) -> [{ name, says, run(button) }], retry(), askKey() }
  constructor(turn, answer, focus, actions) {
    Object.assign(this, { turn, answer, focus, actions });
    this.timer = this.frame = 0; // of what is to be shown soon
    this.freeAt = 0; // when the browser has done other things for long enough
    this.isNear = true;
    this.painted = {}; // what the focus was when the tokens were painted
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
    this.given = turn.mode === "continue" ? el("span", { class: "given" }, turn.text) : null;
    this.text = new TextView(this.body, {
      painted: (span, token) => this.#paint(span, token),
      copy: (pre, button) => copyText(textShown(pre), button, pre),
    });
    this.foot = el("div", { class: "foot" });
    this.problem = el("div", { class: "problem", role: "alert", hidden: true });
    this.node = el("div", { class: "answer" }, this.body, this.problem, this.foot);
    this.node.near = (isNear) => {
      this.isNear = isNear;
      if (isNear) this.repaint();
    };
    watcher.observe(this.node);
    this.restart(answer);
  }

  // Begins anew, with another answer.
  restart(answer = this.answer) {
    this.answer = answer;
    this.problem.hidden = true;
    this.foot.replaceChildren();
    this.text.clear();
    if (this.given) this.body.prepend(this.given);
    this.show();
  }

  remove() {
    this.#cancel();
    watcher.unobserve(this.node);
    this.node.remove();
  }

  // For an answer that grows: at once while it is short, then at most once a frame. `then` runs when it is on screen.
  // A line of thousands of tokens takes a browser long to lay out: what is shown is a third of its time at most.
  showSoon(then) {
    if (this.timer || this.frame) return;
    const rest = Math.min(this.freeAt - performance.now(), LONGEST_REST_MS);
    if (rest <= 0 && this.answer.text.length < SHORT) return this.#showNow(then);
    const onFrame = () => {
      this.timer = 0;
      this.frame = requestAnimationFrame(() => this.#showNow(then));
    };
    if (rest <= 0) onFrame();
    else this.timer = setTimeout(onFrame, rest);
  }

  #showNow(then) {
    this.frame = 0;
    const start = performance.now();
    this.show();
    then();
    const end = performance.now();
    this.freeAt = end + 2 * (end - start);
  }

  #cancel() {
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.timer = this.frame = 0;
  }

  show() {
    const { answer } = this;
    const isChat = this.turn.mode === "chat";
    this.text.show(answer, isChat ? (this.actions.markdown() ? "markdown" : "chat") : "plain", answer.isOpen);
    this.node.dataset.state = answer.state;
    this.node.classList.toggle("empty", answer.text === "" && !this.given);
    this.body.setAttribute("aria-label", `Answer, ${plural(answer.numTokens, "token")}. Arrow keys go from token to token.`);
    this.body.setAttribute("aria-busy", String(answer.isOpen));
  }

  // The answer has ended, one way or the other.
  finish() {
    this.#cancel();
    this.show();
    this.#showProblem();
    this.showFoot();
  }

  repaint() {
    const { focus } = this;
    const isShown = focus.answer === this.answer;
    const now = { row: focus.row, colours: focus.colours, lit: focus.lit, token: isShown ? focus.token : -1 };
    const was = this.painted;
    if (!this.isNear && was.row !== undefined) return;
    const isSame = was.row === now.row && was.colours === now.colours && was.lit?.row === now.lit?.row && was.lit?.expert === now.lit?.expert;
    this.painted = now;
    this.body.classList.toggle("lighting", now.lit !== null);
    const touched = isSame ? new Set([was.token, now.token]) : this.text.spans.keys();
    for (const token of touched) for (const span of this.text.spans.get(token) ?? []) this.#paint(span, token);
  }

  #paint(span, i) {
    const { focus } = this;
    const token = this.answer.tokens[i];
    const experts = token.experts[focus.row] ?? [];
    if (focus.colours && experts.length > 0) paint(span, experts[0]);
    else unpaint(span);
    const { lit } = focus;
    const taken = lit !== null && (token.experts[lit.row] ?? []).includes(lit.expert);
    span.classList.toggle("selected", focus.answer === this.answer && focus.token === i);
    span.classList.toggle("lit", taken);
  }

  showFoot() {
    const { answer } = this;
    if (answer.isOpen) return;
    const notes = [];
    if (answer.text !== "") {
      if (answer.usage || answer.tokens.length > 0) notes.push(plural(answer.numTokens, "token")); // else no one has counted
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
    const buttons = this.actions.buttons(answer).map(({ name, says, run }) => {
      const button = el("button", { type: "button", class: "quiet small", title: says, onclick: () => run(button) }, name);
      return button;
    });
    if (answer.text !== "") {
      const button = el("button", { type: "button", class: "quiet small", onclick: () => copyText(answer.text, button, this.body) }, "Copy");
      buttons.unshift(button);
    }
    if (notes.length > 0) buttons.unshift(el("span", { class: "notes" }, notes.join(" · ")));
    this.foot.replaceChildren(...buttons);
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

  // Only the last turn can be asked again.
  dropRetry() {
    this.problem.querySelector("button")?.remove();
  }

  #tipLines(i) {
    const { answer, focus } = this;
    const token = answer.tokens[i];
    const said = quoted(answer.textOf(token));
    const experts = token.experts[focus.row] ?? [];
    if (experts.length === 0) return [said];
    const gate = token.gates?.[focus.row]?.[0];
    const expert = `${focus.layerName(focus.row)}: expert ${experts[0]}`;
    return [said, gate === undefined ? expert : `${expert}, gate ${gateText(gate)}`];
  }

  #hover(target) {
    const i = this.text.tokenOf(target);
    if (i < 0 || !this.focus.colours) hideTip();
    else showTip(target, this.#tipLines(i));
  }

  #click(event) {
    const i = this.text.tokenOf(event.target);
    if (i < 0 || !getSelection().isCollapsed || event.target.closest("a")) return; // the reader marks text, or follows a link
    const again = this.focus.answer === this.answer && this.focus.token === i;
    if (again) this.focus.clear();
    else this.focus.selectToken(this.answer, i);
    event.target.scrollIntoView({ block: "nearest" }); // the atlas may just have opened below
    hideTip();
  }

  #key(event) {
    const { tokens } = this.answer;
    if (event.altKey || event.ctrlKey || event.metaKey || tokens.length === 0 || event.target !== this.body) return;
    const at = this.focus.answer === this.answer ? this.focus.token : -1;
    const last = tokens.length - 1;
    const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const i = Math.max(0, Math.min(last, to));
    this.focus.selectToken(this.answer, i);
    const lines = this.#tipLines(i);
    const span = this.text.spanOf(i);
    span?.scrollIntoView({ block: "nearest" });
    if (span) showTip(span, lines);
    else hideTip(); // a mark such as **, which stands nowhere
    announce(lines.join(", "));
  }
}

// The text of a block of code, without what is not shown.
function textShown(pre) {
  return [...pre.querySelectorAll("code > span:not(.md-mark)")].map((span) => span.textContent).join("");
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
