// Builds the page from the data inside it.
"use strict";

const report = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

function card(title, note) {
  const node = element("section", { class: "card" }, element("div", { class: "head" }, element("h2", {}, title)),
    note ? element("p", { class: "note" }, note) : null);
  main.append(node);
  return node;
}

function pair() {
  const node = element("div", { class: "pair" });
  main.append(node);
  return (title, note) => {
    const inner = card(title, note);
    node.append(inner);
    return inner;
  };
}

function add_header() {
  const button = element("button", { type: "button" });
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "light theme" : "dark theme";
    for (const redraw of redraws) redraw();
  };
  set(new URLSearchParams(location.search).get("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  button.addEventListener("click", () => set(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  document.title = report.title;
  main.append(element("header", {}, element("div", {}, element("h1", {}, report.title), element("div", { class: "sub" }, report.subtitle)), button));
  main.append(element("div", { class: "tiles" }, ...report.tiles.map((t) =>
    element("div", { class: "tile" }, element("div", { class: "k" }, t.name), element("div", { class: "v" }, t.value), element("div", { class: "d" }, t.detail || "\u00a0")))));
}

function points(values) {
  return report.steps.map((step, i) => [step, values[i]]);
}

// All losses of the page: what is compared by eye has one kind of axis.
function all_losses() {
  const y = (list) => (list || []).flatMap((s) => s.points.map((p) => p[1]));
  const of = (r) => r.loss.concat((r.validation || []).map((p) => p[1]), y(r.sources), y(r.validation_sources));
  return (report.runs || [report]).flatMap(of).concat(report.floor || []);
}

function add_losses() {
  const node = card("Loss", "Nats per token. Training: what each step saw, averaged over neighbouring steps; validation: text never trained on.");
  const series = [{ name: "training", points: points(report.loss), faint: true }];
  if (report.validation.length) series.push({ name: "validation", points: report.validation, dots: true });
  const references = report.floor ? [{ y: report.floor, name: `entropy of the text ${number_text(report.floor)}` }] : [];
  line_chart(node, { label: "loss over steps", series, references, height: 320, span: all_losses() });
}

// By source, or what else was measured: curves of their own names.
function add_curves() {
  const validation = report.validation_sources || [], training = report.sources || [];
  if (training.length || validation.length) {
    const node = card("Loss by source", "Nats per token. Dots: validation; lines: training, averaged over neighbouring steps.");
    line_chart(node, {
      label: "loss by source over steps", height: 280, span: all_losses(),
      series: training.map((s) => ({ name: s.name, group: s.name, points: s.points, faint: true }))
        .concat(validation.map((s) => ({ name: `${s.name}, validation`, group: s.name, points: s.points, dots: true }))),
    });
  }
  for (const figure of report.figures || []) {
    line_chart(card(figure.name.replaceAll("_", " "), ""), { label: `${figure.name} over steps`, height: 190, series: [{ name: figure.name, points: figure.points, dots: true }] });
  }
}

// How the run was made: names and values.
function add_card() {
  if (!(report.card || []).length) return;
  const node = card("How it was made", "From run.json, which dsmoe train --resume reads.");
  const list = element("dl");
  let before = "";
  for (const row of report.card) {
    list.append(element("dt", {}, row.name === before ? "\u00a0" : row.name), element("dd", {}, row.value));
    before = row.name;
  }
  node.append(list);
}

function table_of(head, rows, label) {
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label },
    element("table", {}, element("tr", {}, ...head.map((h) => element("th", { scope: "col" }, h))),
      ...rows.map((row) => element("tr", {}, ...row.map((text) => element("td", {}, text))))));
}

function add_runs() {
  const of = (r, values) => r.steps.map((step, i) => [step, values[i]]);
  if (report.runs.some((r) => r.validation.length)) {
    line_chart(card("Validation loss", "Nats per token, on text that a run was not trained on; runs of other data have other text."),
      { label: "validation loss over steps", height: 320, span: all_losses(), series: report.runs.map((r) => ({ name: r.name, points: r.validation, dots: true })) });
  }
  line_chart(card("Training loss", "Nats per token, averaged over neighbouring steps."),
    { label: "training loss over steps", height: 320, span: all_losses(), series: report.runs.map((r) => ({ name: r.name, points: of(r, r.loss) })) });
  card("In numbers", "The options in which the runs differ stand at the end.").append(table_of(report.head, report.rows, "the figures of all runs"));
}

function add_optimizer() {
  const half = pair();
  line_chart(half("Learning rate"), { label: "learning rate over steps", series: [{ name: "rate", points: points(report.lr) }], zero: true, height: 190 });
  line_chart(half("Speed", "Tokens per second while training, on the machine that ran it."),
    { label: "tokens per second over steps", series: [{ name: "tokens/s", points: points(report.speed) }], zero: true, height: 168 });
  const more = pair();
  line_chart(more("Gradient norm", "Before clipping."),
    { label: "gradient norm over steps", series: [{ name: "norm", points: points(report.gradient_norm) }], height: 190 });
  const balance = [["expert level", report.balance], ["device level", report.device_balance], ["z-loss", report.z]]
    .filter(([, values]) => values.some((v) => v !== 0)).map(([name, values]) => ({ name, points: points(values) }));
  if (balance.length) {
    line_chart(more("Balance losses", "Summed over layers; an even load gives the coefficient in each layer."),
      { label: "balance losses over steps", series: balance, height: 190 });
  }
}

