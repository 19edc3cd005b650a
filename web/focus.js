// What the reader looks at: the layer that colours tokens, one token, one expert. Views listen for "change".
export class Focus extends EventTarget {
  constructor() {
    super();
    this.layers = []; // the model's numbers of its MoE layers; a row is an index into them
    this.row = 0;
    this.colours = true;
    this.answer = null; // the answer whose experts are shown
    this.token = -1; // of that answer
    this.picked = null; // { row, expert }
    this.hinted = null; // the same, while the pointer or the keyboard rests on it
  }

  get tokenShown() {
    return this.answer?.tokens[this.token] ?? null;
  }

  // The expert whose tokens stand out in the answers.
  get lit() {
    return this.hinted ?? this.picked;
  }

  layerName(row) {
    return `Layer ${this.layers[row] ?? row}`;
  }

  set(changes) {
    Object.assign(this, changes);
    if (this.layers.length > 0) this.row = Math.max(0, Math.min(this.row, this.layers.length - 1));
    this.dispatchEvent(new Event("change"));
  }

  selectToken(answer, token) {
    this.set({ answer, token, picked: null, hinted: null });
  }

  pick(row, expert) {
    this.set({ row, picked: { row, expert }, token: -1, hinted: null });
  }

  clear() {
    this.set({ token: -1, picked: null, hinted: null });
  }
}
