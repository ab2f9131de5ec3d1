// What a head does (across) against how much it matters (up). Grey: what chance gives. Orange: findings.

const scatter = { x: null, y: null, log: false };
const FEW = 600; // with more points, intervals of all of them would hide the points

function errors(measure, indices, transform) {
  if (!measure.low) return undefined;
  const pairs = indices.map((i) =>
    [measure.value[i], measure.low[i] ?? measure.value[i], measure.high[i] ?? measure.value[i]].map(transform),
  );
  return {
    type: "data",
    symmetric: false,
    array: pairs.map(([v, , high]) => high - v),
    arrayminus: pairs.map(([v, low]) => v - low),
    thickness: 0.8,
    width: 0,
  };
}

function scatterTrace(indices, name, style, withErrors) {
  const { x, y, across, up } = scatter;
  const bars = (measure, transform) =>
    withErrors ? { ...errors(measure, indices, transform), color: style.bar } : undefined;
  return {
    type: "scatter",
    mode: "markers",
    name,
    x: indices.map((i) => across(x.value[i])),
    y: indices.map((i) => up(y.value[i])),
    customdata: indices,
    marker: style.marker,
    error_x: bars(x, across),
    error_y: bars(y, up),
    hoverinfo: "none",
    cliponaxis: true,
  };
}

// The selected head is part of the figure, so that it is in an exported picture too.
function selectedTrace() {
  const { x, y, across, up } = scatter;
  const index = state.selected;
  const present = index !== null && x.value[index] !== null && y.value[index] !== null;
  return {
    type: "scatter",
    mode: "markers+text",
    name: "selected",
    hoverinfo: "skip",
    cliponaxis: false,
    x: present ? [across(x.value[index])] : [],
    y: present ? [up(y.value[index])] : [],
    marker: { size: 16, color: "rgba(0,0,0,0)", line: { color: colour("text"), width: 2.4 } },
    text: present ? [heads[index].name] : [],
    textposition: "top center",
    textfont: { ...plotFont(12), color: colour("text"), weight: 600 },
  };
}

function otherStyle() {
  const line = { color: colour("chance"), width: 1.1 };
  return { bar: colour("strong-line"), marker: { color: colour("surface"), size: 6, opacity: 0.9, line } };
}

function findingStyle() {
  const line = { color: colour("surface"), width: 0.8 };
  return { bar: colour("finding"), marker: { color: colour("finding"), size: 8, symbol: "diamond", line } };
}

function scatterTraces() {
  const { x, y } = scatter;
  const shown = heads.map((head) => head.index).filter((i) => x.value[i] !== null && y.value[i] !== null);
  const found = shown.filter((i) => isFinding(x, i));
  const others = shown.filter((i) => !isFinding(x, i));
  const few = shown.length <= FEW;
  return [
    scatterTrace(others, "other heads", otherStyle(), few),
    scatterTrace(found, "findings", findingStyle(), found.length <= FEW),
    selectedTrace(),
  ];
}

// Bands from 0 to the most that chance gives any head, across and up.
function chanceBands() {
  const common = { type: "rect", layer: "below", line: { width: 0 }, fillcolor: colour("chance-soft") };
  const shapes = [];
  const [right, top] = [chanceEdge(scatter.x), chanceEdge(scatter.y)];
  if (right !== null)
    shapes.push({ ...common, xref: "x", yref: "paper", x0: 0, x1: scatter.across(right), y0: 0, y1: 1 });
  if (top !== null)
    shapes.push({ ...common, xref: "paper", yref: "y", x0: 0, x1: 1, y0: 0, y1: scatter.up(top) });
  return shapes;
}

function chanceNote() {
  const edge = chanceEdge(scatter.x);
  return edge === null
    ? []
    : [
        {
          text: `chance, up to ${number(edge)}`,
          xref: "x",
          yref: "paper",
          x: scatter.across(edge),
          y: 1,
          xanchor: "left",
          yanchor: "bottom",
          showarrow: false,
          font: plotFont(11),
          borderpad: 0,
        },
      ];
}

// A transform and its ticks: none, or logarithmic where the reader asked for it.
function scatterScale(measure) {
  const values = measure.value.filter((value) => value !== null);
  if (!scatter.log) return { transform: (value) => value, ticks: {} };
  const knee = kneeOf(values);
  const range = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [0, 0]);
  return { transform: (value) => bend(value, knee), ticks: bentTicks(...range, knee) };
}

function scatterHeight() {
  const full = byId("heads").classList.contains("wide") || innerWidth <= 820;
  const beside = byId("grid").querySelector("svg")?.getBoundingClientRect().height ?? 460;
  return full ? Math.min(460, innerWidth * 1.05) : Math.min(Math.max(beside, 420), 760);
}

function axisTitle(measure) {
  return byId("scatter").clientWidth < 480 ? measure.label : measure.axis;
}