function add_experts() {
  if (!report.layers.length) return;
  const of_layers = (key) => report.layers.map((l) => ({ name: `layer ${l.layer}`, points: points(l[key]) }));
  const half = pair();
  line_chart(half("Evenness of load", "Entropy of the experts' shares, divided by its largest value: 1 is even."),
    { label: "load entropy over steps", series: of_layers("entropy"), height: 210 });
  line_chart(half("Busiest expert", "Its load as a ratio to the fair share."),
    { label: "largest load over steps", series: of_layers("max"), height: 210 });
  if (report.layers.some((l) => l.dead.some((d) => d > 0))) {
    line_chart(card("Experts without a token", "Per step and layer."), { label: "dead experts over steps", series: of_layers("dead"), zero: true, height: 170 });
  }
  const node = card("Load of every expert over time", "One row per expert; colour is its load as a ratio to the fair share.");
  add_scale(node, ratio_colours, [-3, -2, -1, 0, 1, 2, 3].map((t) => 2 ** t), "⅛", "8 × the fair share", element("i"), "no token");
  const maps = element("div", { class: "maps" });
  node.append(maps);
  for (const layer of report.loads.layers) {
    const holder = element("div", {}, element("h3", {}, `layer ${layer.layer}`));
    maps.append(holder);
    const steps = report.loads.steps, experts = layer.values[0].length;
    heat_map(holder, {
      label: `load of the experts of layer ${layer.layer}`, rows: experts, columns: steps.length, colours: ratio_colours,
      row_height: Math.max(3, Math.min(11, Math.floor(260 / experts))), value: (r, c) => layer.values[c][r],
      row_name: String, describe: (r, c) => [`expert ${r}, step ${number_text(steps[c])}`, `${number_text(layer.values[c][r])} × its fair share`],
      column_text: () => [0, 0.5, 1].map((at) => ({ at, text: tick_text(steps[Math.round(at * (steps.length - 1))]) })),
    });
  }
}

// What colours mean: a bar of `colours()` at `values`, words before and after it.
function add_scale(node, colours, values, before, ...after) {
  const bar = element("span", { class: "bar" });
  const paint = () => {
    bar.style.background = `linear-gradient(90deg, ${values.map(colours()).join(", ")})`;
  };
  redraws.push(paint);
  paint();
  node.append(element("div", { class: "scale" }, before, bar, ...after));
}

function add_specialisation() {
  const s = report.specialisation;
  if (!s) return;
  const node = card("Who reads what", `Of the tokens for which an expert is the strongest, the share that comes from each kind of text (${s.title}; kinds weighted equally). ` +
    "Experts, numbered below, stand in the order of their main kind. Bits: how much the strongest expert tells of the kind.");
  add_scale(node, share_colours, [0, 1], "0 %", "100 %");
  const maps = element("div", { class: "maps" });
  node.append(maps);
  const left = Math.min(120, 16 + 6.5 * Math.max(...s.labels.map((l) => l.length)));
  for (const layer of s.layers) {
    const experts = layer.share[0].length;
    const main_kind = (e) => s.labels.reduce((best, _, k) => (layer.share[k][e] > layer.share[best][e] ? k : best), 0);
    const order = [...Array(experts).keys()].sort((a, b) => main_kind(a) - main_kind(b) || layer.share[main_kind(b)][b] - layer.share[main_kind(a)][a]);
    const used = order.filter((e) => s.labels.some((_, k) => layer.share[k][e] > 0));
    const holder = element("div", {}, element("h3", {}, `layer ${layer.layer}: ${layer.bits.toFixed(2)} bits`));
    maps.append(holder);
    heat_map(holder, {
      label: `kinds of text per expert of layer ${layer.layer}`, rows: s.labels.length, columns: used.length, colours: share_colours, left,
      row_height: 22, value: (r, c) => layer.share[r][used[c]], row_name: (r) => s.labels[r],
      describe: (r, c) => [`expert ${used[c]}`, `${percent(layer.share[r][used[c]])} ${s.labels[r]}`],
      column_text: (width) => used.map((e, c) => ({ at: (c + 0.5) / used.length, text: String(e) })).filter((_, c) => c % Math.ceil((used.length * 18) / width) === 0),
    });
  }
}

function add_samples() {
  if (!report.samples.length) return;
  const { temperature, seed } = report.sampling;
  const node = card("Samples", `The prompt, and what the newest checkpoint makes of it at temperature ${temperature} with seed ${seed}.`);
  node.append(element("div", { class: "samples" }, ...report.samples.map((s) =>
    element("div", { class: "sample" }, element("h3", {}, s.label), element("pre", {}, element("b", {}, s.prompt), s.answer)))));
}

