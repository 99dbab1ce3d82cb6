// What the mouse, a finger and the arrow keys do to a chart: values at a step, what an event says, zoom.

const NARROW = 500; // px: a box with all values would hide the curves

/** Of each visible curve the logged step that is nearest to `at`: [series index, row]. */
function readings(chart, at) {
  return chart.curves.flatMap((curve, index) => {
    if (chart.hidden.has(index) || !curve.x.length) return [];
    const slack = (curve.x.at(-1) - curve.x[0]) * 0.002;
    if (at < curve.x[0] - slack || at > curve.x.at(-1) + slack) return [];
    return [[index, nearest(curve.x, at)]];
  });
}

function valueText(series, value) {
  if (value === undefined) return "";
  return value === null ? (series.key === "loss" ? "not finite" : "none") : number(value);
}

function where(table, row) {
  const step = `step ${table.step[row].toLocaleString("en")}`;
  return [step, `${count(table.tokens[row])} tokens`, duration(table.hours[row])].join(" · ");
}

/** Draw the crosshair at `at` (on the axis; null: none), and the box with its values where the mouse is. */
function crosshair(chart, at, active) {
  const { spec, curves, cursor, box, tip } = chart;
  if (!cursor) return;
  cursor.replaceChildren();
  tip.hidden = true;
  const found = at === null ? [] : readings(chart, at);
  spec.series.forEach((series, index) => {
    const row = at === null ? curves[index].y.length - 1 : found.find(([one]) => one === index)?.[1];
    chart.outputs[index].textContent = valueText(series, curves[index].y[row]);
  });
  if (!found.length) return;
  const distance = ([index, row]) => Math.abs(curves[index].x[row] - at);
  const [first, nearestRow] = found.reduce((best, one) => (distance(one) < distance(best) ? one : best));
  const x = chart.x(curves[first].x[nearestRow]);
  if (!(x >= box.left - 1 && x <= box.right + 1)) return;
  node("line", { x1: x, x2: x, y1: box.top, y2: box.bottom }, cursor);
  for (const [index, row] of found) {
    const [cx, cy] = [chart.x(curves[index].x[row]), chart.y(curves[index].y[row])];
    if (curves[index].y[row] === null || !Number.isFinite(cx + cy)) continue;
    node("circle", { cx, cy, r: 4, style: `--c: var(--c${spec.series[index].colour % 8})` }, cursor);
  }
  if (!active) return;
  const step = curves[first].table.step[nearestRow];
  tip.replaceChildren();
  element("b", "", tip, where(curves[first].table, nearestRow));
  const listed = chart.width > NARROW ? found : []; // the legend has the values, too
  for (const [index, row] of listed) {
    const line = element("div", curveClass(spec.series[index]), tip);
    line.style.setProperty("--c", `var(--c${spec.series[index].colour % 8})`);
    element("i", "", line);
    const own = curves[index].table.step[row];
    element("span", "", line, spec.series[index].label + (own === step ? "" : ` (step ${own.toLocaleString("en")})`));
    element("output", "", line, valueText(spec.series[index], curves[index].y[row]));
  }
  placeTip(chart, x, box.top + 4);
}

function showEvent(chart, found) {
  const { run, index, event } = found;
  chart.tip.replaceChildren();
  const name = chart.runs.length > 1 ? `${run.name}: ${event.kind}` : event.kind;
  element("b", "", chart.tip, name);
  element("p", "", chart.tip, where(run.events, index));
  if (event.text) element("p", "", chart.tip, event.text);
  element("p", "", chart.tip, event.time);
  placeTip(chart, found.x, found.y - 8, true);
}

/** Beside x, on the side that has more space. */
function placeTip(chart, x, y, above) {
  const { tip, width } = chart;
  tip.hidden = false;
  tip.style.maxWidth = `${Math.max(150, Math.max(x, width - x) - 20)}px`;
  const left = x > width / 2 ? x - tip.offsetWidth - 12 : x + 12;
  tip.style.left = `${Math.max(0, Math.min(left, width - tip.offsetWidth))}px`;
  tip.style.top = `${above ? y - tip.offsetHeight : y}px`;
}

/** Let a chart answer to pointer and keys: `moved(at, chart)` tells all charts, `zoomed(range)` sets their range. */
function listen(chart, moved, zoomed) {
  const { plot } = chart;
  let begin = null; // of a range that is being drawn, in pixels
  const band = element("div", "range", plot);
  band.hidden = true;
  const place = (event) => {
    const frame = plot.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const held = (x) => Math.min(Math.max(x, chart.box.left), chart.box.right);
  plot.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    moved(chart.x.invert(held(x)), chart);
    const marked = y > chart.box.bottom ? chart.eventAt(x, y) : undefined;
    if (marked) showEvent(chart, marked);
    if (begin === null) return;
    band.hidden = Math.abs(held(x) - begin) < 6;
    band.style.cssText = `left:${Math.min(begin, held(x))}px;width:${Math.abs(held(x) - begin)}px`;
    Object.assign(band.style, { top: `${chart.box.top}px`, height: `${chart.box.bottom - chart.box.top}px` });
  });
  plot.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch" && event.button === 0) begin = held(place(event)[0]);
  });
  window.addEventListener("pointerup", (event) => {
    if (begin === null) return;
    const ends = [begin, held(place(event)[0])].sort((a, b) => a - b);
    begin = null;
    band.hidden = true;
    if (ends[1] - ends[0] >= 6) zoomed(ends.map(chart.x.invert));
  });
  plot.addEventListener("pointerleave", () => moved(null, chart));
  plot.addEventListener("dblclick", () => zoomed(null));
  plot.addEventListener("blur", () => moved(null, chart));
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") zoomed(null);
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const index = chart.curves.findIndex((_, one) => !chart.hidden.has(one));
    if (!way || index < 0) return;
    const { x } = chart.curves[index];
    const row = chart.view.at === null ? x.length - 1 : nearest(x, chart.view.at) + way;
    moved(x[Math.min(Math.max(row, 0), x.length - 1)], chart);
    event.preventDefault();
  });
}
