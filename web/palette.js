// The look of an expert: one of 16 tints (experts.css) and one of 4 marks (style.css), so that 64 differ.
const NUM_TINTS = 16;
const NUM_MARKS = 4;

export function paint(node, expert) {
  if (node.dataset.expert === String(expert)) return; // thousands of tokens are painted at once
  node.dataset.expert = expert;
  node.dataset.mark = Math.floor(expert / NUM_TINTS) % NUM_MARKS;
  node.style.setProperty("--tint", `var(--e${expert % NUM_TINTS})`);
}

export function unpaint(node) {
  if (node.dataset.expert === undefined) return;
  delete node.dataset.expert;
  delete node.dataset.mark;
  node.style.removeProperty("--tint");
}

// Steps of load over fair share. Even on both sides of 1 by factors, because a load of 2 and of 1/2 are equally far from fair.
export const LOAD_STEPS = [
  { below: 0, from: "none", name: "no tokens" },
  { below: 0.25, from: "", name: "below ¼ of a fair share" },
  { below: 0.5, from: "¼", name: "¼ to ½" },
  { below: 0.8, from: "½", name: "½ to 0.8" },
  { below: 1.25, from: "0.8", name: "fair: 0.8 to 1.25" },
  { below: 2, from: "1.25", name: "1.25 to 2" },
  { below: 4, from: "2", name: "2 to 4" },
  { below: Infinity, from: "4×", name: "4 times and more" },
];

export function loadStep(ratio) {
  if (!(ratio > 0)) return 0;
  return LOAD_STEPS.findIndex((step, i) => i > 0 && ratio < step.below);
}
