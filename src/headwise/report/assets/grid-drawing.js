// Draws the layer × head grid. Layers run downwards, layer 0 (nearest the input) on top, as the computation does.
// KV groups are set apart by gaps in every row and, where all layers agree, by brackets above.

function gridGeometry() {
  const { layers } = study.manifest;
  const columns = Math.max(...layers.map((layer) => layer.num_heads), 1);
  const labels = 38;
  const room = byId("grid").clientWidth - labels - 2;
  const width = Math.min(Math.max(Math.floor(room / columns), 9), 58);
  const height = Math.min(Math.max(Math.floor(620 / layers.length), 9), 42);
  const uniform = layers.every(
    (layer) => layer.num_heads === columns && layer.num_kv_heads === layers[0].num_kv_heads,
  );
  const grouped = layers.some((layer) => layer.num_kv_heads < layer.num_heads);
  const top = uniform && grouped ? 50 : 32;
  return {
    columns,
    labels,
    width,
    height,
    uniform,
    grouped,
    top,
    rows: layers.length,
    total: labels + columns * width + 2,
    bottom: top + layers.length * height,
  };
}

// The box of a cell: its column is the head's number in every layer; the gap opens where a new KV head begins.
function cellBox(head, geometry) {
  const { size } = keyValueHead(head);
  const last = study.manifest.layers[head.layer].num_heads - 1;
  const gap = geometry.grouped && size > 1 ? Math.min(4, geometry.width * 0.22) : 0;
  const before = head.head % size === 0 && head.head > 0 ? gap / 2 : 0;
  const after = head.head % size === size - 1 && head.head < last ? gap / 2 : 0;
  return {
    x: geometry.labels + head.head * geometry.width + 0.5 + before,
    y: geometry.top + head.layer * geometry.height + 0.5,
    width: geometry.width - 1 - before - after,
    height: geometry.height - 1,
  };
}

function gridValue(index) {
  const { measure, above } = grid;
  const value = measure.value[index];
  if (value === null || !above || !measure.hasNull) return value;
  return measure.null[index] === null ? null : value - measure.null[index];
}

// Shares of attention always run to 1, so that noise looks like noise and scores can be compared by eye.
function gridRange() {
  const values = heads.map((head) => gridValue(head.index)).filter((value) => value !== null);
  if (grid.measure.unit === "share") values.push(1);
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [0, 0]);
}

function svgWords(x, y, words, attributes) {
  return drawn(
    "text",
    {
      x,
      y,
      fill: colour("muted"),
      "font-size": 11,
      "font-family": getComputedStyle(document.body).fontFamily,
      "text-anchor": "middle",
      "dominant-baseline": "central",
      ...attributes,
    },
    words,
  );
}

function drawGridHeader(geometry) {
  const parts = [svgWords(geometry.labels + (geometry.columns * geometry.width) / 2, 7, "head")];
  const middle = (geometry.top + geometry.bottom) / 2;
  parts.push(svgWords(6, middle, "layer", { transform: `rotate(-90 6 ${middle})` }));
  const every = geometry.width >= 17 ? 1 : 4;
  for (let h = 0; h < geometry.columns; h += every) {
    parts.push(svgWords(geometry.labels + (h + 0.5) * geometry.width, geometry.top - 9, h));
  }
  if (geometry.uniform && geometry.grouped) parts.push(...drawBrackets(geometry));
  return parts;
}

function drawBrackets(geometry) {
  const { num_heads: queries, num_kv_heads: groups } = study.manifest.layers[0];
  const size = queries / groups;
  const parts = [];
  for (let g = 0; g < groups; g += 1) {
    const left = geometry.labels + g * size * geometry.width + 3;
    const right = geometry.labels + (g + 1) * size * geometry.width - 3;
    parts.push(drawn("path", { d: `M${left} 31V27H${right}V31`, fill: "none", stroke: colour("strong-line") }));
    const words = size * geometry.width >= 44 ? `KV ${g}` : size * geometry.width >= 16 ? g : "";
    parts.push(svgWords((left + right) / 2, 21, words, { "font-size": 10 }));
  }
  return parts;
}

function drawLayerLabel(layer, geometry) {
  const every = geometry.height >= 13 ? 1 : 5;
  if (layer % every) return null;
  const local = windowText(study.manifest.layers[layer]) ? "w" : "";
  return svgWords(geometry.labels - 6, geometry.top + (layer + 0.5) * geometry.height, `${layer}${local}`, {
    "text-anchor": "end",
  });
}

