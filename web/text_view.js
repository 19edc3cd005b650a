// A tree of markdown.js on screen, its text cut into tokens. What has not changed since the last time keeps its elements,
// so that a growing answer does not flicker and what the reader has marked stays marked.
import { el } from "./dom.js";
import { readMarkdown, readPlain } from "./markdown.js";

// Every element that text of a model can become. Headings begin below the page's own.
const MAKE = {
  plain: () => el("div", { class: "plain" }),
  p: () => el("p"),
  h: ({ level }) => el(`h${Math.min(6, level + 2)}`, { class: "md-h" }),
  hr: () => el("div", { class: "md-rule", role: "separator" }),
  blockquote: () => el("blockquote"),
  ul: () => el("ul"),
  ol: ({ start }) => el("ol", { start }),
  li: () => el("li"),
  code: () => el("code"),
  em: () => el("em"),
  strong: () => el("strong"),
  del: () => el("del"),
  a: () => el("a"),
  thead: () => el("thead"),
  tbody: () => el("tbody"),
  tr: () => el("tr"),
  th: () => el("th", { scope: "col" }),
  td: () => el("td"),
};

// { outer, inner }: what stands in the page, and what holds the kids.
function elementOf(node, copy) {
  if (node.tag === "pre") {
    const inner = el("pre", { tabindex: 0 });
    const button = el("button", { type: "button", class: "quiet small copy-code", onclick: (event) => copy(inner, event.currentTarget) });
    button.setAttribute("aria-label", "Copy code");
    return { outer: el("div", { class: "md-code" }, button, inner), inner };
  }
  if (node.tag === "table") {
    const inner = el("table", { class: "md-table" });
    return { outer: el("div", { class: "md-scroll", tabindex: 0, role: "group", "aria-label": "Table" }, inner), inner };
  }
  const made = MAKE[node.tag](node);
  return { outer: made, inner: made };
}

// What may change while a text grows: where a link leads, the name of a language.
function dress({ outer, inner }, node) {
  if (node.tag === "pre") outer.dataset.language = node.language;
  if (node.tag !== "a") return;
  if (!node.link) return inner.removeAttribute("href");
  const attributes = { href: node.link, title: node.link, target: "_blank", rel: "noopener noreferrer nofollow ugc" };
  for (const [name, value] of Object.entries(attributes)) inner.setAttribute(name, value);
}

const isSameKind = (view, node) =>
  view.tag === node.tag && view.from === node.from && view.isMark === node.isMark && view.level === node.level && view.start === node.start;

export class TextView {
  // hooks: { painted(span, token), copy(node, button) }
  constructor(body, hooks) {
    Object.assign(this, { body, hooks });
    this.caret = el("span", { class: "caret", "aria-hidden": "true" });
    this.#forget();
  }

