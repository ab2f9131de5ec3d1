// The chart of effects: one panel per task and way of removing, one line per set of heads.
// Zeroed stands beside replaced by the mean, with the same axis, so that the two are compared by eye.

const panelRoom = { title: 36, foot: 42, line: 36, narrowLine: 46, legend: 34 };

function drawEffectChart() {
  const area = byId("effects-chart");
  const rows = leaders();
  const narrow = area.clientWidth < 720;
  const panels = effectPanels(rows, narrow);
  const layout = effectLayout(panels);
  const traces = panels.flatMap((panel, i) => {
    const own = panel.ofTask.filter((row) => row.mode === panel.mode);
    const axis = effectAxis(panel.ofTask, kneeOf(rows.map((row) => row.delta)));
    addPanel(layout, { ...panel, rows: own, axis, narrow, position: i + 1 });
    return effectTraces(own, i + 1, panel.order, axis.transform);
  });
  return Plotly.react(area, traces, layout, { ...plotConfig, doubleClick: false });
}

function columnShare(column, columns) {
  const gap = columns > 1 ? 0.015 : 0;
  return [column / columns + (column ? gap : 0), (column + 1) / columns - (column < columns - 1 ? gap : 0)];
}

// The panels, stacked in pixels from the top and then turned into shares of the chart. A task has a line for each set
// that was removed on it.
function effectPanels(rows, narrow) {
  const known = Object.keys(study.words.modes);
  const modes = unique(rows.map((row) => row.mode)).sort((a, b) => known.indexOf(a) - known.indexOf(b));
  const columns = narrow ? 1 : modes.length;
  let total = 0;
  const panels = unique(rows.map((row) => row.task)).flatMap((task) => {
    const ofTask = rows.filter((row) => row.task === task);
    const order = unique(ofTask.map(setKey));
    const body = order.length * (narrow ? panelRoom.narrowLine : panelRoom.line) + 14;
    return modes.map((mode, i) => {
      if (i % columns === 0) total += panelRoom.title + body + panelRoom.foot;
      return { task, mode, ofTask, order, column: i % columns, end: total - panelRoom.foot, body };
    });
  });
  return panels.map((panel) => ({
    ...panel,
    height: total + panelRoom.legend,
    x: columnShare(panel.column, columns),
    y: [1 - panel.end / total, 1 - (panel.end - panel.body) / total],
  }));
}

// One axis range per task: the same for every way of removing.
function effectAxis(rows, knee) {
  const values = rows
    .flatMap((row) => [
      row.delta,
      row.low,
      row.high,
      row.control_delta,
      ...controlsOf(row).map((each) => each.delta),
    ])
    .filter((value) => value !== null);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const transform = effects.log ? (value) => bend(value, knee) : (value) => value;
  const pad = (transform(high) - transform(low)) * 0.05 || 1;
  const range = [transform(low) - pad, transform(high) + pad];
  return { transform, range, ticks: effects.log ? bentTicks(low, high, knee) : {} };
}

function effectLayout(panels) {
  return {
    height: panels[0].height,
    margin: { l: 10, r: 16, t: 0, b: panelRoom.legend },
    font: plotFont(),
    annotations: [],
    paper_bgcolor: colour("surface"),
    plot_bgcolor: colour("surface"),
    hovermode: "closest",
    dragmode: false,
    legend: {
      orientation: "h",
      x: 0,
      y: 0,
      xref: "container",
      yref: "container",
      yanchor: "bottom",
      font: plotFont(12),
      itemclick: false,
      itemdoubleclick: false,
      traceorder: "reversed",
    },
    hoverlabel: {
      bgcolor: colour("surface"),
      bordercolor: colour("strong-line"),
      align: "left",
      font: { ...plotFont(12), color: colour("text") },
    },
  };
}