function drawScatter() {
  const [xScale, yScale] = [scatterScale(scatter.x), scatterScale(scatter.y)];
  Object.assign(scatter, { across: xScale.transform, up: yScale.transform });
  const layout = {
    height: scatterHeight(),
    margin: { l: 56, r: 14, t: 24, b: 48 },
    font: plotFont(),
    showlegend: false,
    paper_bgcolor: colour("surface"),
    plot_bgcolor: colour("surface"),
    hovermode: "closest",
    hoverdistance: 14,
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis: plotAxis(axisTitle(scatter.x), { ...xScale.ticks, rangemode: "tozero" }),
    yaxis: plotAxis(axisTitle(scatter.y), { ...yScale.ticks, zeroline: true }),
    shapes: chanceBands(),
    annotations: chanceNote(),
  };
  drawScatterCaption();
  byId("scatter").dataset.selected = state.selected === null ? "" : heads[state.selected].name;
  return Plotly.react("scatter", scatterTraces(), layout, plotConfig);
}

function drawScatterCaption() {
  const { x, y } = scatter;
  const count = measured(y);
  const found = heads.some((head) => isFinding(x, head.index));
  const ofScore = ` of “${scoreWords(markedScore(x)).label.toLowerCase()}”`;
  const parts = [
    found ? `Orange diamonds: findings${ofScore}.` : `No findings${ofScore}.`,
    "Bars: 95 % intervals.",
  ];
  if (chanceEdge(x) !== null) parts.push("Shaded: up to the largest value that chance gives any head.");
  if (scatter.log) parts.push("Log axes, linear around 0, so that 0 and both signs fit.");
  if (count < heads.length) parts.push(`“${y.label}” was measured for ${count} of ${heads.length} heads.`);
  byId("scatter-caption").textContent = parts.join(" ");
}

function moveSelected() {
  const { x, y, text } = selectedTrace();
  byId("scatter").dataset.selected = heads[state.selected].name;
  Plotly.restyle("scatter", { x: [x], y: [y], text: [text] }, [2]);
}

// The hovered head gets a ring over the figure: redrawing thousands of points for every move would lag behind.
function placeHoverRing() {
  const { x, y, across, up } = scatter;
  const index = state.hovered;
  const { xaxis, yaxis } = byId("scatter")._fullLayout;
  const ring = byId("scatter-ring");
  ring.hidden = index === null || x.value[index] === null || y.value[index] === null;
  ring.dataset.head = index === null ? "" : heads[index].name;
  if (ring.hidden) return;
  const [left, top] = [xaxis.l2p(across(x.value[index])), yaxis.l2p(up(y.value[index]))];
  ring.hidden = left < 0 || top < 0 || left > xaxis._length || top > yaxis._length;
  ring.style.left = `${xaxis._offset + left}px`;
  ring.style.top = `${yaxis._offset + top}px`;
}

// What to show upwards at first: ablation if it was measured for most heads, else importance, on the score's own task.
function firstUp() {
  const own = scatter.x.probe;
  const most = measures
    .filter((m) => m.kind === "importance" || (m.kind === "single" && m.mode === "zero"))
    .filter((m) => measured(m) > heads.length / 2)
    .sort((a, b) => (b.kind === "single") - (a.kind === "single") || (b.task === own) - (a.task === own));
  return (
    most[0] ??
    measures.find((m) => m.kind === "single" && m.mode === "zero") ??
    measures.find((m) => m.score !== state.score) ??
    measures[0]
  );
}

function listenToScatter() {
  const area = byId("scatter");
  area.on("plotly_hover", ({ points, event }) => {
    const index = points[0].customdata;
    hover(index);
    showTooltip(index, new DOMRect(event.clientX - 8, event.clientY - 8, 16, 16), [scatter.x, scatter.y]);
  });
  area.on("plotly_unhover", () => {
    hover(null);
    hideTooltip();
  });
  area.on(
    "plotly_click",
    ({ points }) => points[0].customdata !== undefined && select(points[0].customdata, "scatter"),
  );
}

function setUpScatter() {
  const [across, up, log] = ["scatter-x", "scatter-y", "scatter-log"].map(byId);
  scatter.x = decidingMeasure(state.score);
  scatter.y = firstUp();
  fillMeasureSelect(across, scatter.x.key, (measure) => measure.kind === "score");
  fillMeasureSelect(up, scatter.y.key);
  const update = () => {
    Object.assign(scatter, {
      x: measureByKey.get(across.value),
      y: measureByKey.get(up.value),
      log: log.checked,
    });
    drawScatter();
  };
  for (const control of [across, up, log]) control.addEventListener("change", update);
  on("score", () => {
    across.value = decidingMeasure(state.score).key;
    update();
  });
  on("redraw", drawScatter);
  on("hover", placeHoverRing);
  on("select", moveSelected);
  drawScatter();
  listenToScatter();
}
