// Starts the page and redraws the figures when their room or the colour scheme changes.

const themes = ["auto", "light", "dark"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme-name").textContent = theme;
}

function storedTheme() {
  try {
    const theme = localStorage.getItem("headwise-theme");
    return themes.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

function nextTheme() {
  const now = byId("theme-name").textContent;
  const theme = themes[(themes.indexOf(now) + 1) % themes.length];
  try {
    localStorage.setItem("headwise-theme", theme);
  } catch {
    // A page opened from a disk may not be allowed to store; the choice then lasts as long as the page.
  }
  setTheme(theme);
  emit("redraw");
}

// Figures are drawn for the room they have; a few pixels of difference aren't worth a new drawing.
function watchRoom() {
  let before = document.documentElement.clientWidth;
  let waiting = null;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const now = document.documentElement.clientWidth;
      if (now !== before) emit("redraw");
      before = now;
    }, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => emit("redraw"));
}

// On paper the page is light, whatever the screen was.
function watchPrint() {
  const before = () => document.documentElement.dataset.theme;
  let kept;
  addEventListener("beforeprint", () => {
    kept = before() ?? "auto";
    document.documentElement.dataset.theme = "light";
    emit("redraw");
  });
  addEventListener("afterprint", () => {
    setTheme(kept);
    emit("redraw");
  });
}

function firstHead() {
  const named = headByName.get(location.hash.slice(1));
  if (named) return named.index;
  const lead = study.results.find((result) => result.score === state.score) ?? study.results[0];
  return lead ? headByName.get(lead.best).index : 0;
}

setTheme(storedTheme());
byId("theme").addEventListener("click", nextTheme);
byId("csv").addEventListener("click", downloadScores);
addEventListener("keydown", (event) => event.key === "Escape" && hideTooltip());
addExportButtons();
drawSummary();
state.selected = firstHead();
setUpGrid();
setUpScatter();
setUpCard();
setUpTable();
setUpEffects();
drawMethod();
watchRoom();
watchPrint();
addEventListener(
  "hashchange",
  () => headByName.has(location.hash.slice(1)) && select(headByName.get(location.hash.slice(1)).index, "link"),
);
document.documentElement.dataset.ready = "yes";