// Beside the lines where there is room, above each line where there isn't.
function addPanel(layout, { task, mode, x, y, column, rows, order, axis, narrow, position }) {
  const suffix = position === 1 ? "" : position;
  const named = new Map(leaders().map((row) => [setKey(row), plain(setLabel(row))]));
  const labels = order.map((key) => named.get(key));
  layout[`xaxis${suffix}`] = plotAxis("", {
    domain: x,
    anchor: `y${position}`,
    range: axis.range,
    ...axis.ticks,
    zeroline: true,
    zerolinewidth: 1.5,
    title: { text: "rise of the loss (nats)", standoff: 4, font: plotFont(11) },
  });
  layout[`yaxis${suffix}`] = plotAxis("", {
    domain: y,
    anchor: `x${position}`,
    range: [labels.length - 0.45, -0.6],
    zeroline: false,
    ticks: "",
    tickvals: labels.map((_, i) => i),
    ticktext: labels.map((label) => (narrow || column ? "" : `${label}  `)),
    tickfont: { ...plotFont(12), color: colour("text") },
  });
  const words = { showarrow: false, xanchor: "left", font: { ...plotFont(13), color: colour("text") } };
  const paper = { ...words, xref: "paper", yref: "paper", x: x[0], y: y[1], yanchor: "bottom", yshift: 5 };
  const baseline = rows[0]?.baseline;
  const intact =
    narrow || column || baseline === undefined || baseline === null ? "" : `, intact ${number(baseline)}`;
  const removal = removalLabel({ mode, kind: effects.kind });
  layout.annotations.push({
    ...paper,
    text: `<b>${plain(removal)}</b> · ${plain(taskLabel(task).toLowerCase())}${intact}`,
  });
  if (!narrow) return;
  layout.annotations.push(
    ...labels.map((label, i) => ({
      ...words,
      text: label,
      xref: "paper",
      x: 0,
      yref: `y${position}`,
      y: i - 0.34,
      font: plotFont(11),
      bgcolor: colour("surface"),
      borderpad: 0,
    })),
  );
}

function effectTraces(rows, position, order, transform) {
  const at = (row) => order.indexOf(setKey(row));
  const shared = {
    type: "scatter",
    mode: "markers",
    xaxis: `x${position}`,
    yaxis: `y${position}`,
    cliponaxis: false,
    showlegend: position === 1,
    hovertemplate: "%{text}<extra></extra>",
  };
  const controls = rows.flatMap((row) =>
    controlsOf(row).map((control) => ({ ...control, line: at(row) + 0.2 })),
  );
  const means = rows.filter((row) => row.control_delta !== null);
  return [
    {
      ...shared,
      name: "one random set",
      x: controls.map((row) => transform(row.delta)),
      y: controls.map((row) => row.line),
      text: controls.map((row) => `random: ${signed(row.delta)}<br>${wrapHeads(row.heads)}`),
      marker: { symbol: "circle-open", size: 6, color: colour("chance") },
    },
    {
      ...shared,
      name: "random heads, mean",
      x: means.map((row) => transform(row.control_delta)),
      y: means.map((row) => at(row) + 0.2),
      text: means.map((row) => `random heads, mean: ${signed(row.control_delta)}`),
      marker: { symbol: "line-ns-open", size: 13, color: colour("chance"), line: { width: 2.5 } },
    },
    {
      ...shared,
      name: "leading heads",
      x: rows.map((row) => transform(row.delta)),
      y: rows.map(at),
      text: rows.map(effectHover),
      customdata: rows.map((row) => (row.kind === "single" ? row.heads[0] : null)),
      error_x: effectErrors(rows, transform),
      marker: {
        symbol: rows.map((row) => (isSure(row) ? "diamond" : "diamond-open")),
        size: 11,
        color: colour("finding"),
      },
    },
  ];
}

function effectErrors(rows, transform) {
  const at = rows.map((row) => [row.low ?? row.delta, row.delta, row.high ?? row.delta].map(transform));
  return {
    type: "data",
    symmetric: false,
    color: colour("finding"),
    thickness: 1.6,
    width: 3,
    arrayminus: at.map(([low, delta]) => delta - low),
    array: at.map(([, delta, high]) => high - delta),
  };
}

function wrapHeads(names) {
  const lines = [];
  for (let i = 0; i < names.length; i += 6) lines.push(plain(names.slice(i, i + 6).join(" ")));
  return lines.join("<br>");
}

function effectHover(row) {
  const lines = [
    `<b>${plain(setLabel(row))}</b>`,
    `${signed(row.delta)} (${interval(row.low, row.high, signed)})`,
  ];
  if (row.excess_low !== null)
    lines.push(`beyond random heads: ${interval(row.excess_low, row.excess_high, signed)}`);
  if (row.kind === "joint") lines.push(wrapHeads(row.heads));
  return lines.join("<br>");
}
