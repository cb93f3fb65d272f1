// Times as bars in rows: leases of owners, health of peers, closed intake.

function rowChart(section, width, span, rows, label) {
  // Rows are {name, height}.
  const left = Math.min(190, Math.max(92, width * 0.2));
  const x = timeScale(span, left, width - 16);
  const tops = [];
  let bottom = 6;
  for (const row of rows) {
    tops.push(bottom);
    bottom += row.height;
  }
  const svg = canvas(section, width, bottom + FOOT, label);
  rows.forEach((row, at) => {
    if (at % 2 === 0) draw(svg, "rect", { class: "stripe", x: 0, y: tops[at], width, height: row.height });
  });
  timeAxis(svg, x, 6, bottom);
  rows.forEach((row, at) => {
    const text = draw(svg, "text", { class: "name", x: 6, y: tops[at] + row.height / 2 + 4 }, fitted(row.name, left - 16));
    draw(text, "title", {}, row.name);
  });
  return { svg, x, tops };
}

function named(name) {
  return name === null ? "no name" : name || "(empty)";
}

function leaseLines(bar, end) {
  return [
    ["outcome", bar.outcome ?? "running"],
    ["granted", instant(bar.start_ms)],
    ["took", bar.end_ms === null ? `${length(end - bar.start_ms)} so far` : length(bar.end_ms - bar.start_ms)],
    ["waited", bar.wait_ms === null ? null : length(bar.wait_ms)],
    ["item", bar.item === null ? null : `${bar.item}, attempt ${bar.attempt ?? "not known"}`],
    ["fence", bar.fence],
    ["shard", bar.shard],
    ["principal", bar.principal],
    ["error", bar.error],
    ["version", bar.version],
  ];
}

function ganttChart(section, width, data) {
  const { rows, bars, owners, leases } = data.gantt;
  if (rows.length === 0) {
    empty(section, "No lease was live in this time.");
    return;
  }
  const LANE = 9;
  const drawn = rows.map((row) => ({ name: named(row.name), height: Math.max(24, row.lanes * LANE + 10) }));
  const { svg, x, tops } = rowChart(section, width, data.span, drawn, "Leases over time, by owner");
  const densest = Math.max(1, ...rows.flatMap((row) => row.granted));
  rows.forEach((row, at) => {
    row.granted.forEach((count, bucket) => {
      if (!count) return;
      const [begin, end] = bucketBounds(data.span, bucket);
      const strength = (0.04 + 0.24 * (Math.log(count + 1) / Math.log(densest + 1))).toFixed(2);
      draw(svg, "rect", { class: "density", "fill-opacity": strength, x: x(begin), y: tops[at] + 1, width: x(end) - x(begin) + 0.2, height: drawn[at].height - 2 });
    });
  });
  const marks = bars.map((bar) => {
    const lanes = rows[bar.row].lanes;
    const top = tops[bar.row] + (drawn[bar.row].height - lanes * LANE) / 2 + bar.lane * LANE;
    const begin = x(bar.start_ms);
    const end = x(bar.end_ms ?? data.span.to_ms);
    const wide = Math.max(3, end - begin);
    const style = bar.outcome === null ? `fill-running${wide > 8 ? " live" : ""}` : `fill-${bar.outcome}`;
    const element = draw(svg, "rect", { class: `bar-mark ${style}`, x: Math.min(begin, x.right - wide), y: top + 0.5, width: wide, height: LANE - 1, rx: 1.5 });
    return { element, title: `${bar.resource} by ${named(rows[bar.row].name)}`, lines: () => leaseLines(bar, data.span.to_ms) };
  });
  interactive(svg, marks);
  const outcomes = OUTCOMES.filter((name) => bars.some((bar) => bar.outcome === name)).map((name) => [`fill-${name}`, name]);
  if (bars.some((bar) => bar.outcome === null)) outcomes.push(["fill-running", "running"]);
  if (rows.some((row) => row.granted.length)) outcomes.push(["fill-band", "shading: where leases were granted, and how many"]);
  legend(section, outcomes);
  const parts = [];
  if (rows.length < owners) parts.push(`${number(rows.length)} of ${counted(owners, "owner")}, those with most trouble and then with most leases`);
  if (bars.length < leases) parts.push(`${number(bars.length)} of ${counted(leases, "lease")} as bars, of each owner the longest among those that ended well and among those that did not`);
  if (parts.length) note(section, `Shown are ${parts.join("; ")}.`);
}

