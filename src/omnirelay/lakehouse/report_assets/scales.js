// Numbers, times and axes. All times are UTC.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30].map((count) => count * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((count) => count * MINUTE),
  ...[1, 2, 3, 6, 12].map((count) => count * HOUR),
  ...[1, 2, 7, 14, 28, 91, 182, 364, 728, 1820, 3640].map((count) => count * DAY),
];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function number(value) {
  return value.toLocaleString("en", { maximumFractionDigits: 1 });
}

function counted(value, one, many = `${one}s`) {
  return `${number(value)} ${value === 1 ? one : many}`;
}

function percent(share) {
  if (share > 0 && share < 0.001) return "under 0.1 %";
  return `${number(share * 100)} %`;
}

// A length of time, in its two largest units.
function length(ms) {
  if (ms === null || ms === undefined) return "not known";
  if (ms < SECOND) return `${number(ms < 10 ? ms : Math.round(ms))} ms`;
  if (ms < MINUTE) return `${number(ms / SECOND)} s`;
  for (const [unit, size, smaller, part] of [["d", DAY, "h", HOUR], ["h", HOUR, "min", MINUTE], ["min", MINUTE, "s", SECOND]]) {
    if (ms >= size) {
      const rest = Math.floor((ms % size) / part);
      return `${number(Math.floor(ms / size))} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
    }
  }
  return `${number(ms)} ms`;
}

function two(value) {
  return String(value).padStart(2, "0");
}

function day(ms) {
  const at = new Date(ms);
  return `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]} ${at.getUTCFullYear()}`;
}

function clock(ms, step) {
  const at = new Date(ms);
  let text = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
  if (step < MINUTE) text += `:${two(at.getUTCSeconds())}`;
  if (step < SECOND) text += `.${String(at.getUTCMilliseconds()).padStart(3, "0")}`;
  return text;
}

function instant(ms) {
  return ms === null || ms === undefined ? "not known" : `${day(ms)} ${clock(ms, ms % SECOND ? 1 : SECOND)}`;
}

function timeScale(span, left, right) {
  const scale = (ms) => left + ((Math.min(Math.max(ms, span.from_ms), span.to_ms) - span.from_ms) / (span.to_ms - span.from_ms)) * (right - left);
  return Object.assign(scale, { left, right, span });
}

// Times along the bottom: a line of times, and below it the day where it begins.
function timeAxis(svg, x, top, bottom) {
  const { from_ms: from, to_ms: to } = x.span;
  const room = x.right - x.left;
  const step = STEPS.find((each) => {
    const widest = each < SECOND ? 96 : each < MINUTE ? 74 : 62;
    return (each / (to - from)) * room >= widest;
  }) ?? STEPS[STEPS.length - 1];
  let lastDay = "";
  let dayEnds = -Infinity;
  for (let at = Math.ceil(from / step) * step; at < to; at += step) {
    const place = x(at);
    draw(svg, "line", { class: "grid", x1: place, x2: place, y1: top, y2: bottom });
    const today = day(at);
    const label = step >= DAY ? today.replace(/ \d+$/, "") : clock(at, step);
    const half = widthOf(label) / 2;
    if (place - half >= 0 && place + half <= x.right + 14) {
      draw(svg, "text", { x: place, y: bottom + 19, "text-anchor": "middle" }, label);
    }
    const below = step >= DAY ? today.split(" ")[2] : today;
    const begins = Math.max(2, place - widthOf(below) / 2);
    if (below !== lastDay && begins > dayEnds + 8 && begins + widthOf(below) <= x.right + 14) {
      draw(svg, "text", { x: begins, y: bottom + 34 }, below);
      dayEnds = begins + widthOf(below);
    }
    lastDay = below;
  }
  if (dayEnds === -Infinity) draw(svg, "text", { x: x.left, y: bottom + 34 }, day(from));
  const title = "time (UTC)";
  if (dayEnds < x.right - widthOf(title) - 10) draw(svg, "text", { x: x.right, y: bottom + 34, "text-anchor": "end" }, title);
  else draw(svg, "text", { x: x.right, y: bottom + 49, "text-anchor": "end" }, title);
}

// Round counts from 0 up to at least the largest.
function countTicks(largest) {
  const rough = Math.max(1, largest) / 4;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((each) => each * size).find((each) => each >= rough));
  const ticks = [];
  for (let at = 0; at < largest + step; at += step) ticks.push(at);
  return ticks;
}

// Lengths of time that people have names for, from below the smallest to above the largest.
const LENGTHS = [1, 10, 100, SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 28 * DAY, 364 * DAY, 3640 * DAY, 36400 * DAY];

function lengthTicks(values) {
  const low = Math.max(1, Math.min(...values));
  const high = Math.max(1, ...values);
  const first = LENGTHS.filter((each) => each <= low).length - 1;
  const last = LENGTHS.findIndex((each) => each >= high && each > LENGTHS[first]);
  const ticks = LENGTHS.slice(first, (last < 0 ? LENGTHS.length - 1 : last) + 1);
  if (ticks.length > 3) return ticks;
  return ticks.flatMap((tick, at) => [1, 2, 5].map((times) => times * tick).filter((each) => each === tick || each < (ticks[at + 1] ?? 0)));
}

function lengthScale(ticks, bottom, top) {
  const low = Math.log(ticks[0]);
  const high = Math.log(ticks[ticks.length - 1]);
  return (ms) => bottom - ((Math.log(Math.max(ms, ticks[0])) - low) / (high - low)) * (bottom - top);
}

function valueAxis(svg, ticks, y, left, right, text, title) {
  let last = Infinity;
  for (const tick of ticks) {
    draw(svg, "line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) });
    if (last - y(tick) >= 14) {
      draw(svg, "text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, text(tick));
      last = y(tick);
    }
  }
  draw(svg, "text", { x: 2, y: 12, class: "head" }, title);
}
