// Scales, ticks, numbers for people, and the arithmetic of curves. No DOM here.

/** A function from data to pixels; on a log scale what is not positive has no place (NaN). */
function makeScale(low, high, from, to, log) {
  const bend = log ? (value) => (value > 0 ? Math.log10(value) : NaN) : (value) => value;
  const begin = bend(low);
  const span = bend(high) - begin || 1;
  const scale = (value) => from + ((bend(value) - begin) / span) * (to - from);
  scale.invert = (pixel) => {
    const value = begin + ((pixel - from) / (to - from)) * span;
    return log ? 10 ** value : value;
  };
  return scale;
}

/** About `wanted` round numbers between low and high. */
function ticks(low, high, wanted, log) {
  if (log && high / low >= 10) {
    const decades = Math.log10(high / low);
    const digits = decades > wanted ? [1] : decades > wanted / 2 ? [1, 3] : [1, 2, 5];
    const every = Math.max(1, Math.ceil(decades / wanted));
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every) {
      found.push(...digits.map((digit) => digit * 10 ** power));
    }
    return found.filter((value) => value >= low * 0.9999 && value <= high * 1.0001);
  }
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough * 0.75);
  const found = [];
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  for (let more = 0; more <= last - first; more++) { // a number of 2 ** 53 plus one is the same number
    found.push(Number(((first + more) * step).toPrecision(12)));
  }
  return found;
}

/** 116534784 -> "117M". */
function count(value) {
  for (const [suffix, size] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["K", 1e3]]) {
    if (Math.abs(value) >= 0.9995 * size) return Number((value / size).toPrecision(3)) + suffix;
  }
  return String(Number(value.toPrecision(3)));
}

/** A measured value in four digits. */
function number(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e4) return count(value);
  if (size < 1e-3) return value.toExponential(2);
  return value.toPrecision(4);
}

/** The label of a tick, written like that of the `largest` one of its axis. */
function tickLabel(value, largest) {
  if (largest >= 1e3) return count(value);
  if (largest < 1e-3 && value !== 0) return value.toExponential();
  return String(Number(value.toPrecision(6)));
}

function duration(hours) {
  if (hours < 0.025) return (hours * 3600).toPrecision(3) + " s";
  if (hours < 1.5) return (hours * 60).toPrecision(3) + " min";
  if (hours < 72) return hours.toPrecision(3) + " h";
  return (hours / 24).toPrecision(3) + " d";
}

/** The unit of an hours axis that ends at `most`: [units per hour, name]. */
function timeUnit(most) {
  if (most < 0.05) return [3600, "seconds"];
  if (most < 3) return [60, "minutes"];
  return [1, "hours"];
}

/** Exponential moving average that forgets over `reach` steps, however far apart the logged ones are. */
function smoothed(steps, values, reach) {
  let mean = null;
  let before = 0;
  return values.map((value, index) => {
    if (value === null || reach <= 0) return value;
    const kept = mean === null ? 0 : Math.exp((before - steps[index]) / reach);
    before = steps[index];
    mean = mean === null ? value : kept * mean + (1 - kept) * value;
    return mean;
  });
}

/** Index of the entry of the ascending `values` that is nearest to `wanted`; -1 for none. */
function nearest(values, wanted) {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - values[low - 1] < values[low] - wanted ? low - 1 : values.length ? low : -1;
}

/** The same places, in order, at least `gap` apart and between low and high, moved as little as that allows. */
function apart(places, gap, low, high) {
  const order = places.map((_, index) => index).sort((a, b) => places[a] - places[b]);
  const moved = places.slice();
  let least = low;
  for (const index of order) {
    moved[index] = Math.max(moved[index], least);
    least = moved[index] + gap;
  }
  let most = high;
  for (const index of order.reverse()) {
    moved[index] = Math.min(moved[index], most);
    most = moved[index] - gap;
  }
  return moved;
}

/** SVG path through points [x, y] with null for a break; of each pixel column the first, least, greatest and last. */
function linePath(points) {
  const kept = [];
  let column = [];
  const flush = () => {
    if (column.length > 4) {
      const heights = column.map((point) => point[1]);
      const ends = [0, heights.indexOf(Math.min(...heights)), heights.indexOf(Math.max(...heights)), column.length - 1];
      column = [...new Set(ends.sort((a, b) => a - b))].map((index) => column[index]);
    }
    kept.push(...column);
    column = [];
  };
  for (const point of points) {
    if (!point || (column.length && Math.floor(column[0][0]) !== Math.floor(point[0]))) flush();
    if (point) column.push(point);
    else kept.push(null);
  }
  flush();
  let text = "";
  kept.forEach((point, index) => {
    if (!point) return;
    const begins = index === 0 || kept[index - 1] === null;
    text += (begins ? "M" : "L") + point[0].toFixed(1) + " " + point[1].toFixed(1);
    if (begins && !kept[index + 1]) text += "h0.01"; // a point alone is a dot
  });
  return text;
}
