// Shows the values of the plot over time under a pointer, or by the arrow keys. The page is complete without it.
"use strict";
for (const figure of document.querySelectorAll("figure[data-hover]")) {
  const svg = figure.querySelector("svg"), output = figure.querySelector("output");
  const data = JSON.parse(document.getElementById(figure.dataset.hover).textContent);
  const series = Object.entries(data.series);
  if (!svg || !series.length) continue;
  const bins = Math.max(...series.map(([, [, values]]) => values.length));
  const wide = data.length_s / data.bin_s;  // of the axis, in bins
  const [begin, end] = [Number(svg.dataset.begin), Number(svg.dataset.end)];
  const box = svg.viewBox.baseVal;
  const line = document.createElementNS(svg.namespaceURI, "line");
  line.setAttribute("class", "cursor");
  line.setAttribute("y1", 0);
  line.setAttribute("y2", box.height);
  const units = {
    fraction: (x) => `${(100 * x).toFixed(0)} %`, ratio: (x) => x.toFixed(2),
    MiB: (x) => `${(x / 1024).toFixed(1)} GiB`, W: (x) => `${x.toFixed(0)} W`,
  };
  const clock = (s) => s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h ${String(Math.floor(s / 60) % 60).padStart(2, "0")} min`;
  let place = 0;
  const show = (at) => {
    place = Math.min(bins - 1, Math.max(0, at));
    const x = box.width * (begin + (end - begin) * Math.min(1, (place + 0.5) / wide));
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    svg.append(line);
    const known = series.filter(([, [, values]]) => values[place] !== null && values[place] !== undefined);
    const values = known.map(([label, [unit, of]]) => `${label} ${units[unit](of[place])}`);
    output.textContent = `${clock(place * data.bin_s)} after the start: ${values.join(", ") || "not measured"}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const share = ((event.clientX - frame.left) / frame.width - begin) / (end - begin);
    if (share >= 0 && share <= 1) show(Math.floor(share * wide));
  });
  const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -bins, End: bins };
  figure.tabIndex = 0;
  figure.addEventListener("keydown", (event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    show(place + steps[event.key]);
  });
}
