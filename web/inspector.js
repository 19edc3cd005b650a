// The lower part of the atlas: one token through all layers, or one expert and the tokens it takes most.
import { el, gateText, plural, quoted, ratioText } from "./dom.js";
import { gridNavigation } from "./grid_nav.js";
import { paint } from "./palette.js";

const NUM_TOKENS = 12; // of an expert's list
const PROBABILITY = "Before temperature, top-p and penalties change it";
const LIFT = "Lift: the token's share of what this expert took, over its share of all tokens. At 3× it comes three times as often as by chance.";

function head(title, onClose) {
  const clear = el("button", { type: "button", class: "quiet small", onclick: onClose }, "Clear");
  return el("div", { class: "section-head" }, el("h3", {}, title), clear);
}

// New content; the keyboard's place moves to `heir` when it was in the old.
function fill(section, heir, ...children) {
  const hadFocus = section.contains(document.activeElement);
  const pressed = document.activeElement?.getAttribute("aria-pressed") === null ? null : document.activeElement.textContent;
  section.replaceChildren(...children.filter(Boolean));
  section.hidden = false;
  const same = hadFocus && pressed ? [...section.querySelectorAll("[aria-pressed]")].find((node) => node.textContent === pressed) : null;
  if (hadFocus) (same ?? heir ?? section.querySelector("button")).focus();
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
  const alternatives = focus.answer.alternatives[focus.token] ?? [];
  fill(
    section,
    rows[focus.row]?.layer,
    head(`Token ${quoted(focus.answer.textOf(token))}`, () => focus.clear()),
    el("p", { class: "hint" }, `Number ${focus.token + 1} of the answer. Each row is a layer; the figures are gates.`),
    table,
    alternatives.length > 0 ? alternativesOf(alternatives, focus.answer.textOf(token)) : null,
  );
}

// What the model might have said here, with its probabilities.
function alternativesOf(alternatives, chosen) {
  const isChosen = ({ text }) => text === chosen;
  const place = alternatives.findIndex(isChosen);
  const rows = alternatives.map((one, i) => {
    const part = Math.exp(one.logprob);
    const bar = el("span", { class: "bar-fill", "aria-hidden": "true" });
    bar.style.setProperty("--part", part);
    return el(
      "tr",
      { class: i === place ? "chosen" : null },
      el("th", { scope: "row" }, quoted(one.text), i === place ? el("span", { class: "unseen" }, " (chosen)") : null),
      el("td", { class: "bar-cell" }, bar),
      el("td", {}, percentText(part)),
    );
  });
  return el(
    "table",
    { class: "taken alternatives" },
    el(
      "thead",
      {},
      el("tr", {}, el("th", { scope: "col", colspan: 2 }, "The model's likeliest tokens here"), el("th", { scope: "col", title: PROBABILITY }, "probability")),
    ),
    el("tbody", {}, ...rows),
  );
}

const percentText = (part) => (part < 0.0005 ? "<0.1 %" : `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)} %`);

// `load` is the layer's entry in /v1/experts; `taken` the body of /v1/experts/tokens, null while it is on its way, or an error.
// order: { byLift, floor, choose(byLift) }.
export function showExpert(section, focus, load, taken, order) {
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
  fill(section, null, heading, ...lines.map((line) => el("p", { class: "hint" }, line)), takenList(taken, order));
}

// By lift or by count: two buttons of which one is down.
function orderChoice({ byLift, choose }) {
  const button = (name, isLift, says) =>
    el("button", { type: "button", class: "quiet small", "aria-pressed": String(byLift === isLift), title: says, onclick: () => choose(isLift) }, name);
  return el("span", { class: "order", role: "group", "aria-label": "Order of the tokens" }, button("by lift", true, LIFT), button("by count", false, "How many times it took the token"));
}

function takenList(taken, order) {
  if (taken === null) return el("p", { class: "hint" }, "Asking which tokens it takes most…");
  if (taken instanceof Error) return el("p", { class: "hint" }, `Which tokens it takes is not known: ${taken.message}`);
  const { byLift, floor } = order;
  if (taken.tokens.length === 0) {
    const none = byLift && taken.total > 0 ? `It has taken no token ${floor} times yet; rarer ones say little.` : "It has taken no token since the last reset.";
    return el("div", { class: "taken-list" }, el("p", { class: "hint" }, none), orderChoice(order));
  }
  const sizeOf = (token) => (byLift ? token.lift : token.count);
  const most = Math.max(...taken.tokens.map(sizeOf));
  const rows = taken.tokens.slice(0, NUM_TOKENS).map((token) => {
    const bar = el("span", { class: "bar-fill", "aria-hidden": "true" });
    bar.style.setProperty("--part", sizeOf(token) / most);
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
  const table = el(
    "table",
    { class: `taken${byLift ? " by-lift" : ""}` },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col", colspan: 2 }, byLift ? "Tokens it favours" : "Tokens it takes most"),
        el("th", { scope: "col" }, "times"),
        el("th", { scope: "col", title: LIFT }, "lift"),
      ),
    ),
    el("tbody", {}, ...rows),
  );
  const hint = byLift ? el("p", { class: "hint" }, `Of tokens taken at least ${floor} times. ${LIFT}`) : null;
  return el("div", { class: "taken-list" }, orderChoice(order), table, hint);
}
