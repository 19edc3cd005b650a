// The map of load: a row per MoE layer, a cell per expert, coloured by load over fair share.
import { el, plural, ratioText } from "./dom.js";
import { gridNavigation } from "./grid_nav.js";
import { LOAD_STEPS, loadStep } from "./palette.js";

const MAX_ROW_PX = 22;
const MIN_ROW_PX = 7;
const MAP_PX = 232;
const NUMBERS_ROW_PX = 18;
const MAX_NAMES = 16; // of columns, above the map
const MAX_SPACED = 32; // cells in a row with gaps between them; more would be mostly gaps
const IDLE_TEXT = "Rows are layers, columns experts. 1× is a fair share.";

export class HeatMap {
  // hooks: { pick(row, expert), layer(row), hint({row, expert} | null) }
  constructor(root, readout, hooks) {
    Object.assign(this, { root, readout, hooks });
    this.heads = [];
    this.cells = []; // [row][expert]
    this.target = null; // what the readout is about
    this.shape = "";
    this.load = null;
    readout.textContent = IDLE_TEXT;
    root.setAttribute("role", "grid");
    root.setAttribute("aria-label", "Load of each expert. Arrow keys move, Enter selects.");
    root.addEventListener("click", (event) => this.#act(event.target));
    root.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && this.#act(event.target, event));
    root.addEventListener("mouseover", (event) => this.#read(event.target));
    root.addEventListener("focusin", (event) => this.#read(event.target));
    root.addEventListener("mouseleave", () => this.#read(null));
    root.addEventListener("focusout", () => this.#read(null));
  }

  // `load` is the body of /v1/experts.
  show(load) {
    const shape = load.layers.map((layer) => `${layer.layer}:${layer.num_experts}`).join();
    if (shape !== this.shape) this.#build(load);
    this.shape = shape;
    this.load = load;
    load.layers.forEach((layer, row) =>
      layer.ratio.forEach((ratio, expert) => {
        const cell = this.cells[row][expert];
        const step = String(loadStep(ratio));
        if (cell.dataset.step !== step) cell.dataset.step = step;
        const figure = ratio > 0 ? ratio.toFixed(ratio >= 9.95 ? 0 : 1) : "0";
        if (cell.dataset.figure !== figure) cell.dataset.figure = figure;
      }),
    );
    if (this.target) this.#read(this.target);
  }

  #build(load) {
    const rowPx = Math.max(MIN_ROW_PX, Math.min(MAX_ROW_PX, Math.floor(MAP_PX / load.layers.length)));
    this.root.style.setProperty("--row", `${rowPx}px`);
    const columns = Math.max(...load.layers.map((layer) => layer.num_experts));
    this.root.style.setProperty("--columns", columns);
    this.root.style.setProperty("--numbers-row", `${Math.max(rowPx, NUMBERS_ROW_PX)}px`);
    this.root.classList.toggle("dense", columns > MAX_SPACED);
    // Names of rows need about 11 px; when rows are thinner, every second or third has one.
    const every = Math.ceil(11 / rowPx);
    this.heads = [];
    this.cells = [];
    this.target = null;
    const rows = load.layers.map((layer, row) => {
      const name = row % every === 0 ? String(layer.layer) : "";
      const label = `Layer ${layer.layer}`;
      const head = el("span", { class: "map-head", role: "rowheader", "data-row": row, "aria-label": label }, name);
      const cells = Array.from({ length: layer.num_experts }, (_, expert) =>
        el("span", { class: "cell", role: "gridcell", "data-row": row, "data-of": expert, "data-step": 0 }),
      );
      this.heads.push(head);
      this.cells.push(cells);
      return el("div", { class: "map-row", role: "row" }, head, ...cells);
    });
    this.root.replaceChildren(columnNames(columns), ...rows);
    gridNavigation(
      this.root,
      this.cells.map((cells, row) => [this.heads[row], ...cells]),
    );
  }

  // The chosen layer, the picked expert, and the way of a token: its experts per row, strongest first.
  mark({ row, picked, path }) {
    this.heads.forEach((head, i) => head.parentNode.classList.toggle("chosen", i === row));
    for (const cell of this.root.querySelectorAll(".picked, .way, .way-top")) cell.classList.remove("picked", "way", "way-top");
    if (picked) this.cells[picked.row]?.[picked.expert]?.classList.add("picked");
    path?.forEach((experts, i) =>
      experts.forEach((expert, rank) => this.cells[i]?.[expert]?.classList.add(rank === 0 ? "way-top" : "way")),
    );
  }

  #act(target, event) {
    const row = Number(target.dataset?.row ?? -1);
    if (row < 0) return;
    event?.preventDefault();
    if (target.dataset.of === undefined) this.hooks.layer(row);
    else this.hooks.pick(row, Number(target.dataset.of));
  }

  #read(target) {
    const layer = this.load?.layers[Number(target?.dataset?.row ?? -1)];
    this.target = layer ? target : null;
    if (!layer) {
      this.readout.textContent = IDLE_TEXT;
      this.hooks.hint(null);
      return;
    }
    if (target.dataset.of === undefined) {
      this.readout.textContent = `Layer ${layer.layer}: busiest expert at ${ratioText(layer.max_ratio)} fair share`;
      return;
    }
    const expert = Number(target.dataset.of);
    const load = `${ratioText(layer.ratio[expert])} fair share, ${plural(layer.tokens[expert], "token")}`;
    const text = `Layer ${layer.layer}, expert ${expert}: ${load}`;
    this.readout.textContent = text;
    target.setAttribute("aria-label", text);
    this.hooks.hint({ row: Number(target.dataset.row), expert });
  }
}

// Numbers of experts above their columns, as many as find room.
function columnNames(columns) {
  const every = [1, 2, 4, 8, 16, 32, 64, 128].find((step) => columns / step <= MAX_NAMES) ?? columns;
  const names = Array.from({ length: columns }, (_, expert) => el("span", {}, expert % every === 0 ? String(expert) : ""));
  return el("div", { class: "map-names", "aria-hidden": "true" }, el("span"), ...names);
}

export function fillScale(list) {
  list.replaceChildren(
    ...LOAD_STEPS.map((step, i) =>
      el(
        "li",
        { title: step.name },
        el("span", { class: "cell", "data-step": i }),
        el("span", { "aria-hidden": "true" }, step.from),
        el("span", { class: "unseen" }, step.name),
      ),
    ),
  );
}
