// Markdown as a tree over the text: blocks, here; what stands inside a line, in markdown_inline.js. No markup is ever made here.
//
// A tree is { tag, from, to, kids, ... }; a leaf { from, to, isMark } is a range of the text. The leaves of a tree, in order,
// are the whole text: marks such as ** and > are leaves too, which a view does not show. So no character is ever lost, and
// tokens, which are ranges of the text, keep their places. Of HTML nothing is known: it is text like any other.
//
// Every line is read once per level of nesting, and levels are few, so hostile text costs time in proportion to its length.
import { readInline } from "./markdown_inline.js";

const MAX_DEPTH = 8; // of quotes and lists in each other; deeper ones are text
const MAX_COLUMNS = 64;

const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}>[ \t]?/;
const ITEM = /^( {0,3})(?:([-*+])|(\d{1,9})[.)])(?:[ \t]+|$)/;
const BLANK = /^[ \t]*$/;
const INDENT = /^[ \t]*/;

// Makes the tree from left to right. What is emitted always begins where the last leaf ended.
class Builder {
  constructor(from) {
    this.at = from;
    this.root = { tag: "root", from, to: from, kids: [] };
    this.open_ = [this.root];
  }

  open(tag, more = {}) {
    const node = { tag, from: this.at, to: this.at, kids: [], ...more };
    this.open_.at(-1).kids.push(node);
    this.open_.push(node);
    return node;
  }

  close() {
    this.open_.pop().to = this.at;
  }

  // The text up to `to`, shown or as a mark.
  leaf(to, isMark) {
    if (to <= this.at) return;
    const { kids } = this.open_.at(-1);
    const last = kids.at(-1);
    if (last && !last.tag && last.isMark === isMark) last.to = to;
    else kids.push({ from: this.at, to, isMark });
    this.at = to;
  }
}

// { at, end, next }: the content without what encloses it, and where the next line begins.
function linesOf(text, from) {
  const lines = [];
  for (let at = from; at < text.length; ) {
    const found = text.indexOf("\n", at);
    const next = found < 0 ? text.length : found + 1;
    let end = found < 0 ? next : found;
    if (text[end - 1] === "\r" && end > at) --end;
    lines.push({ at, end, next });
    at = next;
  }
  return lines;
}

class BlockReader {
  constructor(text, isOpen, builder) {
    Object.assign(this, { text, isOpen, builder });
  }

  content(line) {
    return this.text.slice(line.at, line.end);
  }

  // More text may come, and it would come to this line.
  isGrowing(line) {
    return this.isOpen && line.next === this.text.length && line.end === line.next;
  }

  read(lines, depth) {
    for (let i = 0; i < lines.length; ) i = this.block(lines, i, depth);
  }

