// The expert atlas: polls the load, shows the layer's experts in this answer, and what the reader picked.
import { topExperts } from "./answer.js";
import { byId, el, plural } from "./dom.js";
import { gridNavigation } from "./grid_nav.js";
import { HeatMap, fillScale } from "./heat_map.js";
import { showExpert, showToken } from "./inspector.js";
import { paint } from "./palette.js";

const BUSY_MS = 700; // between polls while an answer comes
const IDLE_MS = 3000;
const FAILED_MS = 6000;
const NUM_LEGEND = 10;
const FLOOR = 5; // a token that an expert took fewer times has a lift that says little
const EARLY = { tokens: 300, floor: 2 }; // while few tokens were forwarded at all

function hideInspector(section) {
  const hadFocus = section.contains(document.activeElement);
  section.hidden = true;
  if (hadFocus) byId("map").querySelector('[tabindex="0"]')?.focus();
}

export class Atlas {
  // hooks: { isBusy(), isOpen(), trouble(error | null), grown() }
  constructor(api, focus, hooks) {
    Object.assign(this, { api, focus, hooks });
    this.load = null;
    this.taken = null; // of the picked expert
    this.byLift = true; // its tokens' order
    this.asked = "";
    this.inspected = []; // what the inspector shows
    this.timer = 0;
    this.frame = null;
    this.map = new HeatMap(byId("map"), byId("map-readout"), {
      pick: (row, expert) => focus.pick(row, expert),
      layer: (row) => focus.set({ row }),
      hint: (hinted) => this.#hint(hinted),
    });
    fillScale(byId("map-scale"));
    byId("layer-down").addEventListener("click", () => focus.set({ row: focus.row - 1 }));
    byId("layer-up").addEventListener("click", () => focus.set({ row: focus.row + 1 }));
    byId("load-reset").addEventListener("click", () => this.#reset());
    focus.addEventListener("change", () => this.show());
    document.addEventListener("visibilitychange", () => this.poll());
  }

  // Asks for the load now, and again after a while; nothing is asked when nobody looks.
  async poll() {
    clearTimeout(this.timer);
    if (document.hidden || !this.hooks.isOpen()) return;
    let wait = this.hooks.isBusy() ? BUSY_MS : IDLE_MS;
    const turn = Symbol("poll");
    this.turn = turn;
    try {
      this.#take(await this.api.json("GET", "v1/experts"));
      this.hooks.trouble(null);
    } catch (error) {
      wait = FAILED_MS;
      this.hooks.trouble(error);
    }
    if (this.turn === turn) this.timer = setTimeout(() => this.poll(), wait);
  }

  #take(load) {
    const isFirst = this.load === null;
    this.load = load;
    const layers = load.layers.map((layer) => layer.layer);
    if (layers.join() !== this.focus.layers.join()) this.focus.set({ layers });
    const { tokens } = load.window;
    byId("load-window").textContent = tokens === 0 ? "no tokens yet" : plural(tokens, "token");
    this.map.show(load);
    this.show();
    this.#askTaken();
    if (isFirst) this.hooks.grown(); // the map has pushed down what was in sight
  }

