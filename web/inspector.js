// The lower part of the atlas: one token through all layers, or one expert and the tokens it takes most.
import { el, gateText, plural, quoted, ratioText } from "./dom.js";
import { gridNavigation } from "./grid_nav.js";
import { paint } from "./palette.js";

const NUM_TOKENS = 12; // of an expert's list
const LIFT = "How much more often than chance";

function head(title, onClose) {
  const clear = el("button", { type: "button", class: "quiet small", onclick: onClose }, "Clear");
  return el("div", { class: "section-head" }, el("h3", {}, title), clear);
}

// New content; the keyboard's place moves to `heir` when it was in the old.
function fill(section, heir, ...children) {
  const hadFocus = section.contains(document.activeElement);
  section.replaceChildren(...children);
  section.hidden = false;
  if (hadFocus) (heir ?? section.querySelector("button")).focus();
}

function chip(expert, attributes, ...children) {
  const node = el("button", { type: "button", class: "chip", ...attributes }, ...children);
  paint(node, expert);
  return node;
}

// The experts of a token in each layer, with their gates.
export function showToken(section, focus) {
  const token = focus.tokenShown;
  const largest = Math.max(...(token.gates ?? []).flat());
  const rows = token.experts.map((experts, row) => {
    const number = focus.layers[row] ?? row;
    const label = `Colour by layer ${number}`;
    const layer = el("button", { type: "button", class: "layer-name", "aria-label": label, onclick: () => focus.set({ row }) }, String(number));
    const cells = experts.map((expert, rank) => {
      const gate = token.gates?.[row]?.[rank];
      const name = `Layer ${number}, expert ${expert}${gate === undefined ? "" : `, gate ${gateText(gate)}`}`;
      const node = chip(
        expert,
        { "aria-label": name, title: name, onclick: () => focus.pick(row, expert) },
        el("span", { class: "chip-name" }, String(expert)),
        el("span", { class: "chip-value" }, gateText(gate)),
      );
      node.style.setProperty("--part", gate === undefined ? 1 : gate / largest);
      return node;
    });
    return { layer, cells };
  });
  const table = el(
    "div",
    { class: "ways", role: "group", "aria-label": "Experts and gates by layer, strongest first. Arrow keys move, Enter selects." },
    ...rows.map(({ layer, cells }, row) => el("div", { class: `way-row${row === focus.row ? " chosen" : ""}` }, layer, ...cells)),
  );
  table.style.setProperty("--slots", Math.max(...token.experts.map((experts) => experts.length), 1));
  const { enter } = gridNavigation(
    table,
    rows.map(({ layer, cells }) => [layer, ...cells]),
  );
  enter(rows[focus.row]?.layer ?? null);
  fill(
    section,
    rows[focus.row]?.layer,
    head(`Token ${quoted(focus.answer.textOf(token))}`, () => focus.clear()),
    el("p", { class: "hint" }, `Number ${focus.token + 1} of the answer. Each row is a layer; the figures are gates.`),
    table,
  );
}

// `load` is the layer's entry in /v1/experts; `taken` the body of /v1/experts/tokens, null while it is on its way, or an error.
export function showExpert(section, focus, load, taken) {
  const { row, expert } = focus.picked;
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  paint(swatch, expert);
  const heading = head(`${focus.layerName(row)}, expert ${expert}`, () => focus.clear());
  heading.querySelector("h3").prepend(swatch);
  const lines = [];
  if (load) {
    const times = `taken ${plural(load.tokens[expert], "time")}, ${load.first[expert].toLocaleString("en")} of them as the strongest`;
    lines.push(`${ratioText(load.ratio[expert])} fair share: ${times}.`);
  }
  const here = focus.answer?.tokens.filter((token) => token.experts[row]?.includes(expert)).length ?? 0;
  if (focus.answer?.tokens.length) lines.push(`In this answer: ${plural(here, "token")}.`);
  fill(section, null, heading, ...lines.map((line) => el("p", { class: "hint" }, line)), takenList(taken));
}

function takenList(taken) {
  if (taken === null) return el("p", { class: "hint" }, "Asking which tokens it takes most…");
  if (taken instanceof Error) return el("p", { class: "hint" }, `Which tokens it takes is not known: ${taken.message}`);
  if (taken.tokens.length === 0) return el("p", { class: "hint" }, "It has taken no token since the last reset.");
  const most = taken.tokens[0].count;
  const rows = taken.tokens.slice(0, NUM_TOKENS).map((token) => {
    const bar = el("span", { class: "bar-fill", "aria-hidden": "true" });
    bar.style.setProperty("--part", token.count / most);
    const lift = el("span", { class: "lift", title: LIFT }, token.lift >= 0.1 ? ratioText(token.lift) : "");
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, quoted(token.text)),
      el("td", { class: "bar-cell" }, bar),
      el("td", {}, token.count.toLocaleString("en")),
      el("td", {}, lift),
    );
  });
  return el(
    "table",
    { class: "taken" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col", colspan: 2 }, "Tokens it takes most"),
        el("th", { scope: "col" }, "times"),
        el("th", { scope: "col", title: LIFT }, "lift"),
      ),
    ),
    el("tbody", {}, ...rows),
  );
}
