// What is told in words and numbers.

const KINDS = {
  owner_fails: ["Peers that fail far more often than the others", "At least half of what such a peer took failed or ran out, and three times as large a share as that of the other peers. Look at that peer first: its machine, its version, what it can reach."],
  resource_expires: ["Resources whose leases keep running out", "Whoever works on such a resource dies, hangs, or takes longer than a lease lasts without a heartbeat."],
  retry_storm: ["Retry storms", "In these five minutes most leases ended badly, and many did. Something that all of them need was probably away."],
  clock_skew: ["Clocks that went back", "A frame of the log has a time before that of the frame it follows. Nodes write no such log, whatever is done to their clocks: look for what else has written to it. Lengths of time around it are not exact."],
};

function card(parent, value, label, remark, bad = false) {
  const element = put(parent, "div", { class: bad ? "card bad" : "card" });
  put(element, "b", {}, value);
  put(element, "span", {}, label);
  if (remark) put(element, "small", {}, remark);
}

function whole(value) {
  return value >= 10_000_000 ? value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 }) : number(value);
}

function tellHeadline(data) {
  const parent = document.getElementById("headline");
  const head = data.headline;
  const anomalies = Object.values(data.anomalies.counts).reduce((sum, count) => sum + count, 0);
  card(parent, whole(head.came_in), "items came in", `to ${counted(data.shard_count, "shard")}`);
  card(parent, whole(head.completed), "items completed", "their work was done");
  card(parent, whole(head.cancelled + head.drained), "cancelled or drained", `${number(head.cancelled)} and ${number(head.drained)} items`);
  card(parent, whole(head.dead), "items dead", head.dead ? "given up; see dead letters" : "none given up", head.dead > 0);
  card(parent, whole(head.running), "running", "leases live at the end");
  card(parent, whole(head.waiting), "waiting", "items at the end");
  card(parent, whole(head.granted), "leases granted", head.ended ? `${percent(head.failed / head.ended)} of those ended failed` : "");
  card(parent, head.ended ? percent(head.expired / head.ended) : "–", "leases ran out", `${number(head.expired)} of ${number(head.ended)} that ended`);
  card(parent, head.wait.p95 === null ? "–" : length(head.wait.p95), "wait, 95 %", head.wait.p50 === null ? "nothing was granted" : `median ${length(head.wait.p50)}`);
  card(parent, head.work.p95 === null ? "–" : length(head.work.p95), "work, 95 %", head.work.p50 === null ? "nothing ended" : `median ${length(head.work.p50)}`);
  card(parent, percent(head.closed_share), "intake closed", "share of the time");
  card(parent, number(anomalies), anomalies === 1 ? "anomaly" : "anomalies", anomalies ? "explained below" : "nothing out of the ordinary", anomalies > 0);
}

function tellAbout(data) {
  const names = data.shards.map((shard) => shard.name).slice(0, 5).join(", ");
  const more = data.shard_count > 5 ? ` and ${number(data.shard_count - 5)} more` : "";
  const from = instant(data.span.from_ms);
  const to = instant(data.span.to_ms);
  const about = `${data.warehouse} · ${data.shard_count === 1 ? "shard" : "shards"} ${names || "none"}${more} · ${from} to ${to}, ${length(data.span.to_ms - data.span.from_ms)} · all times are UTC`;
  document.getElementById("about").textContent = about;
  const ends = data.shards.slice(0, 5).map((shard) => `${shard.name} up to event ${number(shard.last_event)}`).join(", ");
  document.getElementById("foot").textContent = `Made ${instant(data.made_ms)} UTC by omnirelay ${data.version}. The tables hold ${ends || "no events"}${more}. A step of time in the charts is ${length(data.span.bucket_ms)}.`;
}

function table(parent, columns, rows) {
  // Columns are [heading, class].
  const wide = put(parent, "div", { class: "scroll" });
  const element = put(wide, "table");
  const head = put(put(element, "thead"), "tr");
  for (const [name, style] of columns) put(head, "th", { scope: "col", class: style }, name);
  const body = put(element, "tbody");
  for (const row of rows) {
    const line = put(body, "tr");
    row.forEach((value, at) => put(line, "td", { class: columns[at][1], "data-name": columns[at][0] }, value));
  }
}

function compared(each) {
  if (each.value === null || each.expected === null) return "";
  if (each.kind === "owner_fails") return `${percent(each.value)}, others ${percent(each.expected)}`;
  if (each.kind === "clock_skew") return length(each.expected - each.value);
  return number(each.value);
}

function tellAnomalies(data) {
  const parent = document.getElementById("found");
  const { found, counts } = data.anomalies;
  if (found.length === 0) {
    put(parent, "p", { class: "empty" }, "Nothing out of the ordinary was found in this time.");
    return;
  }
  for (const [kind, count] of Object.entries(counts)) {
    const [title, words] = KINDS[kind] ?? [kind, ""];
    const mine = found.filter((each) => each.kind === kind);
    put(parent, "h3", {}, `${title} (${number(count)})`);
    put(parent, "p", { class: "lead" }, words);
    const rows = mine.map((each) => [each.subject, each.detail, compared(each), each.day, each.shard]);
    table(parent, [["what", ""], ["in words", ""], ["measured", ""], ["day", "short"], ["shard", ""]], rows);
    if (mine.length < count) put(parent, "p", { class: "note" }, `The newest ${number(mine.length)} of ${number(count)}.`);
  }
}

function tellResources(data) {
  const parent = document.getElementById("unwell");
  const { unwell, counts } = data.resources;
  const all = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const ill = (counts.failing ?? 0) + (counts.expiring ?? 0);
  if (unwell.length === 0) {
    put(parent, "p", { class: "empty" }, all ? `None of ${counted(all, "resource")} failed three times in a row.` : "No resource was worked on.");
    return;
  }
  put(parent, "p", { class: "lead" }, `${number(ill)} of ${counted(all, "resource")} failed or expired three times in a row or more, as of the end of the tables.`);
  const rows = unwell.map((each) => [each.resource, each.health, number(each.in_a_row), number(each.leases), number(each.owners), instant(each.last_ended_ms), each.shard]);
  table(parent, [["resource", ""], ["health", "short"], ["in a row", "number"], ["leases", "number"], ["owners", "number"], ["last ended (UTC)", "short"], ["shard", ""]], rows);
  if (unwell.length < ill) put(parent, "p", { class: "note" }, `The worst ${number(unwell.length)} of ${number(ill)}.`);
}
