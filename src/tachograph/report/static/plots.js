// What the recorder on the page of a job draws with: texts, colours, and one plot over time by
// uPlot. See recorder.js.
"use strict";

const MOST_LINES = 16; // GPUs up to which each has a line, and its name at its strip
const MOST_PARTS = 12; // answers of the API that are read for one counter
const ROWS = 10000; // minutes in one answer
const RIGHT = 14; // free pixels right of the time axis, for half a label
const PANEL = 92; // height of a plot, pixels
const MOST_LANES = 4; // of one kind of marks
const FONT = "12px system-ui, sans-serif";
const MIB_STEPS = [0.125, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].map((gib) => 1024 * gib);
// as in the drawing: lines are told apart in grey, too
const DASHES = { fp64: [8, 3], fp32: [4, 2.5], fp16: [1.5, 2.5] };
// colours of the lines of GPUs, the second time dashed
const LINES = ["accent", "compute", "memory", "problem", "fact", "hint", "ink", "faint"];
// viridis, from 0 to 1
const HEAT = [
  [68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37],
];

const isKnown = (value) => value !== null && value !== undefined;
const within = (value, low, high) => Math.min(high, Math.max(low, value));

function quantity(value, unit) {
  if (!isKnown(value)) return "–";
  if (unit === "fraction" && value > 0 && value < 0.0001) return "<0.01 %";
  if (unit === "fraction") {
    return `${value < 0.01 ? Number((100 * value).toPrecision(2)) : (100 * value).toFixed(0)} %`;
  }
  if (unit === "ratio") return value.toFixed(2);
  if (unit === "MiB" && value > 0 && value < 1024) return `${value.toFixed(0)} MiB`;
  if (unit === "MiB") return `${Number((value / 1024).toFixed(1))} GiB`;
  if (unit === "B/s" && value >= 1e9) return `${(value / 1e9).toFixed(1)} GB/s`;
  if (unit === "B/s" && value >= 1e6) return `${(value / 1e6).toFixed(1)} MB/s`;
  if (unit === "B/s") return `${Number((value / 1e3).toFixed(1))} kB/s`;
  if (unit === "W" && value < 10) return `${Number(value.toFixed(1))} W`;
  return `${value.toFixed(0)} ${unit}`;
}

function duration(seconds) {
  const whole = Math.round(seconds);
  const days = whole >= 172800 || whole % 86400 === 0 ? Math.floor(whole / 86400) : 0;
  const hours = Math.floor(whole / 3600) - 24 * days;
  const minutes = Math.floor(whole / 60) % 60;
  const padded = `${minutes}`.padStart(hours ? 2 : 1, "0");
  const parts = [[days, "d"], [hours, "h"], [padded, "min"], [whole % 60, "s"]];
  return parts.filter(([count]) => Number(count)).map((part) => part.join(" ")).join(" ") || "0 s";
}

