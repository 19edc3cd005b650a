// Charts of a report: lines, dots and heat maps that follow theme and width. Text enters as text nodes only.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function shape(parent, tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

function theme_colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function line_colour(index, count) {
  if (count <= 6) return theme_colour(`--c${index}`);
  return `hsl(${Math.round(215 + (300 * index) / count) % 360} 62% ${dark_theme() ? 68 : 46}%)`;
}

function dark_theme() {
  return document.documentElement.dataset.theme === "dark";
}

// Numbers for people: 4 significant digits, thousands with commas, tiny ones as powers.
function number_text(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  if (size < 0.001) return value.toExponential(1).replace("e-", "e−");
  return String(Number(value.toPrecision(4)));
}

function tick_text(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 10000) return `${Number((value / 1e3).toPrecision(4))}k`;
  if (size > 0 && size < 0.001) return Number(value.toPrecision(3)).toExponential().replace("e-", "e−");
  return String(Number(value.toPrecision(6)));
}

// Round steps, about `count` of them.
function linear_ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-6; t += step) ticks.push(Number(t.toPrecision(12)));
  return ticks;
}

// At most `count`: 1, 2, 5 of every power of ten, or its 1 only, or that of every few powers.
function log_ticks(low, high, count) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const of = (factors, stride) => {
    const ticks = [];
    for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride) {
      for (const f of factors) ticks.push(Number((f * 10 ** power).toPrecision(3)));
    }
    return ticks.filter((t) => t >= low * 0.999 && t <= high * 1.001);
  };
  const all = of([1, 2, 5], 1);
  return all.length <= count ? all : of([1], Math.max(1, Math.ceil((last - first) / count)));
}

// An axis: value -> place between `from` and `to`.
function make_scale(low, high, from, to, is_log) {
  const f = is_log ? Math.log : (v) => v;
  const a = f(low), b = f(high);
  return (value) => from + ((f(value) - a) / (b - a || 1)) * (to - from);
}

// Calls draw(width) now, and again when the width or the theme changes.
const redraws = [];
function keep_drawn(holder, draw) {
  let last = 0;
  const again = (force) => {
    const width = Math.floor(holder.clientWidth);
    if (width < 40 || (!force && width === last)) return;
    last = width;
    draw(width);
  };
  redraws.push(() => again(true));
  new ResizeObserver(() => again(false)).observe(holder);
  again(true);
}

function make_tip(holder) {
  const tip = element("div", { class: "tip" });
  holder.append(tip);
  return {
    show(x, y, lines) {
      tip.replaceChildren(...lines);
      const width = tip.offsetWidth, room = holder.clientWidth;
      tip.style.left = `${Math.max(0, Math.min(x + 14 + width > room ? x - 14 - width : x + 14, room - width))}px`;
      tip.style.top = `${Math.max(0, y)}px`;
      tip.style.visibility = "visible";
    },
    hide() { tip.style.visibility = "hidden"; },
  };
}

function tip_line(colour, name, value) {
  const mark = element("i");
  mark.style.background = colour;
  return element("div", {}, mark, `${name} `, element("b", {}, value));
}

function range_of(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
  return [low, high];
}

