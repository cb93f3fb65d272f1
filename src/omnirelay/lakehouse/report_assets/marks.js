// Elements of the page. Whatever comes from the log goes in as text or as the value of a plain attribute, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, text) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function put(parent, tag, attributes = {}, text = undefined) {
  return parent.appendChild(filled(document.createElement(tag), attributes, text));
}

function draw(parent, tag, attributes = {}, text = undefined) {
  return parent.appendChild(filled(document.createElementNS(SVG, tag), attributes, text));
}

const pen = document.createElement("canvas").getContext("2d");

function widthOf(text, weight = "") {
  pen.font = `${weight} 12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif`;
  return pen.measureText(text).width;
}

// The text without its middle, so that it is not wider than this many pixels: both ends of a name tell it from others.
function fitted(text, width) {
  if (widthOf(text) <= width) return text;
  const letters = Array.from(text);
  const kept = (count) => `${letters.slice(0, Math.ceil(count / 2)).join("")}…${letters.slice(letters.length - Math.floor(count / 2)).join("")}`;
  let low = 0;
  let high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (widthOf(kept(middle)) <= width) low = middle;
    else high = middle - 1;
  }
  return kept(low);
}

// An empty drawing inside a section, in place of the last one.
function canvas(section, width, height, label) {
  const plot = plotOf(section);
  return draw(plot, "svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `${label}. Arrow keys show details.`, tabindex: 0 });
}

function plotOf(section) {
  return section.querySelector(".plot");
}

function legend(section, entries) {
  const list = put(plotOf(section), "ul", { class: "legend" });
  for (const [style, label] of entries) {
    const entry = put(list, "li");
    put(entry, "i", { class: style, "aria-hidden": "true" });
    entry.append(label);
  }
}

function note(section, text) {
  if (text) put(plotOf(section), "p", { class: "note" }, text);
}

function empty(section, text) {
  put(plotOf(section), "p", { class: "empty" }, text);
}
