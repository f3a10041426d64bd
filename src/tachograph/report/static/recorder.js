// The recorder on the page of a job: a strip of each GPU and plots of counters over one time axis,
// with one cursor. All numbers are those of the element #recording, which Python made, but for a
// counter by minute, which the API has. Without this script the page shows a drawing of them.
"use strict";

const LANE = 24; // height of a lane of marks, pixels
const LABEL = 92; // pixels between ticks
const TICKS_S = [
  1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
];
const SEVERITIES = [null, "fact", "hint", "problem"]; // the worst is last
const KINDS = ["finding", "throttling", "event", "step", "wait"]; // from top to bottom
const DAY = { day: "numeric", month: "short" };
const TIME = { hour: "2-digit", minute: "2-digit" };

class Recorder {
  constructor(root, recording) {
    this.root = root;
    this.recording = recording;
    this.length = recording.length_s;
    this.stage = root.querySelector(".stage");
    this.readout = root.querySelector(".readout");
    this.spoken = root.querySelector("output");
    this.select = root.querySelector("select");
    this.view = [0, this.length]; // seconds after the start
    this.cursor = null;
    this.kept = null; // where the cursor stays when the pointer leaves
    this.row = null; // index of a GPU
    this.chosen = null; // the panel of the chosen counter
    this.plots = []; // {panel, plot, values}: what is drawn of each panel
    this.notice = ""; // what the readout says instead of values
    this.stopped = new AbortController();
    this.time = this.timeFormat();
    this.readAddress();
    this.build();
    this.listen();
  }

  // Puts together what is drawn: marks, time axis, strips, panels, time axis.
  build() {
    for (const { plot } of this.plots) plot.destroy();
    const { gpus, strips, panels, bin_s: bin } = this.recording;
    this.lanes = element("div", "lanes");
    this.axes = [element("canvas", "axis"), element("canvas", "axis")];
    this.heat = element("canvas", "strips");
    this.line = element("div", "cursor");
    this.selection = element("div", "selection");
    this.selection.hidden = true;
    this.stage.replaceChildren(this.lanes, this.axes[0]);
    this.builtWidth = this.stage.clientWidth;
    this.gutter = this.gutterWidth();
    if (strips) {
      const whose = gpus.length > 1 ? " of each GPU" : "";
      const title = `${strips.label}${whose}: yellow is 100 %, dark 0 %, grey not measured`;
      Object.assign(this.heat, { role: "img", ariaLabel: title });
      this.stage.append(element("p", "legend", title), this.heat);
      this.picture = heatPicture(strips.rows);
    }
    const ofPage = panels.map((panel) => ({ ...panel, first: 0, step_s: bin }));
    const shown = this.chosen ? [this.chosen, ...ofPage] : ofPage;
    this.plots = shown.map((panel) => this.addPanel(withLimit(panel)));
    this.stage.append(this.axes[1], this.line, this.selection);
    this.draw();
  }

  addPanel(panel) {
    const legend = element("p", "legend", panel.title);
    const box = element("div", "panel");
    const values = panel.lines.map((line) => {
      const item = element("span", line.dashed ? "line dashed" : "line", `${line.label} `);
      const value = element("b", "");
      item.style.setProperty("--of-line", `var(--${line.colour})`);
      item.append(value);
      legend.append(item);
      return value;
    });
    this.stage.append(legend, box);
    const plot = new uPlot(plotOptions(panel, this), panelData(panel, this.length), box);
    return { panel, plot, values };
  }

  get width() {
    return Math.max(120, this.stage.clientWidth - this.gutter - RIGHT);
  }

  get rowHeight() {
    const rows = this.recording.gpus.length;
    return rows === 1 ? 28 : within(Math.floor(384 / rows), 1, 18);
  }

  get resolution() {
    return this.chosen ? this.chosen.step_s : this.recording.bin_s;
  }

  gutterWidth() {
    const context = pen(element("canvas", ""), 1, 1);
    const widths = rowNames(this.recording.gpus).map(([name]) => context.measureText(name).width);
    return Math.round(Math.min(Math.max(76, ...widths) + 12, 0.3 * this.stage.clientWidth));
  }