  #forget() {
    this.views = [];
    this.spans = new Map(); // token -> what is tinted of it, in order
    this.kept = []; // blocks that more text cannot change any more
    this.base = 0; // where they end
  }

  clear() {
    this.#forget();
    this.body.replaceChildren(this.caret);
  }

  // The first element of a token; undefined for one that is all marks.
  spanOf(token) {
    return this.spans.get(token)?.[0];
  }

  tokenOf(span) {
    return span.dataset?.token === undefined ? -1 : Number(span.dataset.token);
  }

  // how: "markdown", "chat" (plain, without the first blank), "plain"
  show(answer, how, isOpen) {
    this.answer = answer;
    const { text } = answer;
    const kids = how === "markdown" ? this.#blocks(text, isOpen) : readPlain(text, { skipsFirstBlanks: how === "chat" }).kids;
    this.covered = answer.tokens.at(-1)?.end ?? 0;
    this.lastLeaf = null;
    this.#children(this.views, this.body, kids);
    (this.lastLeaf?.span ?? this.body).append(this.caret);
  }

  // Blank lines part a text into groups, and what stands before the last two cannot change any more: a list may go on after
  // a blank line, nothing after two groups. The end of an answer is read as a whole once more.
  #blocks(text, isOpen) {
    if (!isOpen) return readMarkdown(text).kids;
    const fresh = readMarkdown(text, { isOpen, from: this.base }).kids;
    const all = [...this.kept, ...fresh];
    const blanks = fresh.flatMap((kid, i) => (kid.tag ? [] : [i]));
    const last = blanks.at(-2);
    if (last !== undefined && last > 0) {
      this.kept = all.slice(0, this.kept.length + last + 1);
      this.base = fresh[last].to;
    }
    return all;
  }

  #children(views, container, kids) {
    let same = 0;
    while (same < views.length && same < kids.length && isSameKind(views[same], kids[same])) ++same;
    for (const view of views.splice(same)) this.#drop(view);
    kids.forEach((kid, i) => {
      let view = views[i];
      const mayChange = i === kids.length - 1 || kid.to > this.covered;
      if (view?.isSettled && !mayChange && view.to === kid.to) return;
      if (!view) {
        view = kid.tag ? this.#makeNode(kid) : this.#makeLeaf(kid);
        views.push(view);
        container.append(view.outer);
      }
      view.to = kid.to;
      view.isSettled = !mayChange;
      if (kid.tag) {
        dress(view, kid);
        this.#children(view.kids, view.inner, kid.kids);
      } else {
        this.#fillLeaf(view);
      }
    });
  }

  #makeNode(node) {
    const { tag, from, level, start } = node;
    return { tag, from, level, start, kids: [], ...elementOf(node, (pre, button) => this.hooks.copy(pre, button)) };
  }

  #makeLeaf({ from, isMark }) {
    const span = el("span", isMark ? { class: "md-mark" } : {});
    return { from, isMark, span, outer: span, parts: [] };
  }

  #drop(view) {
    view.outer.remove();
    if (view.tag) for (const kid of view.kids) this.#drop(kid);
    else for (const part of view.parts) this.#dropPart(part);
  }

  #dropPart({ token, lead, span }) {
    lead.remove();
    span.remove();
    const spans = this.spans.get(token);
    if (!spans) return;
    if (spans.length === 1) this.spans.delete(token);
    else spans.splice(spans.indexOf(span), 1);
  }

  #fillLeaf(view) {
    const { text, tokens } = this.answer;
    const end = Math.min(view.to, text.length);
    if (view.isMark) {
      view.span.textContent = text.slice(view.from, end);
      return;
    }
    this.lastLeaf = view;
    const { parts } = view;
    const isWhole = ({ token, to }) => token >= 0 && tokens[token] && to === Math.min(tokens[token].end, end);
    while (parts.length > 0 && !isWhole(parts.at(-1))) this.#dropPart(parts.pop());
    let at = parts.at(-1)?.to ?? view.from;
    let token = parts.length > 0 ? parts.at(-1).token : firstToken(tokens, at);
    while (at < end) {
      while (token < tokens.length && tokens[token].end <= at) ++token;
      const isTaken = token < tokens.length;
      const to = isTaken ? Math.min(tokens[token].end, end) : end;
      parts.push(this.#makePart(view.span, isTaken ? token : -1, at, to));
      at = to;
    }
  }

  #makePart(container, token, from, to) {
    // Tinted blanks would hang over the ends of lines; words apart read better. A token of blanks only keeps them.
    const [, blanks, word] = /^( *)(.*)$/s.exec(this.answer.text.slice(from, to));
    const lead = new Text(word === "" ? "" : blanks);
    const span = el("span", token < 0 ? { class: "tail" } : { class: "token", "data-token": token }, word === "" ? blanks : word);
    span.classList.toggle("break", word.startsWith("\n"));
    container.append(lead, span);
    if (token >= 0) {
      if (!this.spans.has(token)) this.spans.set(token, []);
      this.spans.get(token).push(span);
      this.hooks.painted(span, token);
    }
    return { token, to, lead, span };
  }
}

// The first token that ends behind `at`.
function firstToken(tokens, at) {
  let [low, high] = [0, tokens.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tokens[middle].end > at) high = middle;
    else low = middle + 1;
  }
  return low;
}
