// Put everything into the page, and draw charts again when their width changes.

const data = JSON.parse(document.getElementById("data").textContent);
const CHARTS = {
  depth: depthChart,
  ends: endsChart,
  wait: (section, width) => percentileChart(section, width, data, data.series.wait, data.headline.wait, "wait"),
  work: (section, width) => percentileChart(section, width, data, data.series.work, data.headline.work, "work"),
  gantt: ganttChart,
  lineage: lineageChart,
  peers: peersChart,
  backpressure: backpressureChart,
};

function drawChart(section) {
  const plot = plotOf(section);
  const width = Math.floor(plot.clientWidth);
  if (width === 0 || Number(plot.dataset.width) === width) return;
  plot.dataset.width = width;
  plot.replaceChildren();
  CHARTS[section.dataset.chart](section, width, data);
}

const resized = new ResizeObserver((entries) => {
  for (const entry of entries) drawChart(entry.target.closest("section"));
});
const printing = matchMedia("print");
const sections = [...document.querySelectorAll("section[data-chart]")];
for (const section of sections) {
  resized.observe(put(section, "div", { class: "plot" }));
  drawChart(section);
}
// Drawings are scaled on paper; to draw them anew while printing is too late.
printing.addEventListener("change", (event) => {
  for (const section of sections) {
    if (event.matches) resized.unobserve(plotOf(section));
    else resized.observe(plotOf(section));
  }
});

tellAbout(data);
tellHeadline(data);
tellAnomalies(data);
tellResources(data);

// The colours follow the machine until somebody chooses.
const root = document.documentElement;
const button = document.getElementById("theme");
const machine = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return (root.dataset.theme ?? (machine.matches ? "dark" : "light")) === "dark";
}

function tellTheme() {
  button.textContent = isDark() ? "Light colours" : "Dark colours";
}

try {
  const chosen = localStorage.getItem("omnirelay-theme");
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
} catch {
  // A browser may keep nothing for a file.
}
button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("omnirelay-theme", root.dataset.theme);
  } catch {
    // The choice holds for this page.
  }
  tellTheme();
});
machine.addEventListener("change", tellTheme);
tellTheme();
