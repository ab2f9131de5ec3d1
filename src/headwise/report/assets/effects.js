// What the loss does when leading heads are removed, beside as many random heads of the same layers.
// This file holds the rows, the controls and the table; effects-chart.js draws.

const effects = { kind: "joint", score: "", log: false };

// Rows of the same heads belong on one line of the chart, however the heads were removed.
function setKey(row) {
  return `${row.score}|${row.kind}|${row.heads.join(",")}`;
}

function setLabel(row) {
  if (row.kind === "single") return `${scoreWords(row.score).label} · ${row.heads[0]}`;
  return `${scoreWords(row.score).label} · ${plural(row.heads.length, "head")}`;
}

function removalLabel(row) {
  return row.mode === "mean" && row.kind === "joint" ? "Replaced by their mean" : modeLabel(row.mode);
}

// In the order in which the page names the scores.
function leaders() {
  const chosen = (row) => row.role === "leader" && row.kind === effects.kind;
  const place = (row) => testedScores.indexOf(row.score);
  return study.effects
    .filter((row) => chosen(row) && (!effects.score || row.score === effects.score))
    .sort((a, b) => place(a) - place(b));
}

// A leader's controls: random sets from the very same layers, removed in the same way.
function controlsOf(leader) {
  return study.effects.filter(
    (row) =>
      row.role === "control" &&
      row.score === leader.score &&
      row.mode === leader.mode &&
      row.task === leader.task &&
      row.leaders.join() === leader.heads.join(),
  );
}

// Do these heads matter more than random ones, beyond the interval?
function isSure(row) {
  return row.excess_low !== null && row.excess_low > 0;
}

function effectCells(row) {
  return [
    setLabel(row),
    removalLabel(row),
    taskLabel(row.task).toLowerCase(),
    number(row.baseline),
    number(row.loss),
    signed(row.delta),
    interval(row.low, row.high, signed),
    signed(row.control_delta),
    interval(row.excess_low, row.excess_high, signed),
  ];
}

function drawEffectTable(rows) {
  const titles = [
    "Removed",
    "How",
    "Loss on",
    "Intact",
    "Without",
    "Rise",
    "95 % interval",
    "Random heads",
    "Beyond them",
  ];
  const kind = (i) => (i < 3 ? "text" : null);
  byId("effects-table").replaceChildren(
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        titles.map((title, i) => element("th", { scope: "col", class: kind(i) }, title)),
      ),
    ),
    element(
      "tbody",
      {},
      rows.map((row) =>
        element(
          "tr",
          { title: row.heads.join(" ") },
          effectCells(row).map((cell, i) => element("td", { class: kind(i) }, cell)),
        ),
      ),
    ),
  );
}

function fillEffectControls() {
  const rows = study.effects.filter((row) => row.role === "leader");
  const kinds = { joint: "sets of heads", single: "one head at a time" };
  const present = Object.keys(kinds).filter((kind) => rows.some((row) => row.kind === kind));
  effects.kind = present[0];
  byId("effects-kind").replaceChildren(
    ...present.map((kind) => element("option", { value: kind }, kinds[kind])),
  );
  byId("effects-score").replaceChildren(
    element("option", { value: "" }, "all scores"),
    ...unique(rows.map((row) => row.score)).map((score) =>
      element("option", { value: score }, scoreWords(score).label),
    ),
  );
}

// One head at a time can be dozens of lines, so that view opens with one score.
function scoreForKind(kind) {
  if (kind !== "single") return "";
  const singles = study.effects.filter((row) => row.kind === "single" && row.role === "leader");
  return (singles.find((row) => row.score === state.score) ?? singles[0]).score;
}

function sayNoEffects() {
  byId("effects-lede").textContent =
    "Effects were not measured in this study, so it says what heads do, not whether it matters.";
  for (const id of ["effects-controls", "effects-chart", "effects-details"]) byId(id).hidden = true;
  document.querySelector('[data-figure="effects-chart"]').remove();
}

function setUpEffects() {
  if (!study.effects.some((row) => row.role === "leader")) {
    sayNoEffects();
    return;
  }
  byId("effects-lede").textContent =
    "The loss without the leading heads of a score, beside as many random heads of the " +
    "same layers. Zeroing tends to overstate what a head does, so both ways of removing it are shown.";
  byId("effects-caption").textContent =
    "Bars: 95 % intervals over documents. Filled diamond: more than random heads, beyond the interval of the " +
    "difference; hollow: not more.";
  fillEffectControls();
  const [kind, score, log] = ["effects-kind", "effects-score", "effects-log"].map(byId);
  const update = () => {
    Object.assign(effects, { kind: kind.value, score: score.value, log: log.checked });
    drawEffectTable(leaders());
    drawEffectChart();
  };
  kind.addEventListener("change", () => {
    score.value = scoreForKind(kind.value);
    update();
  });
  score.addEventListener("change", update);
  log.addEventListener("change", update);
  on("redraw", drawEffectChart);
  if (effects.kind === "single") score.value = scoreForKind("single");
  update();
  byId("effects-chart").on("plotly_click", ({ points }) => {
    const head = headByName.get(points[0].customdata);
    if (head) select(head.index, "effects");
  });
}
