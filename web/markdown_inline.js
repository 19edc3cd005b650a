// What stands inside lines: code, bold, italic, struck out, links. One pass from left to right, with a short stack of what is open.
import { linkOf } from "./safe_link.js";

const MAX_OPEN = 12; // begun and not ended; the oldest becomes text when one more comes, so that depth and time stay bounded
const MAX_RUN = 3; // longer runs of * and _ are text
const NEXT = /[\\`*_~[\]<]|https?:\/\//gi;
const PUNCTUATION = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const TAGS = { "*": ["em", "strong"], _: ["em", "strong"], "~": [null, "del"] };
const MAX_LINK = 2048;

const isSpace = (c) => c === "" || c === undefined || /\s/.test(c);
const isWord = (c) => c !== undefined && c !== "" && !isSpace(c) && !PUNCTUATION.test(c);
// Signs of an open run that no closing one has taken.
const leftOf = (run) => run.end - run.start - run.taken.reduce((sum, n) => sum + n, 0);

// `lines`: { at, next } ranges of `text` that follow each other, with marks of what encloses them between.
// Emits leaves and nodes to the builder, from where it stands to the end of the last line.
export function readInline(text, lines, builder, isOpen) {
  const reader = new InlineReader(text, lines, isOpen);
  reader.scan();
  reader.emit(builder);
}

class InlineReader {
  constructor(text, lines, isOpen) {
    this.isOpen = isOpen;
    this.lines = lines;
    this.said = lines.map(({ at, next }) => text.slice(at, next)).join("");
    this.items = []; // in order: { end, isMark }, { end, closes: tag }, { run, ... }
    this.stack = []; // runs and brackets that are open
    this.at = 0;
  }

  #text(end, isMark = false) {
    if (end > this.at) this.items.push({ end, isMark });
    this.at = Math.max(this.at, end);
  }

  #push(item) {
    if (this.stack.length === MAX_OPEN) this.stack.shift();
    this.items.push(item);
    this.stack.push(item);
    this.at = item.end;
  }

  scan() {
    const { said } = this;
    const ticks = new Ticks(said);
    NEXT.lastIndex = 0;
    for (let found; (found = NEXT.exec(said)); NEXT.lastIndex = this.at) {
      this.#text(found.index);
      const sign = found[0];
      if (sign === "\\") this.#escape();
      else if (sign === "`") this.#code(ticks);
      else if (sign === "[") this.#push({ end: this.at + 1, bracket: true });
      else if (sign === "]") this.#bracket();
      else if (sign === "<") this.#angle();
      else if (sign.length > 1) this.#address();
      else this.#run(sign);
    }
    this.#text(said.length);
    if (this.isOpen) this.#closeAtEnd();
  }

  #escape() {
    const next = this.said[this.at + 1];
    const hides = next === "\n" || (next !== undefined && /[!-/:-@[-`{-~]/.test(next));
    this.#text(this.at + 1, hides);
    if (hides) this.#text(this.at + 1);
  }

  #code(ticks) {
    const { said, at } = this;
    const length = ticks.lengthAt(at);
    const inner = at + length;
    let end = ticks.after(at, length);
    let close = end + length;
    if (end < 0) {
      const begins = !isWord(said[at - 1]) && !isSpace(said[inner]);
      if (this.isOpen && inner === said.length) return this.#text(inner, true);
      if (!this.isOpen || !begins) return this.#text(inner);
      // A tick at the very end is the closing one, when it has one fellow more to come.
      end = close = said.length;
      while (end > inner && said[end - 1] === "`" && close - end < length) --end;
    }
    // One blank on both sides parts the ticks from ticks inside.
    const padded = end - inner > 2 && said[inner] === " " && said[end - 1] === " " ? 1 : 0;
    this.#text(inner + padded, true);
    this.items.push({ end: this.at, opens: "code" });
    this.#text(end - padded);
    this.items.push({ end: this.at, closes: true });
    return this.#text(close, true);
  }

  // ] ends a link when an address follows.
  #bracket() {
    const { said, stack } = this;
    const open = stack.findLastIndex((item) => item.bracket);
    if (open < 0) return this.#text(this.at + 1);
    const found = said[this.at + 1] === "(" ? this.#destination(this.at + 2) : null;
    if (!found) {
      stack.splice(open, 1);
      return this.#text(this.at + 1);
    }
    const item = stack[open];
    Object.assign(item, { link: found.link ?? "", isLink: true });
    // What was begun inside ends with it; and there is no link in a link.
    this.stack = stack.slice(0, open).filter((other) => !other.bracket);
    if (found.link === null && !found.isCut) item.isLink = false; // not a place to go to: the reader sees the source
    if (!item.isLink) return this.#text(found.end);
    this.items.push({ end: this.at, closes: true });
    return this.#text(found.end, true);
  }

  // After "](": { link, end }, or null where it is none. An address may hold one level of parentheses.
  #destination(from) {
    const { said } = this;
    let depth = 0;
    let end = from;
    for (; end < said.length && end - from <= MAX_LINK; ++end) {
      const c = said[end];
      if (c === "(") ++depth;
      else if (c === ")" && depth-- === 0) break;
      else if (/[\s<>[\]]/.test(c)) break;
      if (depth > 1) return null;
    }
    if (end === said.length) return this.isOpen ? { link: null, isCut: true, end } : null;
    const title = said[end] === " " ? /^ +(?:"[^"\n]{0,200}"|'[^'\n]{0,200}')\)/.exec(said.slice(end, end + 256)) : null;
    if (said[end] !== ")" && !title) return null;
    return { link: linkOf(said.slice(from, end)), end: title ? end + title[0].length : end + 1 };
  }

  // <https://...>
  #angle() {
    const found = /^<(https?:\/\/[^\s<>]{1,2048})>/i.exec(this.said.slice(this.at, this.at + MAX_LINK + 4));
    const link = found && linkOf(found[1]);
    if (!link) return this.#text(this.at + 1);
    this.#text(this.at + 1, true);
    this.#link(this.at + found[1].length, link);
    return this.#text(this.at + 1, true);
  }

  // An address that stands in the text.
  #address() {
    const { said, at } = this;
    const [found] = /^[^\s<>"`|\\^{}]{1,2048}/.exec(said.slice(at, at + MAX_LINK));
    let end = found.length;
    let unmatched = 0;
    for (const c of found) unmatched += c === "(" ? -1 : c === ")" ? 1 : 0;
    for (; end > 0; --end) {
      const c = found[end - 1];
      if (c === ")" && unmatched > 0) --unmatched;
      else if (!/[.,;:!?'*_~\]]/.test(c)) break;
    }
    const link = isWord(said[at - 1]) || this.stack.some((item) => item.bracket) ? null : linkOf(found.slice(0, end));
    if (!link) return this.#text(at + Math.max(end, 4));
    return this.#link(at + end, link);
  }

  #link(end, link) {
    this.items.push({ end: this.at, opens: "a", link });
    this.#text(end);
    this.items.push({ end: this.at, closes: true });
  }

  // * ** *** _ __ ___ ~~
  #run(sign) {
    const { said, at } = this;
    let end = at + 1;
    while (said[end] === sign) ++end;
    const length = end - at;
    const [before, after] = [said[at - 1], said[end]];
    if (length > MAX_RUN || (sign === "~" && length !== 2)) {
      return this.#text(end, this.isOpen && end === said.length && sign === "~" && length === 1);
    }
    const isLeft = !isSpace(after) && (isWord(after) || !isWord(before));
    const isRight = !isSpace(before) && (isWord(before) || !isWord(after));
    const canClose = isRight && (sign !== "_" || !isWord(after));
    const canOpen = isLeft && (sign !== "_" || !isWord(before));
    const mayGrow = this.isOpen && end === said.length;
    if (mayGrow && this.stack.some((item) => item.run === sign && leftOf(item) > length)) return this.#text(end, true);
    if (canClose) this.#closeRun(sign, end);
    if (this.at === end) return undefined;
    if (mayGrow) return this.#text(end, true); // it may open or close; the next letter tells
    if (!canOpen) return this.#text(end);
    return this.#push({ end, run: sign, start: this.at, taken: [] });
  }

  // Takes signs from the run at this.at .. end and from runs that are open.
  #closeRun(sign, end) {
    for (;;) {
      const left = end - this.at;
      const open = this.stack.findLastIndex((item) => item.run === sign);
      if (left === 0 || open < 0) return;
      const item = this.stack[open];
      const both = Math.min(2, left, leftOf(item));
      const tag = TAGS[sign][both - 1];
      if (!tag) return;
      this.stack.length = open + 1; // what was begun inside and not ended is text
      item.taken.push(both);
      if (leftOf(item) === 0) this.stack.pop();
      this.#text(this.at + both, true);
      this.items.push({ end: this.at, closes: true });
    }
  }

  // The text grows: what is open is taken to be ended later, from the inside out.
  #closeAtEnd() {
    for (const item of this.stack.reverse()) {
      if (!item.run || item.end === this.said.length) continue;
      const left = leftOf(item);
      const sizes = item.run === "~" ? [2] : left === 3 ? [1, 2] : [left];
      for (const size of sizes) {
        item.taken.push(size);
        this.items.push({ end: this.at, closes: true });
      }
    }
    this.stack = [];
  }

  emit(builder) {
    const place = new Place(this.lines, builder);
    for (const item of this.items) {
      if (item.run) {
        let at = item.start + leftOf(item);
        place.leaf(at, false);
        for (const size of item.taken.toReversed()) {
          place.leaf((at += size), true);
          builder.open(TAGS[item.run][size - 1]);
        }
      } else if (item.bracket) {
        place.leaf(item.end, Boolean(item.isLink));
        if (item.isLink) builder.open("a", { link: item.link });
      } else if (item.opens) {
        builder.open(item.opens, item.link ? { link: item.link } : {});
      } else if (item.closes) {
        builder.close();
      } else {
        place.leaf(item.end, item.isMark);
      }
    }
  }
}

