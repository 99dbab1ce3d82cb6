// The page: the controls that all charts share, the theme, and the filter of the hyper-parameters.

const { runs, charts: specs, bad } = JSON.parse(document.getElementById("data").textContent);
const controls = document.getElementById("controls");
const trained = runs.map((run) => run.tables.train);
const lastOf = (key) => Math.max(...trained.map((table) => table[key].at(-1)));

const view = {
  axis: "tokens",
  logX: false,
  reach: 0,
  zoom: null,
  at: null,
  bad, // kinds of events that are
  unit: timeUnit(lastOf("hours")),
  /** The least and greatest value of the axis, the same in all charts. */
  domain() {
    if (this.zoom) return this.zoom;
    const factor = this.axis === "hours" ? this.unit[0] : 1;
    const firsts = trained.map((table) => table[this.axis].find((value) => value > 0) ?? 1);
    return [this.logX ? Math.min(...firsts) * factor : 0, lastOf(this.axis) * factor || 1];
  },
};

const charts = specs.map((spec) => new Chart(spec, runs, view, document.getElementById("charts")));
view.margin = Math.max(...charts.map((chart) => chart.margin));

function drawAll() {
  document.getElementById("whole").hidden = view.zoom === null;
  charts.forEach((chart) => chart.draw());
}

function zoomed(range) {
  view.zoom = range;
  view.at = null;
  drawAll();
}

let waiting = false; // all charts follow the mouse, once a frame
let lastMoved = null;
function moved(at, active) {
  view.at = at;
  lastMoved = active;
  crosshair(active, at, true);
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    charts.forEach((chart) => chart === lastMoved || crosshair(chart, view.at, false));
  });
}

charts.forEach((chart) => listen(chart, moved, zoomed));
controls.hidden = false;
const dense = trained.some((table) => table.step.length > 1000);
controls.elements.smoothing.value = dense ? 10 : 0; // more points than pixels would be a bar
controls.addEventListener("submit", (event) => event.preventDefault());
controls.addEventListener("input", readControls);
function readControls() {
  const form = controls.elements;
  if (form.axis.value !== view.axis || form.logX.checked !== view.logX) view.zoom = null;
  view.axis = form.axis.value;
  view.logX = form.logX.checked;
  const part = (form.smoothing.value / 100) ** 2 * 0.2; // of the run: fine steps where little is smoothed
  view.reach = part * lastOf("step");
  document.getElementById("reach").textContent = part ? `${count(Math.max(1, Math.round(view.reach)))} steps` : "off";
  drawAll();
}
document.getElementById("whole").addEventListener("click", () => zoomed(null));
new ResizeObserver(() => {
  if (charts.some((chart) => chart.plot.clientWidth !== chart.width)) resize();
}).observe(document.body);
function resize() {
  charts.forEach((chart) => (chart.width = chart.plot.clientWidth));
  readControls();
}
resize();

const root = document.documentElement;
const memory = {
  get() {
    try {
      return localStorage.getItem("gpt1-ds theme");
    } catch {
      return null; // a browser may refuse it to a file
    }
  },
  set(theme) {
    try {
      localStorage.setItem("gpt1-ds theme", theme);
    } catch {
      // then it is for this visit
    }
  },
};
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
const button = document.getElementById("theme");
function showTheme(theme) {
  if (theme) root.dataset.theme = theme;
  button.textContent = dark() ? "Light theme" : "Dark theme";
}
showTheme(memory.get());
button.hidden = false;
button.addEventListener("click", () => {
  showTheme(dark() ? "light" : "dark");
  memory.set(root.dataset.theme);
});
prefersDark.addEventListener("change", () => showTheme());

const filter = document.getElementById("filter");
const settings = [...document.querySelectorAll("#settings tbody tr")];
function showSettings() {
  const { wanted, shown } = filter.elements;
  const text = wanted.value.trim().toLowerCase();
  settings.forEach((row) => {
    const chosen = shown.value === "all" || row.classList.contains(shown.value);
    row.hidden = !(text ? row.textContent.toLowerCase().includes(text) : chosen);
  });
  document.getElementById("none").hidden = settings.some((row) => !row.hidden);
}
filter.hidden = false;
filter.addEventListener("input", showSettings);
filter.addEventListener("submit", (event) => event.preventDefault());
showSettings();

document.querySelectorAll("button.copy").forEach((copy) => {
  copy.hidden = !navigator.clipboard;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(copy.previousElementSibling.textContent);
    copy.textContent = "copied";
  });
});
