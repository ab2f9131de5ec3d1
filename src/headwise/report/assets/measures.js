// One catalogue of everything that can colour the grid or span an axis: scores, importance, single ablations.

const measures = [];
const measureByKey = new Map();

function addMeasure(measure) {
  measures.push(measure);
  measureByKey.set(measure.key, measure);
}

for (const entry of study.scores) {
  const words = scoreWords(entry.score);
  addMeasure({
    ...entry,
    key: `score/${entry.score}/${entry.probe}`,
    kind: "score",
    signed: false,
    unit: words.unit,
    group: entry.hasNull ? "Scores" : "Descriptions",
    label: `${words.label}, ${probeLabel(entry.probe)}`,
    title: words.label,
    axis: `${words.label} (${words.unit === "share" ? "share of attention" : words.unit}, ${probeLabel(entry.probe)})`,
  });
}
for (const entry of study.importance) {
  addMeasure({
    ...entry,
    key: `importance/${entry.task}`,
    kind: "importance",
    signed: false,
    unit: "nats",
    group: "Importance",
    label: `Importance, ${taskLabel(entry.task).toLowerCase()}`,
    title: "Importance",
    axis: `Importance |dL/dξ| (nats, ${taskLabel(entry.task).toLowerCase()})`,
  });
}
for (const entry of study.single) {
  const task = taskLabel(entry.task).toLowerCase();
  const label = `${modeLabel(entry.mode)}, ${task}`;
  const removed = entry.mode === "zero" ? "zeroed" : "replaced by its mean";
  addMeasure({
    ...entry,
    key: `single/${entry.mode}/${entry.task}`,
    kind: "single",
    signed: true,
    unit: "nats",
    group: "Removing this head alone",
    label,
    title: label,
    axis: `Rise of the loss when ${removed} (nats, ${task})`,
  });
}

const testedScores = study.results.map((result) => result.score);

// The measure that decides whether a head is a finding of `score`; for an untested score its first probe.
function decidingMeasure(score) {
  return (
    measures.find((m) => m.kind === "score" && m.score === score && m.primary) ??
    measures.find((m) => m.kind === "score" && m.score === score)
  );
}

function findingsOf(index) {
  return testedScores.filter((score) => decidingMeasure(score).finding[index]);
}

// The score whose findings are marked while `measure` is shown: its own, or for anything untested the chosen one.
function markedScore(measure) {
  return testedScores.includes(measure.score) ? measure.score : state.score;
}

function isFinding(measure, index) {
  return Boolean(decidingMeasure(markedScore(measure)).finding[index]);
}

function measured(measure) {
  return measure.value.filter((value) => value !== null).length;
}

// The upper edge of what chance gives over all heads: the largest null, or the 95th percentile of random weights.
function chanceEdge(measure) {
  const values = [...(measure.null ?? []), ...(measure.randomHigh ?? [])].filter((value) => value !== null);
  return values.length ? values.reduce((a, b) => Math.max(a, b)) : null;
}

function fillMeasureSelect(select, chosen, accepts = () => true) {
  const groups = new Map();
  for (const measure of measures.filter(accepts)) {
    if (!groups.has(measure.group)) groups.set(measure.group, element("optgroup", { label: measure.group }));
    groups.get(measure.group).append(element("option", { value: measure.key }, measure.label));
  }
  select.replaceChildren(...groups.values());
  select.value = chosen;
}
