// Who worked as whom on what: four columns, with bands between them that are as wide as leases are many.

const COLUMNS = [["principal", "principal"], ["peer", "peer"], ["resource", "resource"], ["outcome", "outcome or version"]];
const NODE_LEAST = 14;
const NODE_GAP = 9;
const NODE_WIDE = 12;

function nodeName(node) {
  if (node.kind === "others") return { principal: "other principals", peer: "other peers", resource: "other resources", outcome: "others" }[node.column];
  if (node.kind === "unknown") return { principal: "not authenticated", peer: "no name", resource: "not known", outcome: "not known" }[node.column];
  return named(node.label);
}

// Where every node stands: minimal heights first, the rest shared out by leases.
function placedNodes(nodes, height, xs) {
  const columns = COLUMNS.map(([column]) => nodes.filter((node) => node.column === column));
  const each = columns.map((column) => {
    const total = column.reduce((sum, node) => sum + node.leases, 0);
    return (height - column.length * (NODE_LEAST + NODE_GAP)) / Math.max(1, total);
  });
  const scale = Math.max(0, Math.min(...each));
  const places = new Map();
  columns.forEach((column, at) => {
    const used = column.reduce((sum, node) => sum + NODE_LEAST + NODE_GAP + node.leases * scale, -NODE_GAP);
    let top = 26 + (height - used) / 2;
    for (const node of column) {
      const tall = NODE_LEAST + node.leases * scale;
      places.set(node, { x: xs[at], y: top, tall, left: 0, right: 0 });
      top += tall + NODE_GAP;
    }
  });
  return places;
}

function ribbon(from, to, leases, sourceLeases, targetLeases) {
  const a = (leases / sourceLeases) * from.tall;
  const b = (leases / targetLeases) * to.tall;
  const [x0, x1] = [from.x + NODE_WIDE, to.x];
  const [y0, y1] = [from.y + from.right, to.y + to.left];
  from.right += a;
  to.left += b;
  const middle = (x0 + x1) / 2;
  return `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}V${y1 + b}C${middle} ${y1 + b} ${middle} ${y0 + a} ${x0} ${y0 + a}Z`;
}

function lineageChart(section, given, data) {
  const { nodes, edges } = data.lineage;
  if (nodes.length === 0) {
    empty(section, "No lease was live in this time.");
    return;
  }
  // Four columns of names do not fit on a phone: there it is moved sideways.
  const width = Math.max(given, 720);
  plotOf(section).classList.add("scroll");
  const most = Math.max(...COLUMNS.map(([column]) => nodes.filter((node) => node.column === column).length));
  const height = Math.max(200, most * 34);
  const last = Math.min(200, width * 0.19);
  const step = (width - last - NODE_WIDE - 4) / 3;
  const xs = COLUMNS.map((_, at) => 2 + at * step);
  const svg = canvas(section, width, height + 36, "Lineage: principals, peers, resources and outcomes");
  svg.style.minWidth = `${width}px`;
  COLUMNS.forEach(([, words], at) => draw(svg, "text", { class: "head", x: xs[at], y: 13 }, words));
  const places = placedNodes(nodes, height, xs);
  const bands = [];
  for (const [from, to, leases, bad] of edges) {
    const [source, target] = [nodes[from], nodes[to]];
    const style = target.column === "outcome" ? `fill-${target.kind}` : "fill-band";
    const element = draw(svg, "path", { class: `ribbon ${style}`, d: ribbon(places.get(source), places.get(target), leases, source.leases, target.leases) });
    bands.push({ from, to, element, title: `${nodeName(source)} → ${nodeName(target)}`, lines: () => [["leases", number(leases)], ["failed or expired", bad ? `${number(bad)} (${percent(bad / leases)})` : "none"]] });
  }
  const marks = nodes.map((node, at) => {
    const place = places.get(node);
    const element = draw(svg, "rect", { class: `node fill-${node.kind}`, x: place.x, y: place.y, width: NODE_WIDE, height: place.tall, rx: 2 });
    const room = node.column === "outcome" ? last - 10 : step - NODE_WIDE - 14;
    const label = draw(svg, "text", { class: "halo", x: place.x + NODE_WIDE + 6, y: place.y + place.tall / 2 + 4, "pointer-events": "none" }, fitted(nodeName(node), room));
    draw(label, "title", {}, nodeName(node));
    return {
      element,
      title: nodeName(node),
      lines: () => [["leases", number(node.leases)], ["failed or expired", node.bad ? `${number(node.bad)} (${percent(node.bad / node.leases)})` : "none"]],
      near: () => bands.filter((band) => band.from === at || band.to === at).map((band) => band.element),
    };
  });
  interactive(svg, [...marks, ...bands]);
  if (given < width) note(section, "Move the drawing sideways to see all of it.");
  const left = [];
  for (const [column, many, total] of [["principal", "principals", data.lineage.principals], ["peer", "peers", data.lineage.peers], ["resource", "resources", data.lineage.resources]]) {
    const shown = nodes.filter((node) => node.column === column && node.kind !== "others").length;
    if (shown < total) left.push(`${number(total - shown)} of ${number(total)} ${many}`);
  }
  const versions = nodes.filter((node) => node.kind === "version" && node.label !== "other versions").length;
  if (versions < data.lineage.versions) left.push(`${number(data.lineage.versions - versions)} of ${number(data.lineage.versions)} table versions`);
  if (left.length) note(section, `Put together as others: ${left.join(", ")}; the most frequent have a place of their own, and the newest versions.`);
}