function y_range(chart, is_log) {
  const values = chart.series.flatMap((s) => s.points.map((p) => p[1]).concat((s.band || []).flatMap((b) => [b[1], b[2]])));
  for (const r of chart.references || []) values.push(r.y);
  let [low, high] = range_of(is_log ? values.filter((v) => v > 0) : values);
  if (low > high) return [0.1, 1];
  if (low === high) { low -= Math.abs(low) * 0.5 || 0.5; high += Math.abs(high) * 0.5 || 0.5; }
  if (is_log) return [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  if (chart.zero && low >= 0) low = 0;
  const pad = (high - low) * 0.05;
  return [chart.zero && low === 0 ? 0 : low - pad, high + pad];
}

// The one rule for axes: from zero where a chart says so, logarithmic where all is above zero and
// spans more than a factor of five, else linear. Charts with one `span` have one kind of axis.
function kinds_of_axis(chart) {
  const [low, high] = range_of(chart.span || chart.series.flatMap((s) => s.points.map((p) => p[1])).concat((chart.references || []).map((r) => r.y)));
  return { may_be_log: !chart.zero && low > 0, wants_log: !chart.zero && low > 0 && high > 5 * low };
}

// chart: {series: [{name, group, points: [[x, y]], band: [[x, low, high]], dots}], references: [{y, name}], height, label, zero, span}
function line_chart(holder, chart) {
  const { may_be_log, wants_log } = kinds_of_axis(chart);
  let is_log = wants_log;
  const plot = element("div", { class: "plot", role: "img", "aria-label": chart.label });
  if (may_be_log) {
    const other_axis = () => (is_log ? "linear axis" : "logarithmic axis");
    const button = element("button", { type: "button" }, other_axis());
    button.addEventListener("click", () => {
      is_log = !is_log;
      button.textContent = other_axis();
      redraw();
    });
    holder.querySelector(".head")?.append(button);
  }
  const legend = element("div", { class: "legend" });
  if (chart.series.length > 1) holder.append(legend);
  holder.append(plot);
  const canvas = document.createElementNS(SVG, "svg");
  plot.append(canvas);
  const tip = make_tip(plot);
  let redraw = () => {};
  keep_drawn(plot, (width) => { redraw = () => draw_lines(width); draw_lines(width); });

  function draw_lines(width) {
    const height = chart.height || 240, right = width - 10, top = 12, bottom = height - 26;
    canvas.replaceChildren();
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.setAttribute("height", height);
    // Series of one group are of one colour, and the legend has them once.
    const groups = [...new Set(chart.series.map((s) => s.group ?? s.name))];
    const colours = chart.series.map((s) => line_colour(groups.indexOf(s.group ?? s.name), groups.length));
    legend.replaceChildren(...groups.map((name, i) => {
      const mark = element("i");
      mark.style.background = line_colour(i, groups.length);
      return element("span", {}, mark, name);
    }));
    const [x0, x1] = range_of(chart.series.flatMap((s) => s.points.map((p) => p[0])));
    const [y0, y1] = y_range(chart, is_log);
    let y_ticks = is_log ? log_ticks(y0, y1, (bottom - top) / 16) : linear_ticks(y0, y1, 5);
    if (y_ticks.length < 2) y_ticks = linear_ticks(y0, y1, 4);
    // The longest number finds room: cut at its left it would read as another.
    const left = Math.max(46, 12 + 7 * Math.max(...y_ticks.map((t) => tick_text(t).length)));
    const x = make_scale(x0, x1, left, right, false), y = make_scale(y0, y1, bottom, top, is_log);
    const visible = (v) => !is_log || v > 0;
    for (const t of y_ticks) {
      shape(canvas, "line", { x1: left, x2: right, y1: y(t), y2: y(t), stroke: theme_colour("--grid") });
      shape(canvas, "text", { x: left - 8, y: y(t) + 4, "text-anchor": "end" }, tick_text(t));
    }
    for (const t of linear_ticks(x0, x1, Math.max(2, width / 110))) {
      shape(canvas, "text", { x: x(t), y: height - 8, "text-anchor": t > x1 - (x1 - x0) * 0.03 ? "end" : "middle" }, tick_text(t));
    }
    shape(canvas, "text", { x: left - 18, y: height - 8, "text-anchor": "end" }, chart.x_name || "step");
    shape(canvas, "line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: theme_colour("--line") });
    for (const r of chart.references || []) {
      if (!visible(r.y)) continue;
      shape(canvas, "line", { x1: left, x2: right, y1: y(r.y), y2: y(r.y), stroke: theme_colour("--soft"), "stroke-dasharray": "5 4" });
      shape(canvas, "text", { x: left + 6, y: y(r.y) - 6 }, r.name);
    }
    chart.series.forEach((s, i) => {
      if (s.band) {
        const up = s.band.map((b) => `${x(b[0]).toFixed(1)},${y(b[2]).toFixed(1)}`);
        const down = s.band.map((b) => `${x(b[0]).toFixed(1)},${y(b[1]).toFixed(1)}`).reverse();
        shape(canvas, "polygon", { points: up.concat(down).join(" "), fill: colours[i], opacity: 0.16 });
      }
      const points = s.points.filter((p) => visible(p[1]));
      const path = points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ");
      shape(canvas, "polyline", { points: path, fill: "none", stroke: colours[i], "stroke-width": s.dots ? 2.2 : 1.6, "stroke-linejoin": "round", opacity: s.faint ? 0.55 : 1 });
      if (s.dots || points.length === 1) for (const p of points) shape(canvas, "circle", { cx: x(p[0]), cy: y(p[1]), r: 3, fill: colours[i] });
    });
    const cross = shape(canvas, "line", { y1: top, y2: bottom, stroke: theme_colour("--soft"), visibility: "hidden" });
    canvas.onpointerleave = () => { cross.setAttribute("visibility", "hidden"); tip.hide(); };
    canvas.onpointermove = (event) => {
      const box = canvas.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * width;
      const nearest = (points) => points.reduce((a, b) => (Math.abs(x(b[0]) - at) < Math.abs(x(a[0]) - at) ? b : a));
      const filled = chart.series.filter((s) => s.points.length);
      const step = nearest(filled.flatMap((s) => [nearest(s.points)]))[0];
      cross.setAttribute("x1", x(step)); cross.setAttribute("x2", x(step)); cross.setAttribute("visibility", "visible");
      const lines = [element("div", {}, `${chart.x_name || "step"} `, element("b", {}, number_text(step)))];
      chart.series.forEach((s, i) => {
        if (!s.points.length || lines.length > 14) return;
        const p = nearest(s.points);
        lines.push(tip_line(colours[i], p[0] === step ? s.name : `${s.name} (${number_text(p[0])})`, number_text(p[1])));
      });
      tip.show(x(step), top, lines);
    };
  }
}

// Each row's values as dots on one axis, their mean as a bar. rows: [{name, values, mean}]
function dot_chart(holder, rows, label) {
  const plot = element("div", { class: "plot", role: "img", "aria-label": label });
  holder.append(plot);
  const canvas = document.createElementNS(SVG, "svg");
  plot.append(canvas);
  keep_drawn(plot, (width) => {
    const row_height = 40, top = 8, left = 12, right = width - 12, height = top + rows.length * row_height + 26;
    canvas.replaceChildren();
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.setAttribute("height", height);
    let [low, high] = range_of(rows.flatMap((r) => r.values));
    const pad = (high - low) * 0.06 || 0.01;
    low -= pad; high += pad;
    const x = make_scale(low, high, left, right, false);
    for (const t of linear_ticks(low, high, Math.max(2, width / 120))) {
      shape(canvas, "line", { x1: x(t), x2: x(t), y1: top, y2: height - 22, stroke: theme_colour("--grid") });
      shape(canvas, "text", { x: x(t), y: height - 6, "text-anchor": "middle" }, tick_text(t));
    }
    rows.forEach((row, i) => {
      const y = top + i * row_height + 27, colour = line_colour(i, rows.length);
      shape(canvas, "text", { x: left, y: y - 13, style: `fill:${theme_colour("--ink")}` }, `${row.name}: ${row.mean.toFixed(4)}`);
      shape(canvas, "line", { x1: left, x2: right, y1: y, y2: y, stroke: theme_colour("--line") });
      for (const v of row.values) shape(canvas, "circle", { cx: x(v), cy: y, r: 5, fill: colour, opacity: 0.55 });
      shape(canvas, "rect", { x: x(row.mean) - 1.75, y: y - 9, width: 3.5, height: 18, rx: 1.5, fill: colour });
    });
  });
}

function parse_colour(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function mix(a, b, t) {
  return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * t)).join(" ")})`;
}

// A ratio to the fair share: below 1 cold, above hot, a doubling or halving twice halfway.
function ratio_colours() {
  const cold = parse_colour(theme_colour("--cold")), mid = parse_colour(theme_colour("--mid")), hot = parse_colour(theme_colour("--hot"));
  const dead = theme_colour("--dead");
  return (ratio) => {
    if (ratio === 0) return dead;
    const t = Math.max(-1, Math.min(1, Math.log2(ratio) / 3));
    return t < 0 ? mix(mid, cold, -t) : mix(mid, hot, t);
  };
}

function share_colours() {
  const low = parse_colour(theme_colour("--low")), high = parse_colour(theme_colour("--high"));
  return (share) => mix(low, high, Math.max(0, Math.min(1, share)));
}

// map: {label, rows, columns, value(row, column) or null, colours, row_name(row), column_text, describe(row, column), row_height}
function heat_map(holder, map) {
  const plot = element("div", { class: "plot", role: "img", "aria-label": map.label });
  const canvas = element("canvas");
  plot.append(canvas);
  holder.append(plot);
  const tip = make_tip(plot);
  keep_drawn(plot, (width) => {
    const ratio = window.devicePixelRatio || 1;
    const left = map.left || 34, cell_height = map.row_height, bottom = 20;
    const height = map.rows * cell_height + bottom, cell_width = (width - left) / map.columns;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const colour = map.colours();
    const gap = cell_width >= 6 && cell_height >= 6 ? 1 : 0;
    for (let r = 0; r < map.rows; ++r) {
      for (let c = 0; c < map.columns; ++c) {
        const value = map.value(r, c);
        if (value === null) continue;
        pen.fillStyle = colour(value);
        const x = left + c * cell_width;
        pen.fillRect(gap ? x : Math.floor(x), r * cell_height, (gap ? cell_width : Math.ceil(cell_width + 0.5)) - gap, cell_height - gap);
      }
    }
    pen.fillStyle = theme_colour("--soft");
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const every = Math.ceil(13 / cell_height);
    for (let r = 0; r < map.rows; r += every) {
      pen.fillText(map.row_name(r), left - 6, (r + 0.5) * cell_height, left - 8);
    }
    pen.textBaseline = "alphabetic";
    for (const { at, text } of map.column_text(width - left)) {
      pen.textAlign = at > 0.97 ? "right" : at < 0.03 ? "left" : "center";
      pen.fillText(text, left + at * (width - left), height - 5);
    }
    canvas.onpointerleave = () => tip.hide();
    canvas.onpointermove = (event) => {
      const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
      const c = Math.floor((px - left) / cell_width), r = Math.floor(py / cell_height);
      if (c < 0 || r < 0 || c >= map.columns || r >= map.rows) { tip.hide(); return; }
      tip.show(px, Math.max(0, py - 40), map.describe(r, c).map((line) => element("div", {}, line)));
    };
  });
}
