// The look of an expert: one of 16 tints (experts.css) and one of 4 marks (style.css), so that 64 differ.
const NUM_TINTS = 16;
const NUM_MARKS = 4;

export function paint(node, expert) {
  node.dataset.expert = expert;
  node.dataset.mark = Math.floor(expert / NUM_TINTS) % NUM_MARKS;
  node.style.setProperty("--tint", `var(--e${expert % NUM_TINTS})`);
}

export function unpaint(node) {
  delete node.dataset.expert;
  delete node.dataset.mark;
  node.style.removeProperty("--tint");
}

// Steps of load over fair share. Even on both sides of 1 by factors, because a load of 2 and of 1/2 are equally far from fair.
export const LOAD_STEPS = [
  { below: 0, name: "none" },
  { below: 0.25, name: "below ¼×" },
  { below: 0.5, name: "¼–½×" },
  { below: 0.8, name: "½–0.8×" },
  { below: 1.25, name: "fair" },
  { below: 2, name: "1.25–2×" },
  { below: 4, name: "2–4×" },
  { below: Infinity, name: "over 4×" },
];

export function loadStep(ratio) {
  if (!(ratio > 0)) return 0;
  return LOAD_STEPS.findIndex((step, i) => i > 0 && ratio < step.below);
}