function mean(values) {
  return values.reduce((a, b) => a + b, 0) / values.length;
}

function add_comparison() {
  const done = report.models.filter((m) => m.runs.length);
  if (!done.length) {
    card("No run has finished yet", "");
    return;
  }
  const final = card("Validation loss at the end", "Nats per token, lower is better. A dot is one seed, the bar the mean; all models of one seed saw the same batches.");
  dot_chart(final, done.map((m) => ({ name: m.title, values: m.runs.map((r) => r.validation_loss), mean: m.validation_loss.mean })), "final validation loss per architecture");
  const curves = card("Validation loss over training", "Mean over seeds; the band spans them.");
  line_chart(curves, {
    label: "validation loss over steps per architecture", height: 320,
    references: report.floor ? [{ y: report.floor, name: `entropy of the text ${number_text(report.floor)}` }] : [],
    series: done.map((m) => {
      const at = m.runs[0].validation.map(([step], i) => [step, m.runs.map((r) => r.validation[i]?.[1]).filter((v) => v !== undefined)]);
      return { name: m.title, points: at.map(([step, v]) => [step, mean(v)]), band: at.map(([step, v]) => [step, ...range_of(v)]) };
    }),
  });
  add_comparison_differences(done);
  add_comparison_table();
}

// Minus (c), seed by seed: what the curves themselves are too steep to show.
function add_comparison_differences(done) {
  const base = done.find((m) => m.name === "c");
  const last = (run) => run.validation.length - 1;
  const series = done.map((m) => {
    const pairs = m.runs.map((r) => [r, base?.runs.find((o) => o.seed === r.seed)]).filter(([, o]) => o);
    const at = (pairs[0]?.[0].validation || []).map(([step], i) => [step, pairs.filter(([r, o]) => last(r) >= i && last(o) >= i).map(([r, o]) => r.validation[i][1] - o.validation[i][1])]);
    const shown = at.filter(([step, v]) => v.length && step >= 0.2 * report.steps);
    return { name: m.title, points: shown.map(([step, v]) => [step, mean(v)]), band: shown.map(([step, v]) => [step, ...range_of(v)]) };
  });
  if (done.length > 1 && series.some((s) => s.points.length)) {
    const node = card("Loss minus that of (c), same seed", "From a fifth of the training on: mean over seeds; the band spans them.");
    line_chart(node, { label: "loss minus that of (c) over steps", height: 320, series });
  }
  if (!report.differences.length) return;
  const node = card("Paired by seed", "Differences of the last validation losses; the interval is that of the mean over seeds (Student's t, 95 %).");
  const signed = (v) => `${v >= 0 ? "+" : "−"}${Math.abs(v).toFixed(4)}`;
  const rows = report.differences.map((d) => [`${d.of} − ${d.less}`, signed(d.mean), d.seeds.length > 1 ? d.deviation.toFixed(4) : "",
    d.interval ? `${signed(d.interval[0])} to ${signed(d.interval[1])}` : "", d.seeds.map(([seed, v]) => `${seed}: ${signed(v)}`).join(" · ")]);
  node.append(table_of(["", "mean", "deviation", "interval", "by seed"], rows, "differences paired by seed"));
}

function add_comparison_table() {
  const node = card("In numbers", "Expert parameters, in all and per token, are equal in (a), (b) and (c); the router is what differs. Bold: the lowest mean, where the seeds decide: its difference to every other, paired by seed, has a 95 % interval below zero.");
  const spread = (s, count, sign) => `${sign && s.mean >= 0 ? "+" : ""}${s.mean.toFixed(4)}${count > 1 ? ` ± ${s.deviation.toFixed(4)}` : ""}`;
  const count = (n) => n.toLocaleString("en");
  const head = ["", "validation loss", "seeds", "minus that of (c)", "parameters", "active", "experts", "experts, active", "router", "tokens/s"];
  const rows = report.models.map((m) => {
    const done = m.runs.length > 0;
    return element("tr", m.name === report.decided_best ? { class: "best" } : {}, ...[m.title, done ? spread(m.validation_loss, m.runs.length) : "unfinished", done ? String(m.runs.length) : "",
      m.seeds_shared_with_c && m.name !== "c" ? spread(m.minus_loss_of_c, m.seeds_shared_with_c, true) : "", count(m.parameters), count(m.active_parameters), count(m.expert_parameters),
      count(m.active_expert_parameters), count(m.router_parameters), done ? count(Math.round(m.tokens_per_second)) : ""].map((text) => element("td", {}, text)));
  });
  node.append(element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "the figures of all models" }, element("table", {}, element("tr", {}, ...head.map((h) => element("th", { scope: "col" }, h))), ...rows)));
}

add_header();
if (report.kind === "comparison") {
  add_comparison();
} else if (report.kind === "runs") {
  add_runs();
} else {
  add_losses();
  add_curves();
  add_specialisation();
  add_experts();
  add_optimizer();
  add_samples();
  add_card();
}
main.append(element("footer", {}, report.footer));