  position(seconds) {
    const [begin, end] = this.view;
    return this.gutter + ((seconds - begin) / (end - begin)) * this.width;
  }

  secondsAt(position) {
    const [begin, end] = this.view;
    return within(begin + ((position - this.gutter) / this.width) * (end - begin), begin, end);
  }

  isVisible(mark) {
    return mark.end_s > this.view[0] && mark.begin_s < this.view[1];
  }

  // Steps fill the whole time: they are in a lane and shade nothing.
  get shadedMarks() {
    return this.recording.marks.filter((mark) => mark.kind !== "step" && this.isVisible(mark));
  }

  shade(context, box) {
    const ratio = window.devicePixelRatio || 1;
    context.save();
    const rank = (mark) => SEVERITIES.indexOf(mark.severity);
    for (const mark of this.shadedMarks.sort((one, other) => rank(one) - rank(other))) {
      const begin = Math.max(box.left, ratio * this.position(mark.begin_s));
      const end = Math.min(box.left + box.width, ratio * this.position(mark.end_s));
      const area = [begin, box.top, Math.max(ratio, end - begin), box.height];
      context.fillStyle = `${colour(markColour(mark))}22`;
      context.clearRect(...area); // where marks overlap the worst one shades alone
      context.fillRect(...area);
    }
    context.restore();
  }

  ticks() {
    const [begin, end] = this.view;
    const least = ((end - begin) * LABEL) / this.width;
    const step = TICKS_S.find((seconds) => seconds >= least) || Math.ceil(least / 604800) * 604800;
    const ticks = [];
    for (let tick = Math.ceil(begin / step) * step; tick <= end; tick += step) ticks.push(tick);
    return ticks;
  }

  // Returns the format of a time: with its zone if that has no clock here, or changes its offset.
  timeFormat() {
    const named = { ...TIME, timeZoneName: "short" };
    try {
      const names = [0, this.length].map((seconds) => this.clock(seconds, named).split(" ").at(-1));
      return names[0] === names[1] ? TIME : named;
    } catch {
      this.recording.zone = "UTC"; // browsers do not know all zones of Python
      return named;
    }
  }

  // Returns a time as the site's clock shows it.
  clock(seconds, options) {
    const moment = new Date(1000 * (this.recording.start_s + seconds));
    const zone = { timeZone: this.recording.zone, hourCycle: "h23" };
    return new Intl.DateTimeFormat("en-GB", { ...zone, ...options }).format(moment);
  }

  draw() {
    this.drawLanes();
    for (const canvas of this.axes) this.drawAxis(canvas);
    if (this.recording.strips) this.drawStrips();
    for (const { plot } of this.plots) {
      plot.batch(() => {
        plot.setSize({ width: this.stage.clientWidth, height: PANEL });
        plot.setScale("x", { min: this.view[0], max: this.view[1] });
        plot.redraw(false, true);
      });
    }
    this.showCursor();
  }

  drawAxis(canvas) {
    const context = pen(canvas, this.stage.clientWidth, 34);
    const reserved = context.measureText("since start").width + 6;
    const write = (text, position, height, role, least = 0) => {
      const half = context.measureText(text).width / 2;
      const left = within(position - half, 0, this.stage.clientWidth - 2 * half);
      context.fillStyle = colour(role);
      if (left >= least) context.fillText(text, left, height);
    };
    write("since start", 0, 26, "faint");
    let day = "";
    const ticks = this.ticks();
    const precision = ticks[1] - ticks[0] < 60 ? { ...this.time, second: "2-digit" } : this.time;
    for (const seconds of ticks) {
      const position = this.position(seconds);
      write(duration(seconds), position, 26, "faint", reserved);
      context.fillRect(position, 0, 1, 4);
      if (!isKnown(this.recording.start_s)) continue;
      const date = this.clock(seconds, DAY);
      const time = this.clock(seconds, precision);
      write(date === day ? time : `${date}, ${time}`, position, 11, "ink");
      day = date;
    }
  }