function cellWords(head, value, finding) {
  const shown = value === null ? "not measured" : gridFormat()(value);
  return `${head.name}, ${grid.measure.label} ${shown}${finding ? ", finding" : ""}`;
}

function cellNumber(value) {
  const text = Math.abs(value) >= 9.95 ? value.toFixed(0) : value.toFixed(2);
  return text.replace(/^(-?)0\./, "$1.").replace("-", "−");
}

// The value itself stands in the cells of findings, where there is room: a page on paper has no tooltip.
function drawCellValue(box, value, fill, geometry) {
  if (geometry.width < 22 || geometry.height < 14) return null;
  return svgWords(box.x + box.width / 2, box.y + box.height / 2 + 0.5, cellNumber(value), {
    fill: inkOn(fill),
    "font-size": Math.min(11, geometry.height - 6, geometry.width * 0.4),
    "pointer-events": "none",
  });
}

function drawCell(head, geometry, scale) {
  const box = cellBox(head, geometry);
  const value = gridValue(head.index);
  const finding = isFinding(grid.measure, head.index);
  const fill = value === null ? colour("surface") : scale.at(value);
  const outline = finding ? (Math.min(geometry.width, geometry.height) < 14 ? 1.1 : 2) : 0;
  const rect = drawn("rect", {
    x: box.x + outline / 2,
    y: box.y + outline / 2,
    width: box.width - outline,
    height: box.height - outline,
    rx: 1.5,
    fill,
    stroke: finding ? colour("finding") : value === null ? colour("line") : null,
    "stroke-width": outline || 1,
    role: "gridcell",
    tabindex: head.index === grid.focused ? 0 : -1,
    "aria-label": cellWords(head, value, finding),
    "data-head": head.name,
    "data-finding": String(finding),
  });
  return [rect, finding && value !== null ? drawCellValue(box, value, fill, geometry) : null];
}

function drawColourBar(left, top, width, scale) {
  const steps = 40;
  return Array.from({ length: steps }, (_, i) =>
    drawn("rect", {
      x: left + (i * width) / steps,
      y: top,
      width: width / steps + 0.5,
      height: 8,
      fill: scale.at(scale.low + ((scale.high - scale.low) * (i + 0.5)) / steps),
    }),
  );
}

// The ends of the colour bar, and 0 where it lies well inside.
function drawColourTicks(left, top, width, { low, high }) {
  const format = gridFormat();
  const span = high - low;
  const inside = low < 0 && high > 0 && Math.min(-low, high) > 0.15 * span;
  const ticks = [
    [low, left, "start"],
    [high, left + width, "end"],
  ];
  if (inside) ticks.push([0, left + (width * -low) / span, "middle"]);
  return ticks.map(([value, x, anchor]) => svgWords(x, top, format(value), { "text-anchor": anchor }));
}

function drawLegend(geometry, scale) {
  const top = geometry.bottom + 16;
  const left = geometry.labels;
  const width = Math.min(220, geometry.total - left - 20);
  const start = { "text-anchor": "start" };
  const outline = { fill: "none", stroke: colour("finding"), "stroke-width": 2, rx: 1.5 };
  return [
    drawColourBar(left, top, width, scale),
    drawColourTicks(left, top + 17, width, scale),
    svgWords(left, top + 34, gridTitle(), start),
    drawn("rect", { x: left + 1, y: top + 45, width: 12, height: 10, ...outline }),
    svgWords(
      left + 20,
      top + 50,
      `finding of “${scoreWords(markedScore(grid.measure)).label.toLowerCase()}”`,
      start,
    ),
  ];
}

function gridFormat() {
  return grid.measure.signed || grid.above ? signed : number;
}

function gridTitle() {
  const { measure } = grid;
  return `${measure.label}${grid.above ? ", above chance" : ""}`;
}

function drawRings(geometry) {
  const ring = (name, attributes) =>
    drawn("rect", {
      "data-live": name,
      fill: "none",
      rx: 3,
      "pointer-events": "none",
      visibility: "hidden",
      ...attributes,
    });
  return [
    ring("hover", { stroke: colour("text"), "stroke-width": 1.5, "stroke-dasharray": "3 2" }),
    ring("selected-halo", { stroke: colour("surface"), "stroke-width": 5 }),
    ring("selected", { stroke: colour("text"), "stroke-width": 2.5 }),
  ];
}