  // Reads one block that begins with line i; returns the number of the line after it.
  block(lines, i, depth) {
    const { builder } = this;
    const said = this.content(lines[i]);
    if (BLANK.test(said)) {
      builder.leaf(lines[i].next, true);
      return i + 1;
    }
    if (this.isGrowing(lines[i]) && /^ {0,3}(?:#{1,6}|[-+*>|]|`{1,2}|~{1,2}|-{2}|\*{2}|\d{1,9}[.)]?)$/.test(said) && i === lines.length - 1) {
      return this.pending(lines, i, said);
    }
    const fence = FENCE.exec(said);
    if (fence) return this.fence(lines, i, fence);
    const heading = HEADING.exec(said);
    if (heading) return this.heading(lines[i], heading, i);
    if (RULE.test(said)) {
      builder.open("hr");
      builder.leaf(lines[i].next, true);
      builder.close();
      return i + 1;
    }
    if (depth < MAX_DEPTH && QUOTE.test(said)) return this.quote(lines, i, depth);
    if (depth < MAX_DEPTH && ITEM.test(said)) return this.list(lines, i, depth);
    if (said.startsWith("|") && this.isTable(lines, i)) return this.table(lines, i);
    return this.paragraph(lines, i);
  }

  // What may yet become a mark is not shown before it is decided; a number is shown, as it is more likely to stay one.
  pending(lines, i, said) {
    this.builder.open("p");
    this.builder.leaf(lines[i].next, !/\d/.test(said));
    this.builder.close();
    return i + 1;
  }

  fence(lines, i, [, , ticks, info]) {
    const { builder } = this;
    builder.open("pre", { language: /^[ \t]*([\w+#.-]{1,24})/.exec(info)?.[1] ?? "" });
    builder.leaf(lines[i].next, true);
    builder.open("code");
    const closing = new RegExp(`^ {0,3}${ticks[0]}{${ticks.length},}[ \\t]*$`);
    const half = new RegExp(`^ {0,3}${ticks[0]}+$`);
    let j = i + 1;
    for (; j < lines.length; ++j) {
      const said = this.content(lines[j]);
      if (closing.test(said)) break;
      if (this.isGrowing(lines[j]) && half.test(said)) {
        builder.leaf(lines[j].next, true); // half of the closing fence, probably
        continue;
      }
      builder.leaf(lines[j].at, true);
      builder.leaf(lines[j].next, false);
    }
    builder.close();
    if (j < lines.length) builder.leaf(lines[j].next, true);
    builder.close();
    return j + 1;
  }

  heading(line, [all, signs], i) {
    const { builder } = this;
    builder.open("h", { level: signs.length });
    builder.leaf(line.at + all.length, true);
    const closing = /[ \t]+#*[ \t]*$/.exec(this.text.slice(Math.max(line.at + all.length, line.end - 64), line.end));
    const end = closing ? line.end - closing[0].length : line.end;
    this.inline([{ at: line.at + all.length, next: end }]);
    builder.leaf(line.next, true);
    builder.close();
    return i + 1;
  }

  quote(lines, i, depth) {
    this.builder.open("blockquote");
    const inner = [];
    let j = i;
    for (; j < lines.length; ++j) {
      const found = QUOTE.exec(this.content(lines[j]));
      if (!found) break;
      inner.push({ ...lines[j], at: lines[j].at + found[0].length });
    }
    this.read(inner, depth + 1);
    this.builder.close();
    return j;
  }

  list(lines, i, depth) {
    const { builder } = this;
    const [, indent, bullet, number] = ITEM.exec(this.content(lines[i]));
    builder.open(bullet ? "ul" : "ol", bullet ? {} : { start: Number(number) });
    const isNext = (said) => {
      const found = ITEM.exec(said);
      return found && found[1].length <= indent.length + 1 && (found[2] ?? "") === (bullet ?? "") && !RULE.test(said);
    };
    let j = i;
    while (j < lines.length && isNext(this.content(lines[j]))) j = this.item(lines, j, { depth, indent: indent.length, isNext });
    builder.close();
    return j;
  }

  // One item: its first line, and what is set in below it.
  item(lines, i, { depth, indent, isNext }) {
    const { builder } = this;
    const [mark] = ITEM.exec(this.content(lines[i]));
    builder.open("li");
    const inner = [{ ...lines[i], at: lines[i].at + mark.length }];
    let j = i + 1;
    let blanks = 0;
    for (; j < lines.length; ++j) {
      const said = this.content(lines[j]);
      if (BLANK.test(said)) {
        ++blanks;
        inner.push(lines[j]);
        continue;
      }
      const [spaces] = INDENT.exec(said);
      const width = spaces.replaceAll("\t", "    ").length;
      const isSetIn = width >= indent + 2;
      // A line that only goes on with the text above needs no indent.
      if (!isSetIn && (blanks > 0 || isNext(said) || this.beginsBlock(said))) break;
      inner.push({ ...lines[j], at: lines[j].at + Math.min(spaces.length, mark.length) });
      blanks = 0;
    }
    if (blanks > 0 && !(j < lines.length && isNext(this.content(lines[j])))) {
      inner.length -= blanks; // they stand after the list
      j -= blanks;
    }
    this.read(inner, depth + 1);
    builder.close();
    return j;
  }

  beginsBlock(said) {
    const item = ITEM.exec(said);
    return FENCE.test(said) || HEADING.test(said) || RULE.test(said) || QUOTE.test(said) || (item !== null && (item[3] ?? "1") === "1");
  }

  // Bars of a row: offsets of those that part cells. Without the first and, where it ends the line, the last.
  cellsOf(line) {
    const said = this.content(line);
    const bars = [];
    for (let k = 0; k < said.length && bars.length <= MAX_COLUMNS; ++k) {
      if (said[k] === "\\") ++k;
      else if (said[k] === "|") bars.push(k);
    }
    const last = bars.at(-1);
    const ends = bars.length > 1 && BLANK.test(said.slice(last + 1));
    const edges = ends ? bars : [...bars, said.length];
    return edges.slice(1).map((edge, k) => ({ from: edges[k] + 1, to: edge }));
  }

  isDelimiter(line) {
    const said = this.content(line);
    return said.startsWith("|") && this.cellsOf(line).every(({ from, to }) => /^[ \t]*:?-+:?[ \t]*$/.test(said.slice(from, to)));
  }

  isTable(lines, i) {
    const next = lines[i + 1];
    // While a text grows, a line that begins with a bar will be a table's first.
    if (!next || (i + 2 === lines.length && this.isGrowing(next) && /^[-:| \t]*$/.test(this.content(next)))) {
      return this.isOpen && (next ?? lines[i]).next === this.text.length;
    }
    return this.isDelimiter(next) && this.cellsOf(next).length === this.cellsOf(lines[i]).length;
  }

  table(lines, i) {
    const { builder } = this;
    builder.open("table");
    builder.open("thead");
    this.row(lines[i], "th");
    builder.close();
    let j = i + 1;
    if (j < lines.length) builder.leaf(lines[j++].next, true);
    if (j < lines.length && this.content(lines[j]).startsWith("|")) {
      builder.open("tbody");
      for (; j < lines.length && this.content(lines[j]).startsWith("|"); ++j) this.row(lines[j], "td");
      builder.close();
    }
    builder.close();
    return j;
  }

  row(line, tag) {
    const { builder } = this;
    builder.open("tr");
    for (const { from, to } of this.cellsOf(line)) {
      builder.leaf(line.at + from, true);
      builder.open(tag);
      const said = this.text.slice(line.at + from, line.at + to);
      const start = INDENT.exec(said)[0].length;
      builder.leaf(line.at + from + start, true);
      this.inline([{ at: line.at + from + start, next: line.at + from + said.trimEnd().length }]);
      builder.close();
    }
    builder.leaf(line.next, true);
    builder.close();
  }

  paragraph(lines, i) {
    let j = i + 1;
    for (; j < lines.length; ++j) {
      const said = this.content(lines[j]);
      if (BLANK.test(said) || this.beginsBlock(said)) break;
    }
    const { builder } = this;
    builder.open("p");
    // Blanks before the first word are no part of it; models like to begin with one.
    const start = lines[i].at + INDENT.exec(this.content(lines[i]))[0].length;
    const own = lines.slice(i, j);
    own[0] = { ...own[0], at: start };
    const last = own.at(-1);
    own[own.length - 1] = { ...last, next: last.end };
    this.inline(own);
    builder.leaf(last.next, true);
    builder.close();
    return j;
  }

  inline(lines) {
    readInline(this.text, lines, this.builder, this.isOpen && lines.at(-1).next === this.text.length);
  }
}

// The tree of `text` from offset `from`, which must be the beginning of a block. `isOpen`: more may come, so what has been
// begun at the end (a fence, bold words, a link) is taken for what it will be.
export function readMarkdown(text, { isOpen = false, from = 0 } = {}) {
  const builder = new Builder(from);
  new BlockReader(text, isOpen, builder).read(linesOf(text, from), 0);
  builder.leaf(text.length, true);
  builder.root.to = builder.at;
  return builder.root;
}

// The same shape for text that is only text.
export function readPlain(text, { skipsFirstBlanks = false } = {}) {
  const builder = new Builder(0);
  builder.open("plain");
  if (skipsFirstBlanks) builder.leaf(/^ */.exec(text)[0].length, true);
  builder.leaf(text.length, false);
  builder.close();
  builder.root.to = builder.at;
  return builder.root;
}