  drawStrips() {
    const { gpus, bin_s: bin } = this.recording;
    const rows = gpus.length;
    const height = this.rowHeight * rows;
    const context = pen(this.heat, this.stage.clientWidth, height);
    const [begin, end] = this.view;
    const source = [begin / bin, 0, (end - begin) / bin, rows];
    const target = [this.gutter, 0, this.width, height];
    context.fillStyle = colour("line");
    context.fillRect(...target);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, ...source, ...target);
    context.fillStyle = colour("paper");
    for (let row = 1; this.rowHeight >= 4 && row < rows; row += 1) {
      context.fillRect(this.gutter, row * this.rowHeight - 0.5, this.width, 1);
    }
    for (const seconds of this.shadedMarks.flatMap((mark) => [mark.begin_s, mark.end_s])) {
      if (seconds <= begin || seconds >= end) continue;
      context.fillStyle = colour("paper"); // an edge that is seen on yellow and on violet
      context.fillRect(this.position(seconds) - 1, 0, 3, height);
      context.fillStyle = colour("ink");
      context.fillRect(this.position(seconds), 0, 1, height);
    }
    context.fillStyle = colour("ink");
    const names = rowNames(gpus).filter(([, , count]) => count * this.rowHeight >= 12);
    for (const [name, row, count] of names.length ? names : [[`${rows} GPUs`, 0, rows]]) {
      context.fillText(name, 0, (row + count / 2) * this.rowHeight + 1, this.gutter - 8);
    }
  }

  drawLanes() {
    const marks = this.recording.marks.filter((mark) => this.isVisible(mark));
    this.lanes.replaceChildren();
    let top = 0;
    for (const kind of KINDS) {
      const ofKind = marks.filter((mark) => mark.kind === kind);
      if (!ofKind.length) continue;
      const heading = element("span", "kind", kind);
      heading.style.top = `${top}px`;
      this.lanes.append(heading);
      const edges = [this.gutter, this.gutter + this.width];
      const [boxes, lanes] = markBoxes(ofKind, (seconds) => this.position(seconds), edges);
      for (const box of boxes) this.addMark({ ...box, top: top + LANE * box.lane });
      top += LANE * lanes;
    }
    this.lanes.style.height = `${top}px`;
  }

  addMark({ mark, left, top, width, begin, end, isNamed }) {
    const button = element("button", "mark", isNamed ? mark.label : "");
    const bar = element("i", "");
    const interval = `${duration(mark.begin_s)} to ${duration(mark.end_s)} after the start`;
    Object.assign(button, { type: "button", title: `${mark.label}: ${interval}; enlarge` });
    Object.assign(button.style, { left: `${left}px`, top: `${top}px`, width: `${width}px` });
    Object.assign(bar.style, { left: `${begin - left}px`, width: `${end - begin}px` });
    bar.style.background = `var(--${markColour(mark)})`;
    button.append(bar);
    const margin = 0.05 * (mark.end_s - mark.begin_s);
    button.addEventListener("click", () => this.zoom(mark.begin_s - margin, mark.end_s + margin));
    this.lanes.append(button);
  }

  zoom(from, to) {
    const span = within(to - from, Math.min(this.length, 4 * this.resolution), this.length);
    const begin = within((from + to - span) / 2, 0, this.length - span);
    this.view = [begin, begin + span];
    this.draw();
    this.writeAddress();
  }

  // Moves the cursor to the middle of a bin; `keep`: it stays there, and its values are read out;
  // `pan`: the bin may be outside of the view, which then follows.
  moveTo(seconds, keep, pan = false) {
    const bin = this.resolution;
    const [begin, end] = this.view;
    const last = Math.max(0, Math.ceil(this.length / bin) - 1);
    const low = pan ? 0 : within(Math.ceil(begin / bin - 0.5), 0, last);
    const high = pan || end >= this.length ? last : Math.max(low, Math.floor(end / bin - 0.5));
    const index = within(Math.floor(seconds / bin), low, high);
    this.cursor = Math.min(this.length, (index + 0.5) * bin);
    this.notice = "";
    this.showCursor();
    if (!keep) return;
    this.kept = this.cursor;
    const half = (end - begin) / 2;
    if (this.cursor < begin || this.cursor > end) this.zoom(this.cursor - half, this.cursor + half);
    this.spoken.textContent = this.sentence();
    this.writeAddress();
  }

  get isCursorVisible() {
    return isKnown(this.cursor) && this.cursor >= this.view[0] && this.cursor <= this.view[1];
  }

  showCursor() {
    this.line.hidden = !this.isCursorVisible;
    this.line.style.left = `${this.position(this.cursor ?? 0)}px`;
    for (const drawn of this.plots) {
      drawn.values.forEach((text, index) => {
        text.textContent = this.isCursorVisible ? this.valueText(drawn, index) : "";
      });
    }
    const shown = this.isCursorVisible ? this.place() : this.readout.dataset.hint;
    this.readout.textContent = this.notice || shown;
  }

  // Returns the value of a line of a plot at the cursor.
  valueText({ panel }, line) {
    const index = Math.floor(this.cursor / panel.step_s) - panel.first;
    return quantity(panel.lines[line].values[index], panel.unit);
  }

  // Returns time, GPU and marks at the cursor.
  place() {
    const { start_s: start, strips, gpus, bin_s: bin, marks } = this.recording;
    const parts = [`${duration(this.cursor)} after the start`];
    if (isKnown(start)) parts.unshift(this.clock(this.cursor, { ...DAY, ...this.time }));
    if (strips && (this.row !== null || gpus.length === 1)) {
      const row = this.row ?? 0;
      const value = strips.rows[row][Math.floor(this.cursor / bin)];
      parts.push(`${gpus[row]}: ${strips.label} ${quantity(value, strips.unit)}`);
    }
    const here = marks.filter((mark) => mark.begin_s <= this.cursor && mark.end_s >= this.cursor);
    return [...parts, ...here.map((mark) => mark.label)].join(" · ");
  }

  sentence() {
    const values = this.plots.flatMap((drawn) =>
      drawn.panel.lines.map((line, index) => `${line.label} ${this.valueText(drawn, index)}`),
    );
    return [this.place(), ...values].join(", ");
  }

  // Shows a counter of each GPU by minute; without an API its values of the page.
  async choose(name) {
    const counter = this.recording.counters.find((known) => known.name === name);
    const wanted = counter ? name : "";
    this.select.value = wanted;
    this.chosen = null;
    this.notice = counter ? "Reading minutes…" : "";
    this.build(); // without the counter that was chosen before
    if (!counter) return;
    const failed = (error) => [null, `The minutes cannot be read: ${error.message}`];
    const reading = counterPanel(counter, this.recording, this.root.dataset.minutes);
    const [panel, problem] = await reading.then((read) => [read, ""], failed);
    if (this.select.value !== wanted || this.stopped.signal.aborted) return;
    this.chosen = panel;
    this.notice = problem;
    this.build();
  }

  // The address has what a colleague should see: interval, counter, cursor.
  writeAddress() {
    const fields = [];
    const [begin, end] = this.view.map(Math.round);
    if (this.view[1] - this.view[0] < this.length) fields.push(`t=${begin}-${end}`);
    if (this.select.value) fields.push(`c=${this.select.value}`);
    if (this.kept !== null) fields.push(`x=${Math.round(this.kept)}`);
    clearTimeout(this.writing); // browsers refuse many changes in a short time
    this.writing = setTimeout(() => {
      const plain = location.pathname + location.search;
      history.replaceState(history.state, "", fields.length ? `#${fields.join("&")}` : plain);
    }, 100);
  }

  readAddress() {
    const fields = new URLSearchParams(location.hash.slice(1));
    if (!["t", "c", "x"].some((name) => fields.has(name))) return; // of another part of the page
    const times = (fields.get("t") || "").split("-").map(Number);
    const [begin, end] = times.map((seconds) => within(seconds, 0, this.length));
    this.view = times.every(Number.isFinite) && begin < end ? [begin, end] : [0, this.length];
    const cursor = Number(fields.get("x") || NaN);
    this.cursor = this.kept = Number.isFinite(cursor) ? within(cursor, 0, this.length) : null;
    const counter = fields.get("c") || "";
    if (counter !== this.select.value) this.choose(counter);
  }

  press(event) {
    if (event.target !== this.stage || event.ctrlKey || event.altKey || event.metaKey) return;
    const [begin, end] = this.view;
    const bin = this.resolution;
    const middle = this.isCursorVisible ? this.cursor : (begin + end) / 2;
    const move = (seconds) => this.moveTo(seconds, true);
    const zoomBy = (factor) =>
      this.zoom(middle - factor * (middle - begin), middle + factor * (end - middle));
    const step = (bins) =>
      this.kept === null ? move(begin) : this.moveTo(this.kept + bins * bin, true, true);
    const rowBy = (rows) => {
      this.row = within((this.row ?? -1) + rows, 0, this.recording.gpus.length - 1);
      move(middle);
    };
    const keys = {
      ArrowRight: () => step(1),
      ArrowLeft: () => step(-1),
      PageDown: () => step(10),
      PageUp: () => step(-10),
      ArrowDown: () => rowBy(1),
      ArrowUp: () => rowBy(-1),
      Home: () => move(begin),
      End: () => move(end - 0.001),
      "+": () => zoomBy(0.5),
      "-": () => zoomBy(2),
      Escape: () => this.zoom(0, this.length),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }

  listen() {
    const { signal } = this.stopped;
    const on = (target, name, handle) => target.addEventListener(name, handle, { signal });
    const at = (event) => event.clientX - this.stage.getBoundingClientRect().left;
    let pressed = null; // pixel at which a drag began
    on(this.stage, "pointermove", (event) => {
      const top = this.heat.getBoundingClientRect().top;
      const row = Math.floor((event.clientY - top) / this.rowHeight);
      this.row = row >= 0 && row < this.recording.gpus.length ? row : null;
      this.moveTo(this.secondsAt(at(event)), false);
      this.selection.hidden = pressed === null;
      this.selection.style.left = `${Math.min(pressed, at(event))}px`;
      this.selection.style.width = `${Math.abs(pressed - at(event))}px`;
    });
    on(this.stage, "pointerdown", (event) => {
      if (event.button === 0 && !event.target.closest("button")) pressed = at(event);
    });
    on(window, "pointercancel", () => {
      pressed = null; // a finger scrolls the page
      this.selection.hidden = true;
    });
    on(window, "pointerup", (event) => {
      if (pressed === null) return;
      const [from, to] = [pressed, at(event)].sort((one, other) => one - other);
      pressed = null;
      this.selection.hidden = true;
      if (to - from < 4) this.moveTo(this.secondsAt(to), true);
      else this.zoom(this.secondsAt(from), this.secondsAt(to));
    });
    on(this.stage, "pointerleave", () => {
      this.cursor = this.kept;
      this.showCursor();
    });
    on(this.stage, "keydown", (event) => this.press(event));
    on(this.stage, "dblclick", () => this.zoom(0, this.length));
    on(this.root.querySelector(".whole"), "click", () => this.zoom(0, this.length));
    on(this.select, "change", () => this.choose(this.select.value).then(() => this.writeAddress()));
    on(window, "hashchange", () => {
      this.readAddress();
      this.draw();
    });
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.draw());
    const resized = new ResizeObserver(() => {
      if (this.stage.clientWidth !== this.builtWidth) this.build();
    });
    resized.observe(this.stage);
    signal.addEventListener("abort", () => resized.disconnect());
  }
}

let recorder = null;
function begin() {
  const root = document.getElementById("recorder");
  const source = document.getElementById("recording"); // none: no minute was measured
  if (recorder) recorder.stopped.abort();
  if (!source) return;
  root.classList.add("live");
  try {
    recorder = new Recorder(root, JSON.parse(source.textContent));
  } catch (error) {
    root.classList.remove("live"); // the drawing stays
    throw error;
  }
}

document.addEventListener("refreshed", begin); // a running job got new data
begin();