  async #reset() {
    try {
      this.asked = "";
      this.#take(await this.api.json("POST", "v1/experts/reset"));
    } catch (error) {
      this.hooks.trouble(error);
    }
  }

  // For an answer that grows: at most once a frame.
  showSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.show();
    });
  }

  show() {
    const { focus, load } = this;
    const hasLayers = focus.layers.length > 0;
    byId("atlas-empty").hidden = load !== null && hasLayers;
    byId("atlas-empty").textContent = load !== null ? "This model has no routed experts." : "No expert data yet.";
    byId("load").hidden = !hasLayers;
    byId("layer-section").hidden = !hasLayers;
    if (!hasLayers) return;
    this.map.mark({ row: focus.row, picked: focus.picked, path: focus.tokenShown?.experts });
    this.#showLegend();
    if (focus.tokenShown) this.#inspect([focus.tokenShown, focus.row], showToken);
    else if (focus.picked) this.#showPicked();
    else this.#inspect([], hideInspector);
  }

  // Made anew only when what it shows has changed: the keyboard's place in it stays.
  #inspect(what, make) {
    const isSame = what.length === this.inspected.length && what.every((part, i) => part === this.inspected[i]);
    this.inspected = what;
    if (!isSame) make(byId("inspector"), this.focus);
  }

  #showLegend() {
    const { focus } = this;
    byId("layer-title").textContent = `${focus.layerName(focus.row)} in this answer`;
    byId("layer-down").disabled = focus.row === 0;
    byId("layer-up").disabled = focus.row === focus.layers.length - 1;
    const tokens = focus.answer?.tokens ?? [];
    const all = topExperts(tokens, focus.row);
    const shown = all.slice(0, NUM_LEGEND);
    const rest = all.slice(NUM_LEGEND).reduce((sum, { count }) => sum + count, 0);
    byId("legend-hint").textContent =
      all.length === 0
        ? "Which experts lead which tokens shows here with the first answer."
        : rest > 0
          ? `Strongest expert of each token. ${plural(all.length - shown.length, "more expert")} led ${plural(rest, "token")}.`
          : "Strongest expert of each token.";
    const what = shown.map(({ expert, count }) => `${expert}:${count}`).join() + `/${focus.row}`;
    if (what !== this.legend) this.#fillLegend(shown);
    this.legend = what;
    for (const node of byId("legend").querySelectorAll("button")) {
      const isPicked = focus.picked?.row === focus.row && focus.picked.expert === Number(node.dataset.expert);
      node.setAttribute("aria-pressed", String(isPicked));
    }
  }

  #fillLegend(shown) {
    const { focus } = this;
    const { row } = focus;
    const hadFocus = byId("legend").contains(document.activeElement) ? document.activeElement.dataset.expert : undefined;
    const buttons = shown.map(({ expert, count }) => {
      const isPicked = () => focus.picked?.row === row && focus.picked.expert === expert;
      const node = el(
        "button",
        {
          type: "button",
          class: "chip",
          "aria-label": `Expert ${expert}, strongest for ${plural(count, "token")}`,
          onclick: () => (isPicked() ? focus.clear() : focus.pick(row, expert)),
          onmouseenter: () => this.#hint({ row, expert }),
          onmouseleave: () => this.#hint(null),
        },
        el("span", { class: "chip-name" }, String(expert)),
        el("span", { class: "chip-value" }, String(count)),
      );
      paint(node, expert);
      return node;
    });
    byId("legend").replaceChildren(...buttons.map((node) => el("li", {}, node)));
    gridNavigation(byId("legend"), buttons.length > 0 ? [buttons] : []);
    if (hadFocus !== undefined) buttons.find((node) => node.dataset.expert === hadFocus)?.focus();
  }

  #hint(hinted) {
    const before = this.focus.hinted;
    if (hinted?.row !== before?.row || hinted?.expert !== before?.expert) this.focus.set({ hinted });
  }

  #showPicked() {
    const { row, expert } = this.focus.picked;
    this.#askTaken();
    const load = this.load?.layers[row];
    const taken = this.taken?.key === `${row} ${expert}` ? this.taken.value : null;
    const order = {
      byLift: this.byLift,
      floor: this.#floor(),
      choose: (byLift) => {
        this.byLift = byLift;
        this.#showPicked();
      },
    };
    const what = [row, expert, load?.tokens[expert], load?.ratio[expert], taken, this.focus.answer?.tokens.length, this.byLift];
    this.#inspect(what, (section, focus) => showExpert(section, focus, load, taken, order));
  }

  #floor() {
    return (this.load?.window.tokens ?? 0) < EARLY.tokens ? EARLY.floor : FLOOR;
  }

  // Once per expert and state of the counts.
  async #askTaken() {
    const { picked, layers } = this.focus;
    if (!picked) return;
    const key = `${picked.row} ${picked.expert}`;
    const order = this.byLift ? `&sort=lift&min_count=${this.#floor()}` : "";
    const what = `${key} ${this.load?.window.tokens} ${order}`;
    if (what === this.asked) return;
    this.asked = what;
    let value;
    try {
      value = await this.api.json("GET", `v1/experts/tokens?layer=${layers[picked.row]}&expert=${picked.expert}&limit=12${order}`);
    } catch (error) {
      value = error;
    }
    this.taken = { key, value };
    if (this.focus.picked) this.#showPicked();
  }
}
