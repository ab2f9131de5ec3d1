// A value in its range, small enough for a line of text: grey up to chance, a line for the interval, a mark.

const rangeMarks = {
  // Places are shares of the width, so that marks keep their shape however wide the range is.
  place: (value, top) => `${(Math.min(Math.max(value / top, 0), 1) * 100).toFixed(2)}%`,
  chance: (end) => drawn("rect", { x: 0, y: 3.5, width: end, height: 9, fill: "var(--chance)", opacity: 0.45 }),
  interval: (x1, x2, stroke) =>
    drawn("line", { x1, x2, y1: 8, y2: 8, stroke, "stroke-width": 3, opacity: 0.55 }),
  value: (cx, fill) => drawn("circle", { cx, cy: 8, r: 3.6, fill }),
  finding: (x, fill) =>
    drawn("svg", { x, overflow: "visible" }, drawn("path", { d: "M0 2.5L5.5 8L0 13.5L-5.5 8Z", fill })),
};

function rangeTop(measure) {
  if (measure.unit === "share") return 1;
  return measure.value.reduce((top, value) => Math.max(top, value ?? 0), 0) || 1;
}

function rangeBar(measure, index) {
  const top = rangeTop(measure);
  const at = (value) => rangeMarks.place(value, top);
  const found = measure.primary && measure.finding[index];
  const ink = found ? "var(--finding)" : "var(--quantity)";
  const nulls = [measure.null[index], measure.randomHigh[index]].filter((value) => value !== null);
  return drawn(
    "svg",
    { "aria-hidden": true },
    drawn("line", { x1: 0, x2: "100%", y1: 8, y2: 8, stroke: "var(--strong-line)" }),
    nulls.length ? rangeMarks.chance(at(Math.max(...nulls))) : null,
    measure.low[index] === null
      ? null
      : rangeMarks.interval(at(measure.low[index]), at(measure.high[index]), ink),
    (found ? rangeMarks.finding : rangeMarks.value)(at(measure.value[index]), ink),
  );
}

function rangeRow(measure, index) {
  const value = measure.value[index];
  if (value === null) return [];
  const title = interval(measure.low[index], measure.high[index]);
  const unit = measure.unit === "share" ? "" : ` ${measure.unit}`;
  const aside = measure.hasNull ? ` / ${number(measure.null[index])}` : unit;
  const name = measure.primary && measure.tested ? "probe decides" : "probe";
  return [
    element("span", { class: name }, probeLabel(measure.probe)),
    element("span", { title }, rangeBar(measure, index)),
    element("span", { class: "number", title }, number(value), element("small", {}, aside)),
  ];
}

// Each null by name, for the probe that decides.
function nullsLine(measure, index) {
  const named = { uniform: measure.uniform, untrained: measure.random, shuffled: measure.shuffled };
  const parts = Object.entries(named)
    .filter(([, values]) => values[index] !== null)
    .map(([name, values]) => `${name} ${number(values[index])}`);
  return parts.length ? element("span", { class: "nulls" }, `chance: ${parts.join(" · ")}`) : null;
}

function rangesOf(score, index) {
  const own = measures.filter((m) => m.kind === "score" && m.score === score && m.value[index] !== null);
  if (!own.length) return [];
  const decides = own.find((measure) => measure.primary && measure.tested);
  const q = decides && decides.q[index] !== null ? ` · q ${probability(decides.q[index])}` : "";
  return [
    element("span", { class: "name" }, scoreWords(score).label, element("small", { class: "probe" }, q)),
    own.sort((a, b) => a.probe.localeCompare(b.probe)).map((measure) => rangeRow(measure, index)),
    decides ? nullsLine(decides, index) : null,
  ];
}

function scoreRanges(index) {
  const scores = unique(study.scores.map((entry) => entry.score));
  const key = `Value / chance. Grey: what chance gives; line: 95\u00a0% interval; orange diamond: finding. The bold
    kind of sample decides.`;
  return element(
    "section",
    {},
    element("h4", {}, "Scores"),
    element(
      "div",
      { class: "ranges" },
      scores.map((score) => rangesOf(score, index)),
    ),
    element("p", { class: "key" }, key),
  );
}
