// A conversation is a tree of turns: editing a question or asking again grows a branch, and nothing is overwritten.
// A turn is { id, parent, mode, text, system, created, answer, rival }; what is on screen is the path from a root to one leaf.

export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const byAge = (a, b) => a.created - b.created || (a.id < b.id ? -1 : 1);

export class ConversationTree {
  constructor(turns = []) {
    this.turns = new Map();
    this.children = new Map(); // parent id or null -> turns, oldest first
    for (const turn of turns) this.take(turn);
  }

  // A turn made here, or read from the store, or made by another tab. One that is here already stays as it is.
  take(turn) {
    if (this.turns.has(turn.id)) return false;
    this.turns.set(turn.id, turn);
    const siblings = this.children.get(turn.parent) ?? [];
    siblings.push(turn);
    this.children.set(turn.parent, siblings.sort(byAge));
    return true;
  }

  add({ parent, mode, text, system }) {
    // Later than its parent and its siblings, whatever the clock says: the order by age is the order of the tree.
    const before = this.children.get(parent)?.at(-1) ?? this.turns.get(parent);
    const created = Math.max(Date.now(), (before?.created ?? 0) + 1);
    const turn = { id: newId(), parent, mode, text, system, created, answer: null, rival: null };
    this.take(turn);
    return turn;
  }

  siblings(turn) {
    return this.children.get(turn.parent) ?? [turn];
  }

  // From the root to `id`; empty where it is unknown.
  pathTo(id) {
    const path = [];
    for (let turn = this.turns.get(id); turn && path.length <= this.turns.size; turn = this.turns.get(turn.parent)) path.unshift(turn);
    return path;
  }

  // The leaf below `turn` that one reaches by the newest child each time.
  newestLeaf(turn) {
    let at = turn;
    for (let below; (below = this.children.get(at?.id ?? null)?.at(-1)); ) at = below;
    return at;
  }
}
