// Values over time: depth, ends of leases, percentiles.

const FOOT = 54;
const HEAD = 24;

function bucketBounds(span, at) {
  const begin = Math.floor(span.from_ms / span.bucket_ms) * span.bucket_ms + at * span.bucket_ms;
  return [begin, begin + span.bucket_ms];
}

function bucketTitle(span, at) {
  return `${instant(Math.max(bucketBounds(span, at)[0], span.from_ms))}, ${length(span.bucket_ms)}`;
}

// One place to point at for every bucket, in front of everything else.
function bucketMarks(svg, x, top, bottom, count, lines) {
  const marks = [];
  for (let at = 0; at < count; at += 1) {
    const [begin, end] = bucketBounds(x.span, at);
    const element = draw(svg, "rect", { class: "hit", x: x(begin), y: top, width: Math.max(1, x(end) - x(begin)), height: bottom - top });
    marks.push({ element, title: bucketTitle(x.span, at), lines: () => lines(at) });
  }
  interactive(svg, marks);
}

function countChart(section, width, span, largest, title, label) {
  const ticks = countTicks(largest);
  const height = 250;
  const left = Math.max(34, widthOf(number(ticks[ticks.length - 1])) + 14);
  const x = timeScale(span, left, width - 16);
  const bottom = height - FOOT;
  const y = (value) => bottom - (value / ticks[ticks.length - 1]) * (bottom - HEAD);
  const svg = canvas(section, width, height, label);
  timeAxis(svg, x, HEAD, bottom);
  valueAxis(svg, ticks, y, left, width - 16, number, title);
  return { svg, x, y, bottom };
}

// A line that stays at a value for the whole of a bucket.
function steps(values, x, y) {
  return values.map((value, at) => {
    const [begin, end] = bucketBounds(x.span, at);
    return `${at ? "L" : "M"}${x(begin)} ${y(value)}H${x(end)}`;
  }).join("");
}

function depthChart(section, width, data) {
  const { waiting, running, came_in: cameIn } = data.series;
  const largest = Math.max(0, ...waiting, ...running);
  if (largest === 0 && !cameIn.some((value) => value)) {
    empty(section, "Nothing waited and nothing ran in this time.");
    return;
  }
  const { svg, x, y, bottom } = countChart(section, width, data.span, largest, "items", "Queue depth over time");
  for (const each of data.backpressure.intervals) {
    const end = each.until_ms ?? data.span.to_ms;
    draw(svg, "rect", { class: "closed", x: x(each.from_ms), y: HEAD, width: Math.max(1, x(end) - x(each.from_ms)), height: bottom - HEAD });
  }
  draw(svg, "path", { class: "area fill-waiting", d: `${steps(waiting, x, y)}V${bottom}H${x.left}Z` });
  draw(svg, "path", { class: "trace line-waiting", d: steps(waiting, x, y) });
  draw(svg, "path", { class: "trace line-running", d: steps(running, x, y) });
  bucketMarks(svg, x, HEAD, bottom, waiting.length, (at) => [
    ["waiting", number(waiting[at])],
    ["running", number(running[at])],
    ["came in", number(cameIn[at])],
  ]);
  const entries = [["fill-waiting thin", "waiting"], ["fill-running thin", "running (dashed)"]];
  if (data.backpressure.intervals.length) entries.push(["hatched", "intake closed"]);
  legend(section, entries);
}

const OUTCOMES = ["completed", "failed", "expired", "released", "cancelled"];

function endsChart(section, width, data) {
  const sums = data.series.waiting.map((_, at) => OUTCOMES.reduce((sum, name) => sum + (data.series.ended[name]?.[at] ?? 0), 0));
  const largest = Math.max(0, ...sums);
  if (largest === 0) {
    empty(section, "No lease ended in this time.");
    return;
  }
  const title = `leases per ${length(data.span.bucket_ms)}`;
  const { svg, x, y, bottom } = countChart(section, width, data.span, largest, title, "Leases that ended over time, by outcome");
  sums.forEach((_, at) => {
    const [begin, end] = bucketBounds(data.span, at);
    const room = x(end) - x(begin);
    let below = 0;
    for (const name of OUTCOMES) {
      const value = data.series.ended[name]?.[at] ?? 0;
      if (!value) continue;
      const tall = Math.max(1, y(below) - y(below + value));
      draw(svg, "rect", { class: `fill-${name}`, x: x(begin), y: y(below + value), width: Math.max(0.8, room - (room > 4 ? 1 : 0)), height: tall });
      below += value;
    }
  });
  bucketMarks(svg, x, HEAD, bottom, sums.length, (at) => OUTCOMES.map((name) => [name, number(data.series.ended[name]?.[at] ?? 0)]));
  legend(section, OUTCOMES.filter((name) => data.series.ended[name]?.some((value) => value)).map((name) => [`fill-${name}`, name]));
}

const SHARES = [["p50", "median", 2.5], ["p95", "95 %", 4], ["p99", "99 %", 5.5]];

function percentileChart(section, width, data, values, whole, label) {
  const all = values.flatMap((each) => SHARES.map(([name]) => each[name])).filter((value) => value !== null);
  if (all.length === 0) {
    empty(section, label === "wait" ? "No lease was granted in this time." : "No lease ended in this time.");
    return;
  }
  const height = 250;
  const bottom = height - FOOT;
  const ticks = lengthTicks(all);
  const left = 60;
  const x = timeScale(data.span, left, width - 16);
  const y = lengthScale(ticks, bottom, HEAD);
  const svg = canvas(section, width, height, `Percentiles of ${label} over time`);
  timeAxis(svg, x, HEAD, bottom);
  valueAxis(svg, ticks, y, left, width - 16, (ms) => (ms === 1 ? "≤ 1 ms" : length(ms)), "length of time");
  const dots = values.filter((each) => each.p50 !== null).length <= 40;
  // The median last and smallest: where all three are the same, all three are seen.
  for (const [name, , radius] of SHARES.toReversed()) {
    let path = "";
    let open = false;
    values.forEach((each, at) => {
      if (each[name] === null) {
        open = false;
        return;
      }
      const [begin, end] = bucketBounds(data.span, at);
      const place = (x(begin) + x(end)) / 2;
      path += `${open ? "L" : "M"}${place} ${y(each[name])}`;
      const alone = !open && (at + 1 >= values.length || values[at + 1][name] === null);
      if (dots || alone) draw(svg, "circle", { class: `fill-${name}`, cx: place, cy: y(each[name]), r: dots ? radius : radius / 2 });
      open = true;
    });
    draw(svg, "path", { class: `trace line-${name}`, d: path });
  }
  bucketMarks(svg, x, HEAD, bottom, values.length, (at) => SHARES.map(([name, words]) => [words, values[at][name] === null ? "nothing" : length(values[at][name])]));
  legend(section, SHARES.map(([name, words]) => [`fill-${name} thin`, `${words}: ${length(whole[name])} over all`]));
}
