// The layer × head grid as a control: what it shows, hovering, choosing, the arrow keys. grid-drawing.js draws it.

const grid = { measure: null, above: false, cells: [], geometry: null, focused: 0 };

function placeRing(name, index) {
  const ring = byId("grid").querySelector(`[data-live="${name}"]`);
  if (!ring) return;
  ring.setAttribute("visibility", index === null ? "hidden" : "visible");
  if (index === null) return;
  const box = cellBox(heads[index], grid.geometry);
  for (const [key, value] of Object.entries({
    x: box.x - 1,
    y: box.y - 1,
    width: box.width + 2,
    height: box.height + 2,
  })) {
    ring.setAttribute(key, value);
  }
}

function placeRings() {
  placeRing("hover", state.hovered);
  placeRing("selected-halo", state.selected);
  placeRing("selected", state.selected);
}

function drawGrid() {
  const geometry = gridGeometry();
  grid.geometry = geometry;
  const scale = colourScale(...gridRange());
  const rows = study.manifest.layers.map((_, layer) =>
    drawn(
      "g",
      { role: "row", "aria-label": `layer ${layer}` },
      drawLayerLabel(layer, geometry),
      heads.filter((head) => head.layer === layer).flatMap((head) => drawCell(head, geometry, scale)),
    ),
  );
  const height = geometry.bottom + 76;
  const width = Math.max(geometry.total, 200);
  const picture = drawn(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "grid",
      "aria-label": `${gridTitle()} of every head`,
    },
    drawGridHeader(geometry),
    rows,
    drawLegend(geometry, scale),
    drawRings(geometry),
  );
  const hadFocus = byId("grid").contains(document.activeElement);
  byId("grid").replaceChildren(picture);
  grid.cells = [...picture.querySelectorAll('[role="gridcell"]')];
  if (hadFocus) grid.cells[grid.focused].focus({ preventScroll: true });
  placeRings();
  drawGridCaption(geometry);
}

function drawGridCaption(geometry) {
  const parts = ["Layer 0, nearest the input, is on top."];
  if (geometry.grouped)
    parts.push("Gaps set the KV heads apart: the query heads between two gaps read the same keys and values.");
  if (study.manifest.layers.some((layer) => windowText(layer)))
    parts.push("“w” marks layers with a sliding window.");
  if (measured(grid.measure) < heads.length) {
    parts.push(`Measured for ${measured(grid.measure)} of ${heads.length} heads; the others are blank.`);
  }
  byId("grid-caption").textContent = parts.join(" ");
}

function moveInGrid(index, key) {
  const { layer, head } = heads[index];
  const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[key];
  const row = heads.filter((other) => other.layer === layer + down);
  if (!row.length) return index;
  return row[Math.min(Math.max(head + right, 0), row.length - 1)].index;
}

function focusCell(index) {
  grid.cells[grid.focused].setAttribute("tabindex", "-1");
  grid.focused = index;
  grid.cells[index].setAttribute("tabindex", "0");
  grid.cells[index].focus();
}

function headUnder(event) {
  const name = event.target.dataset?.head;
  return name ? headByName.get(name).index : null;
}

function pointAt(index) {
  hover(index);
  if (index === null) hideTooltip();
  else showTooltip(index, grid.cells[index].getBoundingClientRect(), [grid.measure]);
}

function onGridKey(event) {
  const index = headUnder(event);
  if (index === null) return;
  if (event.key.startsWith("Arrow")) focusCell(moveInGrid(index, event.key));
  else if (event.key === "Enter" || event.key === " ") select(index, "grid");
  else return;
  event.preventDefault();
}

function updateGrid() {
  grid.measure = measureByKey.get(byId("grid-measure").value);
  byId("grid-above-label").hidden = !grid.measure.hasNull;
  grid.above = byId("grid-above").checked && grid.measure.hasNull;
  drawGrid();
}

function listenToGrid() {
  const area = byId("grid");
  area.addEventListener("pointerover", (event) => pointAt(headUnder(event)));
  area.addEventListener("pointerleave", () => pointAt(null));
  area.addEventListener(
    "focusin",
    (event) => event.target.matches(":focus-visible") && pointAt(headUnder(event)),
  );
  area.addEventListener("focusout", () => pointAt(null));
  area.addEventListener("keydown", onGridKey);
  area.addEventListener("click", (event) => {
    const index = headUnder(event);
    if (index === null) return;
    focusCell(index);
    select(index, "grid");
  });
}

function setUpGrid() {
  grid.measure = decidingMeasure(state.score);
  fillMeasureSelect(byId("grid-measure"), grid.measure.key);
  const columns = Math.max(...study.manifest.layers.map((layer) => layer.num_heads));
  byId("heads").classList.toggle("wide", columns > 20);
  byId("grid-measure").addEventListener("change", updateGrid);
  byId("grid-above").addEventListener("change", updateGrid);
  listenToGrid();
  on("select", placeRings);
  on("hover", placeRings);
  on("redraw", drawGrid);
  on("score", () => {
    byId("grid-measure").value = decidingMeasure(state.score).key;
    updateGrid();
  });
  updateGrid();
}
