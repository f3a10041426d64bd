// The plots over the time of a job: zoom, values under a cursor, any counter by minute. Without it the page has a drawing.
"use strict";
const units = {
  fraction: (x) => `${(100 * x).toFixed(0)} %`, ratio: (x) => x.toFixed(2), W: (x) => `${x.toFixed(0)} W`,
  MiB: (x) => `${(x / 1024).toFixed(1)} GiB`, "B/s": (x) => x >= 1e9 ? `${(x / 1e9).toFixed(1)} GB/s` : `${(x / 1e6).toFixed(1)} MB/s`,
};
const shown = (unit) => (value) => value === null || value === undefined ? "–" : (units[unit] || String)(value);
const clock = (s) => s < 0 ? "" : s < 60 ? `${Math.round(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h ${String(Math.floor(s / 60) % 60).padStart(2, "0")} min`;
const STEPS_S = [1, 10, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const MOST_LINES = 16, MOST_PARTS = 12, ROWS = 10000;

function colours() {
  const style = getComputedStyle(document.documentElement);
  return ["accent", "compute", "memory", "problem", "fact", "hint", "ink", "faint"].map((name) => style.getPropertyValue(`--${name}`).trim());
}

class Charts {
  constructor(box, data) {
    this.box = box;
    this.seconds = data.length_s;
    this.marks = data.marks;
    this.plots = [];
    this.colours = colours();
  }
  clear() {
    for (const plot of this.plots) plot.destroy();
    this.plots = [];
    this.box.replaceChildren();
  }
  add(title, unit, times, series) {
    const ink = this.colours[6], line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const heading = document.createElement("h3"), box = document.createElement("div");
    heading.textContent = title;
    this.box.append(heading, box);
    const bounded = unit === "fraction" || unit === "ratio";
    const plot = new uPlot({
      width: this.box.clientWidth || 600, height: 170,
      cursor: { sync: { key: "job" }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { range: bounded ? [0, 1.02] : (_, __, most) => [0, (most || 1) * 1.08] } },
      axes: [{ ...axis, space: 100, incrs: STEPS_S, values: (_, marks) => marks.map(clock) }, { ...axis, size: 76, values: (_, marks) => marks.map(shown(unit)) }],
      series: [
        { label: "after the start", value: (_, x) => x === null || x === undefined ? "–" : clock(x) },
        ...series.map(([label], place) => ({
          label, stroke: this.colours[place % this.colours.length], width: 1.4, spanGaps: false,
          dash: place >= this.colours.length ? [6, 4] : undefined, value: (_, y) => shown(unit)(y), points: { show: times.length < 3 },
        })),
      ],
      hooks: { drawClear: [(one) => this.mark(one)], setScale: [(one, key) => { if (key === "x") this.zoom(one); }] },
    }, [times, ...series.map(([, values]) => times.map((_, place) => values[place] ?? null))], box);
    this.plots.push(plot);
  }
  mark(plot) {  // intervals of findings
    const { ctx, bbox } = plot;
    for (const [, begin, end] of this.marks) {
      const [from, to] = [begin, end].map((s) => Math.min(bbox.left + bbox.width, Math.max(bbox.left, plot.valToPos(s, "x", true))));
      if (to <= from) continue;
      ctx.save();
      ctx.globalAlpha = 0.14;
      ctx.fillStyle = this.colours[3];
      ctx.fillRect(from, bbox.top, to - from, bbox.height);
      ctx.restore();
    }
  }
  zoom(from) {
    const { min, max } = from.scales.x;
    for (const plot of this.plots) if (plot !== from && (plot.scales.x.min !== min || plot.scales.x.max !== max)) plot.setScale("x", { min, max });
  }
  whole() {
    for (const plot of this.plots) plot.setScale("x", { min: 0, max: this.seconds });
  }
  move(step) {
    const first = this.plots[0];
    if (!first) return;
    const last = first.data[0].length - 1, at = Math.min(last, Math.max(0, (first.cursor.idx ?? -1) + step));
    for (const plot of this.plots) plot.setCursor({ left: plot.valToPos(plot.data[0][at], "x"), top: 10 });
  }
}

function drawSummary(charts, data) {
  const panels = new Map();
  for (const [label, [unit, values, panel]] of Object.entries(data.series)) {
    if (!panels.has(panel)) panels.set(panel, { unit, series: [] });
    panels.get(panel).series.push([label, values]);
  }
  for (const [panel, { unit, series }] of panels) {
    const bins = Math.max(...series.map(([, values]) => values.length));
    charts.add(panel, unit, Array.from({ length: bins }, (_, place) => Math.min(data.length_s, (place + 0.5) * data.bin_s)), series);
  }
}

async function readMinutes(address, counter, report) {
  const rows = [];
  let next = `${address}?fields=node,gpu,mig,minute,${counter}&limit=${ROWS}`;
  for (let part = 0; next && part < MOST_PARTS; part += 1) {
    const answer = await fetch(next, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    rows.push(...await answer.json());
    report(rows.length);
    const link = /<([^>]+)>;\s*rel="next"/.exec(answer.headers.get("Link") || "");
    next = link && link[1];
  }
  return rows;
}

function drawMinutes(charts, counter, unit, rows, begin) {
  const gpus = new Map(), instants = new Set();
  for (const row of rows) {
    const key = `${row.node} GPU ${row.gpu}${row.mig === null ? "" : `.${row.mig}`}`, at = Math.max(0, Date.parse(row.minute) / 1000 - begin);
    instants.add(at);
    if (!gpus.has(key)) gpus.set(key, new Map());
    gpus.get(key).set(at, row[counter]);
  }
  const times = [...instants].sort((a, b) => a - b);
  const each = [...gpus].map(([label, values]) => [label, times.map((at) => values.get(at) ?? null)]);
  if (each.length <= MOST_LINES) return charts.add(`${counter} of each GPU`, unit, times, each);
  const over = (of) => times.map((_, place) => { const known = each.map(([, values]) => values[place]).filter((value) => value !== null); return known.length ? of(known) : null; });
  charts.add(`${counter} of ${each.length} GPUs`, unit, times, [
    ["mean", over((known) => known.reduce((a, b) => a + b, 0) / known.length)],
    ["lowest", over((known) => Math.min(...known))], ["highest", over((known) => Math.max(...known))],
  ]);
}

function begin() {
  const chart = document.getElementById("chart"), source = document.getElementById("over-time");
  if (!chart || !source || !chart.hidden) return;
  const data = JSON.parse(source.textContent);
  if (!Object.keys(data.series).length) return;
  const output = document.getElementById("values"), counter = document.getElementById("counter"), plots = document.getElementById("plots"), legend = document.getElementById("marked");
  const drawing = document.querySelector("figure[data-hover]");
  chart.hidden = false;
  if (drawing && chart.dataset.drawing !== "stays") drawing.hidden = true;  // it alone has each of many GPUs
  const charts = new Charts(plots, data);
  const show = async () => {
    charts.clear();
    output.textContent = "";
    legend.textContent = data.marks.length ? `Shaded: ${data.marks.map(([label]) => label).join("; ")}.` : "";
    if (!counter.value) return drawSummary(charts, data);
    const wanted = counter.value;
    try {
      const rows = await readMinutes(chart.dataset.minutes, wanted, (count) => { output.textContent = `${count} minutes read`; });
      if (counter.value !== wanted) return;
      output.textContent = "";
      if (rows.length) drawMinutes(charts, wanted, counter.selectedOptions[0].dataset.unit, rows, data.start_s);
      else output.textContent = "No minute of it was measured.";
    } catch (problem) {
      output.textContent = `The minutes cannot be read: ${problem.message}`;
    }
  };
  counter.addEventListener("change", show);
  document.getElementById("whole").addEventListener("click", () => charts.whole());
  const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 };
  plots.tabIndex = 0;
  plots.setAttribute("role", "group");
  plots.setAttribute("aria-label", "Plots over time");
  plots.addEventListener("keydown", (event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    charts.move(steps[event.key]);
  });
  addEventListener("resize", () => { for (const plot of charts.plots) plot.setSize({ width: plots.clientWidth, height: 170 }); });
  show();
}

document.addEventListener("refreshed", begin);
begin();
