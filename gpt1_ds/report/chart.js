// One chart: a legend with values, curves, n-gram lines named in the margin, events under the axis, a crosshair.

const SVG = "http://www.w3.org/2000/svg";
const EVENT_ROW = 9;

function node(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function element(name, kind, parent, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function eventClass(kind, bad) {
  if (bad.includes(kind)) return "bad";
  return kind === "saved" ? "saved" : ["started", "resumed", "stopped"].includes(kind) ? "turn" : "note";
}

/** The class of a curve's parts: after eight curves colours come again, and their lines are dotted. */
function curveClass(series) {
  return series.colour < 8 ? series.style : series.style + " again";
}

class Chart {
  /** `view` is shared by all charts: axis, logX, reach (of smoothing, in steps), zoom, unit, bad,
   * margin (right of the plots). */
  constructor(spec, runs, view, parent) {
    Object.assign(this, { spec, runs, view, hidden: new Set(), logY: Boolean(spec.log), width: 0 });
    this.figure = element("figure", "chart", parent);
    this.figure.id = "chart-" + spec.name;
    const head = element("header", "", this.figure);
    element("h3", "", head, spec.title);
    this.legend = element("div", "legend", head);
    const label = element("label", "check", head);
    this.logBox = element("input", "log-y", label);
    this.logBox.type = "checkbox";
    label.append(" log y");
    this.logBox.checked = this.logY;
    this.logBox.addEventListener("change", () => ((this.logY = this.logBox.checked), this.draw()));
    this.plot = element("div", "plot", this.figure);
    Object.assign(this.plot, { tabIndex: 0, role: "img" });
    this.plot.setAttribute("aria-label", spec.title + ": arrow keys move through the steps");
    this.tip = element("div", "tip", this.plot);
    element("figcaption", "", this.figure, spec.caption);
    this.texts = spec.marks.map((mark) => `${mark.label} ${mark.value ? mark.value.toFixed(2) : "0"}`);
    this.margin = 16 + 6.4 * Math.max(0, ...this.texts.map((text) => text.length));
    this.outputs = spec.series.map((series, index) => this.entry(series, index));
  }

  entry(series, index) {
    const button = element("button", curveClass(series), this.legend);
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.title = "hide or show this curve";
    button.style.setProperty("--c", `var(--c${series.colour % 8})`);
    element("i", "", button);
    element("span", "", button, series.label);
    button.addEventListener("click", () => {
      if (!this.hidden.delete(index)) this.hidden.add(index);
      button.setAttribute("aria-pressed", String(!this.hidden.has(index)));
      this.draw();
    });
    return element("output", "", button);
  }

  /** The columns of a series on the axis that is chosen. */
  curve(series) {
    const run = this.runs[series.run];
    const table = run.tables[series.table];
    const factor = this.view.axis === "hours" ? this.view.unit[0] : 1;
    const x = factor === 1 ? table[this.view.axis] : table[this.view.axis].map((value) => value * factor);
    const raw = table[series.key];
    const smooth = Boolean(series.noisy) && this.view.reach > 0;
    const breaks = series.table === "train" ? run.gaps : []; // steps at which the curve begins anew
    return { table, x, raw, y: smooth ? smoothed(table.step, raw, this.view.reach) : raw, smooth, breaks };
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const { spec, view } = this;
    this.curves = spec.series.map((series) => this.curve(series));
    const tall = ["loss", "task", "zero_shot"].includes(spec.name);
    const rows = Math.min(this.runs.length, 5);
    const height = (tall ? Math.min(440, 240 + width / 6) : 210) + rows * EVENT_ROW;
    const right = width > 700 ? view.margin : this.margin; // on a wide page the axes of all charts stand in line
    this.box = { left: 50, right: width - right, top: 8, bottom: height - 38 - rows * EVENT_ROW, rows };
    const { left, bottom, top } = this.box;
    const [low, high] = view.domain();
    this.x = makeScale(low, high, left, this.box.right, view.logX);
    const [least, most] = this.heights(low, high);
    this.y = makeScale(least, most, bottom, top, this.logY && least > 0);
    const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    this.drawAxes(svg, [low, high], [least, most], width, height);
    const clip = node("clipPath", { id: "clip-" + spec.name }, svg);
    node("rect", { x: left - 4, y: top - 4, width: this.box.right - left + 8, height: bottom - top + 8 }, clip);
    const inside = node("g", { "clip-path": `url(#clip-${spec.name})` }, svg);
    this.drawMarks(svg, least, most);
    spec.series.forEach((series, index) => {
      if (!this.hidden.has(index)) this.drawCurve(inside, series, this.curves[index]);
    });
    this.drawEvents(svg, low, high);
    this.cursor = node("g", { class: "cursor" }, svg);
    if (this.svg) this.svg.remove();
    this.svg = svg;
    this.plot.prepend(svg);
    crosshair(this, view.at, false);
  }

  /** The least and greatest height of what is to be seen, with some air. */
  heights(low, high) {
    const zoomed = this.view.zoom !== null;
    let least = Infinity;
    let most = -Infinity;
    const see = (value) => {
      if (value === null || (this.logY && value <= 0)) return;
      least = Math.min(least, value);
      most = Math.max(most, value);
    };
    this.curves.forEach((curve, index) => {
      if (this.hidden.has(index)) return;
      curve.x.forEach((x, row) => x >= low && x <= high && (see(curve.raw[row]), see(curve.y[row])));
    });
    if (!zoomed) this.spec.marks.forEach((mark) => see(mark.value));
    if (least > most) [least, most] = [this.logY ? 0.1 : 0, 1];
    if (this.logY) return [least / 1.04, most * 1.04];
    const size = Math.max(Math.abs(least), Math.abs(most));
    const span = most - least > 1e-9 * size ? most - least : size || 1; // the mean of equal values is rounded
    const air = span * 0.05;
    return [least >= 0 && least - air < 0 ? 0 : least - air, most + air];
  }

  drawAxes(svg, [low, high], [least, most], width, height) {
    const { left, right, top, bottom, rows } = this.box;
    const axes = node("g", { class: "axes" }, svg);
    const largest = Math.max(Math.abs(least), Math.abs(most));
    for (const value of ticks(least, most, (bottom - top) / 40, this.logY && least > 0)) {
      const y = this.y(value);
      node("line", { x1: left, x2: right, y1: y, y2: y }, axes);
      node("text", { x: left - 7, y: y + 4, "text-anchor": "end" }, axes, tickLabel(value, largest));
    }
    const place = bottom + 5 + rows * EVENT_ROW;
    let free = -Infinity; // labels never touch
    for (const value of ticks(low, high, (right - left) / 90, this.view.logX)) {
      const x = this.x(value);
      node("line", { x1: x, x2: x, y1: top, y2: bottom }, axes);
      const text = this.view.axis === "tokens" ? count(value) : tickLabel(value, high);
      const half = text.length * 3.3 + 4;
      if (x - half < free || x + half > width) continue;
      node("text", { x, y: place + 11, "text-anchor": "middle" }, axes, text);
      free = x + half;
    }
    node("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }, axes);
    const hours = `${this.view.unit[1]} of training`;
    const title = { step: "steps", tokens: "training tokens", hours }[this.view.axis];
    node("text", { class: "title", x: (left + right) / 2, y: height - 3, "text-anchor": "middle" }, axes, title);
  }

  drawMarks(svg, least, most) {
    const shown = this.spec.marks.map(({ value }, index) => ({ value, y: this.y(value), text: this.texts[index] }));
    const inside = shown.filter((mark) => mark.value >= least && mark.value <= most);
    const { left, right, top, bottom } = this.box;
    const places = apart(inside.map((mark) => mark.y), 14, top + 4, bottom - 4);
    const group = node("g", { class: "marks" }, svg);
    inside.forEach((mark, index) => {
      node("path", { d: `M${left} ${mark.y}H${right}` }, group);
      node("path", { class: "leader", d: `M${right} ${mark.y}L${right + 8} ${places[index]}` }, group);
      node("text", { x: right + 11, y: places[index] + 4 }, group, mark.text);
    });
  }

  drawCurve(parent, series, curve) {
    const group = node("g", { class: curveClass(series), style: `--c: var(--c${series.colour % 8})` }, parent);
    const points = (values) =>
      values.flatMap((value, row) => {
        const [x, y] = [this.x(curve.x[row]), value === null ? NaN : this.y(value)];
        const point = Number.isFinite(x) && Number.isFinite(y) ? [x, y] : null;
        const [before, step] = [curve.table.step[row - 1], curve.table.step[row]];
        return curve.breaks.some((begin) => before < begin && begin <= step) ? [null, point] : [point];
      });
    if (curve.smooth) node("path", { class: "raw", d: linePath(points(curve.raw)) }, group);
    const through = points(curve.y);
    node("path", { d: linePath(through) }, group);
    if (series.style === "circles" && through.length < this.box.right / 10) {
      through.forEach((point) => point && node("circle", { cx: point[0], cy: point[1], r: 3 }, group));
    }
    if (series.key === "loss") {
      curve.raw.forEach((value, row) => {
        const x = this.x(curve.x[row]);
        if (value !== null || !Number.isFinite(x)) return;
        node("path", { class: "absent", d: `M${x - 3} 9l6 6m0-6l-6 6` }, group);
      });
    }
  }

  drawEvents(svg, low, high) {
    const group = node("g", { class: "events" }, svg);
    this.events = [];
    const factor = this.view.axis === "hours" ? this.view.unit[0] : 1;
    this.runs.slice(0, this.box.rows).forEach((run, row) => {
      const y = this.box.bottom + 4 + row * EVENT_ROW;
      if (this.runs.length > 1) {
        const style = `fill: var(--c${row % 8})`;
        node("circle", { cx: this.box.right + 9, cy: y + 3, r: 3, style }, group);
      }
      let free = -Infinity;
      run.events.shown.forEach((event, index) => {
        const value = run.events[this.view.axis][index] * factor;
        const kind = eventClass(event.kind, this.view.bad);
        const x = this.x(Math.max(value, this.view.logX ? low : value));
        if (value > high || (this.view.zoom && value < low) || (kind === "saved" && x < free)) return;
        if (kind === "saved") free = x + 2.5;
        node("line", { class: kind, x1: x, x2: x, y1: y, y2: y + 6 }, group);
        this.events.push({ x, y: y + 3, run, index, event, rank: ["saved", "note", "turn", "bad"].indexOf(kind) });
      });
    });
  }

  /** The event under the mouse: of those within reach the one that tells most. */
  eventAt(x, y) {
    const near = this.events.filter((one) => Math.abs(one.x - x) < 6 && Math.abs(one.y - y) <= EVENT_ROW / 2);
    return near.sort((a, b) => b.rank - a.rank || Math.abs(a.x - x) - Math.abs(b.x - x))[0];
  }
}
