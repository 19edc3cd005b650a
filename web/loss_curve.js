// The loss of a training as a line: drawn anew from the server's points each time it is asked.
import { el } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [560, 180];
const [LEFT, RIGHT, TOP, BOTTOM] = [34, 8, 10, 22]; // room for the figures

function svg(tag, attributes, text = "") {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}

// About four round figures from `low` to `high`.
export function ticksOf(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

// points: [[step, loss], ...]; total: steps of the whole training.
export function showCurve(box, points, total) {
  const known = points.filter(([step, loss]) => Number.isFinite(step) && Number.isFinite(loss));
  if (known.length < 2) return box.replaceChildren(el("p", { class: "hint" }, "The loss shows here after the first steps."));
  const losses = known.map(([, loss]) => loss);
  const [low, high] = [Math.min(0, ...losses), Math.max(...losses)];
  const x = (step) => LEFT + ((WIDTH - LEFT - RIGHT) * step) / Math.max(1, total);
  const y = (loss) => TOP + ((HEIGHT - TOP - BOTTOM) * (high - loss)) / (high - low || 1);
  const last = known.at(-1);
  const label = `Loss from ${losses[0].toFixed(2)} at step ${known[0][0]} to ${last[1].toFixed(2)} at step ${last[0]}.`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, class: "curve-picture" });
  for (const tick of ticksOf(low, high)) {
    picture.append(
      svg("line", { class: "curve-grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }),
      svg("text", { class: "curve-figure", x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, String(tick)),
    );
  }
  for (const [step, anchor] of [[0, "start"], [total, "end"]]) {
    picture.append(svg("text", { class: "curve-figure", x: x(step), y: HEIGHT - 5, "text-anchor": anchor }, step === 0 ? "step 0" : step.toLocaleString("en")));
  }
  const line = known.map(([step, loss], i) => `${i === 0 ? "M" : "L"}${x(step).toFixed(1)} ${y(loss).toFixed(1)}`).join("");
  picture.append(svg("path", { class: "curve-line", d: line }), svg("circle", { class: "curve-end", cx: x(last[0]), cy: y(last[1]), r: 3.5 }));
  return box.replaceChildren(picture);
}