function peersChart(section, width, data) {
  const { rows, unwell, peers, intervals } = data.peers;
  if (rows.length === 0) {
    empty(section, "No peer held a lease in this time.");
    return;
  }
  const many = data.shard_count > 1;
  const drawn = rows.map((row) => ({ name: many ? `${named(row.name)} · ${row.shard}` : named(row.name), height: 22 }));
  const { svg, x, tops } = rowChart(section, width, data.span, drawn, "Health of peers over time");
  const marks = [];
  const of = rows.map(() => []);
  for (const each of unwell) of[each.row].push(each);
  rows.forEach((row, at) => {
    const element = draw(svg, "rect", { class: "bar-mark well", x: x(row.from_ms), y: tops[at] + 5, width: Math.max(3, x.right - x(row.from_ms)), height: 12, rx: 2 });
    const share = row.known_ms ? 1 - row.unwell_ms / row.known_ms : 1;
    marks.push({ element, title: named(row.name), lines: () => [
      ["healthy", `${percent(share)} of the time since ${instant(Math.max(row.from_ms, data.span.from_ms))}`],
      ["last seen", instant(row.last_seen_ms)],
      ["signs of life", number(row.signs)],
      ["expiries", number(row.expiries)],
      ["shard", row.shard],
    ] });
    for (const each of of[at]) {
      const end = each.until_ms ?? data.span.to_ms;
      const wide = Math.max(3, x(end) - x(each.from_ms));
      const mark = draw(svg, "rect", { class: "bar-mark fill-failed", x: Math.min(x(each.from_ms), x.right - wide), y: tops[at] + 3, width: wide, height: 16, rx: 2 });
      marks.push({ element: mark, title: `${named(row.name)}: no sign of life`, lines: () => intervalLines(each, end, row.shard) });
    }
  });
  interactive(svg, marks);
  legend(section, [["fill-completed", "gave signs of life (pale, low)"], ["fill-failed", "did not (strong, high)"]]);
  const parts = [];
  if (rows.length < peers) parts.push(`${number(rows.length)} of ${counted(peers, "peer")}, those longest without signs of life first`);
  if (unwell.length < intervals) parts.push(`${number(unwell.length)} of ${counted(intervals, "time")} without signs of life, the longest of these peers`);
  if (parts.length) note(section, `Shown are ${parts.join("; ")}.`);
}

function intervalLines(each, end, shard) {
  return [
    ["why", each.reason],
    ["from", instant(each.from_ms)],
    ["until", each.until_ms === null ? "it lasts" : instant(each.until_ms)],
    ["for", length(end - each.from_ms)],
    ["shard", shard],
  ];
}

function backpressureChart(section, width, data) {
  const { rows, intervals, causes, times } = data.backpressure;
  if (rows.length === 0) {
    empty(section, "Intake was open all the time.");
    return;
  }
  const many = data.shard_count > 1;
  const words = (row) => (row.cause === "pending" ? "too much was pending" : row.cause);
  const drawn = rows.map((row) => ({ name: many ? `${words(row)} · ${row.shard}` : words(row), height: 24 }));
  const { svg, x, tops } = rowChart(section, width, data.span, drawn, "Closed intake over time, by cause");
  const marks = intervals.map((each) => {
    const row = rows[each.row];
    const end = each.until_ms ?? data.span.to_ms;
    const wide = Math.max(3, x(end) - x(each.from_ms));
    const element = draw(svg, "rect", { class: "bar-mark fill-failed", x: Math.min(x(each.from_ms), x.right - wide), y: tops[each.row] + 4, width: wide, height: 16, rx: 2 });
    return { element, title: `Intake closed: ${words(row)}`, lines: () => intervalLines(each, end, row.shard) };
  });
  interactive(svg, marks);
  const parts = [`Closed ${counted(times, "time")}, ${percent(data.headline.closed_share)} of the time${many ? " over all shards" : ""}.`];
  if (rows.length < causes) parts.push(`${number(rows.length)} of ${counted(causes, "cause")} are shown.`);
  if (intervals.length < times) parts.push(`${number(intervals.length)} of them are drawn, the longest.`);
  note(section, parts.join(" "));
}