// Returns a colour of the style sheet, which differs in a dark page.
function colour(role) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${role}`).trim();
}

function markColour(mark) {
  if (mark.severity) return mark.severity;
  return mark.kind === "step" ? "accent" : "faint";
}

function heatColour(value) {
  const position = within(value, 0, 1) * (HEAT.length - 1);
  const lower = Math.min(HEAT.length - 2, Math.floor(position));
  const upper = HEAT[lower + 1];
  return HEAT[lower].map((part, index) => part + (position - lower) * (upper[index] - part));
}

function element(name, className, text = "") {
  const created = document.createElement(name);
  created.className = className;
  created.textContent = text;
  return created;
}

// Sets the size of a canvas in CSS pixels and returns what draws on it.
function pen(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = FONT;
  context.textBaseline = "middle";
  context.fillStyle = colour("ink");
  return context;
}

// Returns strips as a picture with a pixel per cell; what was not measured is transparent.
function heatPicture(rows) {
  const picture = element("canvas", "");
  picture.width = rows[0].length;
  picture.height = rows.length;
  const context = picture.getContext("2d");
  const image = context.createImageData(picture.width, picture.height);
  rows.flat().forEach((value, index) => {
    if (isKnown(value)) image.data.set([...heatColour(value), 255], 4 * index);
  });
  context.putImageData(image, 0, 0);
  return picture;
}

// Returns the rows of one counter by minute that the API has.
async function readMinutes(address, counter) {
  const rows = [];
  let next = `${address}?fields=node,gpu,mig,minute,${counter}&limit=${ROWS}`;
  for (let part = 0; next && part < MOST_PARTS; part += 1) {
    const answer = await fetch(next, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    rows.push(...(await answer.json()));
    next = /<([^>]+)>;\s*rel="next"/.exec(answer.headers.get("Link") || "")?.[1];
  }
  if (next) throw new Error("there are too many");
  return rows;
}

// Returns a panel of a counter by minute: a line of each GPU, of many their mean and extremes.
// A minute that is missing parts the line.
function minutesPanel({ label, unit, name }, rows) {
  const byGpu = new Map();
  for (const row of rows) {
    const gpu = `${row.node} GPU ${row.gpu}${isKnown(row.mig) ? `/${row.mig}` : ""}`;
    if (!byGpu.has(gpu)) byGpu.set(gpu, new Map());
    byGpu.get(gpu).set(row.minute, row[name]);
  }
  const first = rows.reduce((least, row) => Math.min(least, row.minute), Infinity);
  const last = rows.reduce((most, row) => Math.max(most, row.minute), first);
  const minutes = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  const gpus = [...byGpu].map(([gpu, values]) => ({
    label: gpu,
    values: minutes.map((minute) => values.get(minute) ?? null),
  }));
  const panel = { unit, first, step_s: 60, most: unit === "fraction" ? 1 : null };
  if (gpus.length <= MOST_LINES) {
    panel.title = `${label} of each GPU, by minute`;
    const look = (row) => ({ colour: LINES[row % LINES.length], dashed: row >= LINES.length });
    panel.lines = gpus.map((gpu, row) => ({ ...gpu, ...look(row) }));
    return panel;
  }
  const statistic = (compute) =>
    minutes.map((_, index) => {
      const known = gpus.map((gpu) => gpu.values[index]).filter(isKnown);
      return known.length ? compute(known) : null;
    });
  const mean = statistic((known) => known.reduce((sum, value) => sum + value, 0) / known.length);
  panel.title = `${label} of ${gpus.length} GPUs, by minute: mean, lowest to highest`;
  panel.lines = [{ label: "mean", values: mean, colour: "accent", dashed: false }];
  const [low, high] = [Math.min, Math.max].map((most) => statistic((known) => most(...known)));
  panel.band = { low, high };
  return panel;
}

// Returns a panel with all lines that are drawn: a limit is one with the same value everywhere.
function withLimit(panel) {
  if (!panel.limit) return panel;
  const { label, value } = panel.limit;
  const values = panel.lines[0].values.map(() => value);
  return { ...panel, lines: [...panel.lines, { label, values, colour: "problem", dashed: true }] };
}

// Returns [times, values of each line, highest, lowest] of a panel; times are middles.
function panelData(panel, lengthS) {
  const series = panel.lines.map((line) => line.values);
  const times = series[0].map((_, index) =>
    Math.min(lengthS, (panel.first + index + 0.5) * panel.step_s),
  );
  return panel.band ? [times, ...series, panel.band.high, panel.band.low] : [times, ...series];
}

// Returns the indices of values between two that are missing: points, as they have no line.
function lonePoints(plot, series) {
  const values = plot.data[series];
  return [...values.keys()].filter(
    (index) => isKnown(values[index]) && !isKnown(values[index - 1]) && !isKnown(values[index + 1]),
  );
}

// Returns uPlot's options of a panel of a recorder, whose time axis and marks it shares.
function plotOptions(panel, recorder) {
  const grid = { stroke: () => colour("line"), width: 1 };
  const lines = panel.lines.map((line) => ({
    stroke: () => colour(line.colour),
    width: 1.5,
    dash: line.dashed ? (DASHES[line.colour] ?? [5, 3]) : undefined,
    points: { show: true, size: 4, fill: () => colour(line.colour), filter: lonePoints },
  }));
  const axis = { grid, ticks: { show: false }, font: FONT, stroke: () => colour("faint") };
  const timeAxis = { ...axis, size: 0, values: () => [], splits: () => recorder.ticks() };
  const valueAxis = {
    ...axis,
    size: recorder.gutter,
    space: 26,
    values: (_, ticks) => ticks.map((value) => quantity(value, panel.unit)),
  };
  if (panel.unit === "MiB") valueAxis.incrs = MIB_STEPS;
  const edges = panel.band ? [{ points: { show: false } }, { points: { show: false } }] : [];
  const fill = () => `${colour("accent")}33`;
  return {
    width: recorder.stage.clientWidth,
    height: PANEL,
    padding: [6, RIGHT, 6, 0],
    cursor: { show: false },
    legend: { show: false },
    scales: {
      x: { time: false, range: () => recorder.view },
      y: { range: (_, __, highest) => [0, 1.04 * (panel.most ?? (highest || 1))] },
    },
    axes: [timeAxis, valueAxis],
    series: [{}, ...lines, ...edges],
    bands: panel.band ? [{ series: [lines.length + 1, lines.length + 2], fill }] : [],
    hooks: { drawClear: [(plot) => recorder.shade(plot.ctx, plot.bbox)] },
  };
}

// Returns [name, first row, rows] of what has a name beside the strips: GPUs, or their nodes.
function rowNames(gpus) {
  if (gpus.length <= MOST_LINES) return gpus.map((name, row) => [name, row, 1]);
  const nodes = [];
  for (const [row, gpu] of gpus.entries()) {
    const node = gpu.slice(0, gpu.lastIndexOf("GPU ")).trim();
    if (!node) return [[`${gpus.length} GPUs`, 0, gpus.length]];
    if (nodes.length && nodes.at(-1)[0] === node) nodes.at(-1)[2] += 1;
    else nodes.push([node, row, 1]);
  }
  return nodes;
}

// Returns a panel of a counter: by minute as the API at `address` has it, else of the page.
async function counterPanel(counter, { panels, bin_s }, address) {
  const { name, label } = counter;
  if (address) {
    const rows = await readMinutes(address, name);
    if (!rows.some((row) => isKnown(row[name]))) throw new Error("none was measured");
    return minutesPanel(counter, rows);
  }
  const panel = panels.find((candidate) => candidate.lines.some((line) => line.counter === name));
  const lines = panel.lines.filter((line) => line.counter === name);
  return { ...panel, title: label, lines, first: 0, step_s: bin_s };
}

// Lays out marks of one kind in lanes, in which neither bars nor labels overlap; where no lane is
// free the bar is alone, without its label. Returns [boxes in pixels, number of lanes].
// position: pixel of a time; edges: of the time axis.
function markBoxes(marks, position, [first, last]) {
  const context = pen(element("canvas", ""), 1, 1);
  const taken = []; // up to which pixel each lane is in use
  const boxes = marks
    .sort((one, other) => one.begin_s - other.begin_s)
    .map((mark) => {
      const begin = Math.max(first, position(mark.begin_s));
      const end = Math.max(begin + 2, Math.min(last, position(mark.end_s)));
      const label = Math.min(last - first, context.measureText(mark.label).width + 10);
      let width = Math.max(end - begin, label);
      let left = Math.min(begin, last - width);
      let lane = taken.findIndex((pixel) => pixel <= left);
      const isNamed = lane >= 0 || taken.length < MOST_LANES;
      if (lane < 0) lane = Math.min(taken.length, MOST_LANES - 1);
      if (!isNamed) [left, width] = [begin, end - begin];
      taken[lane] = Math.max(taken[lane] ?? 0, left + width);
      return { mark, lane, left, width, begin, end, isNamed };
    });
  return [boxes, taken.length];
}