// Offsets in the joined lines -> offsets in the text, with what stands between lines as marks.
class Place {
  constructor(lines, builder) {
    Object.assign(this, { lines, builder });
    this.line = 0;
    this.start = 0; // of the line, in the joined lines
    builder.leaf(lines[0].at, true);
  }

  leaf(end, isMark) {
    const { lines, builder } = this;
    for (;;) {
      const { at, next } = lines[this.line];
      const length = next - at;
      builder.leaf(at + Math.min(length, end - this.start), isMark);
      if (end - this.start <= length || this.line + 1 === lines.length) return;
      this.start += length;
      builder.leaf(lines[++this.line].at, true);
    }
  }
}

// Runs of backticks, and for each the next of the same length; found once, so that ticks without a fellow cost no search.
class Ticks {
  constructor(said) {
    this.lengths = new Map();
    this.next = new Map();
    const last = new Map();
    for (const { index, 0: run } of said.matchAll(/`+/g)) {
      this.lengths.set(index, run.length);
      if (last.has(run.length)) this.next.set(last.get(run.length), index);
      last.set(run.length, index);
    }
  }

  lengthAt(at) {
    return this.lengths.get(at) ?? 1;
  }

  after(at, length) {
    return this.lengths.get(at) === length ? (this.next.get(at) ?? -1) : -1;
  }
}
