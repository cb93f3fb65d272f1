// Details of what is pointed at, with a pointer or with the arrow keys. A drawing is one stop for the tab key.

const tip = document.getElementById("tip");
const spoken = document.getElementById("spoken");
let hideDetails = () => {};

function fillTip(mark) {
  tip.replaceChildren();
  put(tip, "b", {}, mark.title);
  const list = put(tip, "dl");
  for (const [name, value] of mark.lines().filter((line) => line[1] !== null && line[1] !== undefined)) {
    put(list, "dt", {}, name);
    put(list, "dd", {}, String(value));
  }
  tip.hidden = false;
}

function placeTip(x, y) {
  const { width, height } = tip.getBoundingClientRect();
  const right = x + 14 + width > innerWidth - 8 ? x - 14 - width : x + 14;
  tip.style.left = `${Math.max(8, Math.min(right, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - height - 8))}px`;
}

// Marks are {element, title, lines(), near()}: what is shown for an element, and what else lights up with it.
function interactive(svg, marks) {
  const byElement = new Map(marks.map((mark) => [mark.element, mark]));
  let current = null;

  function choose(mark) {
    if (current === mark) return;
    for (const element of current ? [current.element, ...(current.near?.() ?? [])] : []) element.classList.remove("current", "near");
    current = mark;
    if (!mark) {
      tip.hidden = true;
      return;
    }
    hideDetails = () => choose(null);
    mark.element.classList.add("current");
    for (const element of mark.near?.() ?? []) element.classList.add("near");
    fillTip(mark);
  }

  svg.addEventListener("pointermove", (event) => {
    choose(byElement.get(event.target) ?? null);
    if (current) placeTip(event.clientX, event.clientY);
  });
  svg.addEventListener("pointerleave", () => choose(null));
  svg.addEventListener("blur", () => choose(null));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined || marks.length === 0) return;
    event.preventDefault();
    const at = current ? marks.indexOf(current) + step : step > 0 ? 0 : marks.length - 1;
    choose(marks[(at + marks.length) % marks.length]);
    current.element.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = current.element.getBoundingClientRect();
    placeTip(box.x + box.width / 2, box.y + box.height / 2);
    spoken.textContent = [current.title, ...current.lines().map((line) => `${line[0]} ${line[1] ?? ""}`)].join(", ");
  });
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideDetails();
});
addEventListener("scroll", () => {
  if (!document.activeElement?.closest("svg")) hideDetails();
}, { passive: true });
