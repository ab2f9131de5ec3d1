// The findings, one row per head and score: sortable, filterable, and linked with the figures.

const PAGE = 100;
const table = { rows: [], sort: "excess", ascending: false, limit: PAGE };

function rowsOf(score) {
  const measure = decidingMeasure(score);
  return heads
    .filter((head) => measure.value[head.index] !== null)
    .map((head) => ({
      head,
      score,
      measure,
      value: measure.value[head.index],
      chance: measure.null[head.index],
      q: measure.q[head.index],
      excess: measure.value[head.index] - (measure.null[head.index] ?? 0),
      found: Boolean(measure.finding[head.index]),
    }));
}

// The columns of effects exist only where something was measured on the chosen task.
function effectColumns() {
  const task = byId("table-task").value;
  const named = { importance: "Importance", zero: "Zeroed", mean: "By mean" };
  return measures
    .filter((m) => m.kind !== "score" && m.task === task)
    .map((measure) => ({
      key: measure.key,
      title: named[measure.mode ?? measure.kind] ?? modeLabel(measure.mode),
      measure,
      value: (row) => measure.value[row.head.index],
      hint: measure.axis,
    }));
}

const SCORE_COLUMN = {
  key: "score",
  title: "Score",
  value: (row) => testedScores.indexOf(row.score),
  text: true,
};

function tableColumns() {
  return [
    { key: "head", title: "Head", value: (row) => row.head.index, text: true },
    // With one score chosen the column would say the same in every row.
    ...(byId("table-score").value ? [] : [SCORE_COLUMN]),
    {
      key: "value",
      title: "Value",
      value: (row) => row.value,
      hint: "Share of attention, with its 95 % interval",
    },
    {
      key: "excess",
      title: "Above chance",
      value: (row) => row.excess,
      hint: "Bar: value and interval; grey: chance",
    },
    { key: "chance", title: "Chance", value: (row) => row.chance, hint: "The largest null that applies" },
    { key: "q", title: "q", value: (row) => row.q, hint: "p-value after Benjamini-Hochberg over all heads" },
    ...effectColumns(),
  ];
}

function chosenRows() {
  const score = byId("table-score").value;
  const head = byId("table-head").value.trim().toUpperCase();
  const all = byId("table-all").checked;
  const matches = (name) => !head || name === head || name.startsWith(head.includes(".") ? head : `${head}.`);
  return table.rows.filter(
    (row) => (all || row.found) && (!score || row.score === score) && matches(row.head.name),
  );
}

function sortRows(rows) {
  const column = tableColumns().find((each) => each.key === table.sort) ?? tableColumns()[0];
  const sign = table.ascending ? 1 : -1;
  // What wasn't measured stays at the end in both directions.
  const missing = (value) => value === null || value === undefined;
  return rows
    .map((row) => [column.value(row), row])
    .sort(([a, rowA], [b, rowB]) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return sign * (a - b) || rowA.head.index - rowB.head.index;
    })
    .map(([, row]) => row);
}

function headerCell(column) {
  const sorted = column.key === table.sort;
  return element(
    "th",
    {
      scope: "col",
      class: column.text ? "text" : null,
      title: column.hint,
      "data-column": column.key,
      "aria-sort": sorted ? (table.ascending ? "ascending" : "descending") : null,
    },
    element("button", { type: "button", onclick: () => sortBy(column.key) }, column.title),
  );
}

function sortBy(key) {
  const upFirst = key === "head" || key === "score" || key === "q";
  table.ascending = table.sort === key ? !table.ascending : upFirst;
  table.sort = key;
  drawTable();
  byId("table")
    .querySelector(`th[data-column="${CSS.escape(key)}"] button`)
    ?.focus();
}

function bodyCell(column, row) {
  if (column.key === "head") return element("td", {}, row.head.name);
  if (column.key === "score")
    return element(
      "td",
      { class: "text", title: `decided on ${probeLabel(row.measure.probe)}` },
      scoreWords(row.score).label,
    );
  if (column.key === "excess")
    return element("td", { class: "bar-cell" }, rangeBar(row.measure, row.head.index));
  if (column.key === "value") {
    const { low, high } = row.measure;
    return element(
      "td",
      {},
      `${number(row.value)} `,
      element("small", {}, interval(low[row.head.index], high[row.head.index])),
    );
  }
  if (column.measure) return effectCell(column.measure, row.head.index);
  return element("td", {}, column.key === "q" ? probability(row.q) : number(row.chance));
}

function bodyRow(row, columns) {
  return element(
    "tr",
    {
      "data-head": row.head.name,
      "data-score": row.score,
      class: row.found ? null : "missed",
      tabindex: -1,
      "aria-selected": String(state.selected === row.head.index),
    },
    columns.map((column) => bodyCell(column, row)),
  );
}

function emptyRow(columns) {
  const text = table.rows.some((row) => row.found)
    ? "No finding matches the filter."
    : "No head does more than chance explains. Tick “also heads that did not survive” to see all values.";
  return element("tr", {}, element("td", { class: "empty", colspan: columns.length }, text));
}

function drawTable() {
  const columns = tableColumns();
  const rows = sortRows(chosenRows());
  const shown = rows.slice(0, table.limit);
  byId("table").replaceChildren(
    element("caption", { class: "skip" }, "Findings, one row per head and score"),
    element("thead", {}, element("tr", {}, columns.map(headerCell))),
    element("tbody", {}, shown.length ? shown.map((row) => bodyRow(row, columns)) : emptyRow(columns)),
  );
  byId("table").querySelector("tbody tr[data-head]")?.setAttribute("tabindex", "0");
  byId("table-count").textContent = plural(rows.length, "row");
  byId("table-more").hidden = rows.length <= table.limit;
  byId("table-more").textContent = `Show all ${rows.length} rows`;
}

function markRows(attribute, index, mark) {
  for (const row of byId("table").querySelectorAll("tbody tr[data-head]")) {
    mark(row, index !== null && row.dataset.head === heads[index].name);
  }
}

// Scrolls inside the table's own box only, so that hovering a figure never moves the page.
function revealRow(name) {
  const row = byId("table").querySelector(`tbody tr[data-head="${name}"]`);
  const box = byId("table-scroll");
  if (row) box.scrollTop = row.offsetTop - box.clientHeight / 2;
}

function onTableKey(event) {
  const row = event.target.closest("tbody tr[data-head]");
  if (!row || event.target !== row) return;
  const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
  if (next) {
    row.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  } else if (event.key === "Enter" || event.key === " ")
    select(headByName.get(row.dataset.head).index, "table");
  else return;
  event.preventDefault();
}

function fillTableControls() {
  const counts = study.results.map(({ score, findings }) =>
    element("option", { value: score }, `${scoreWords(score).label} (${findings})`),
  );
  byId("table-score").replaceChildren(element("option", { value: "" }, "all"), ...counts);
  byId("table-score").value = testedScores.includes(state.score) ? state.score : "";
  const tasks = [...new Set(measures.filter((m) => m.kind !== "score").map((m) => m.task))];
  byId("table-task").replaceChildren(
    ...tasks.map((task) => element("option", { value: task }, taskLabel(task).toLowerCase())),
  );
  byId("table-task-label").hidden = tasks.length < 2;
}

function setUpTable() {
  table.rows = testedScores.flatMap(rowsOf);
  fillTableControls();
  const refresh = () => {
    table.limit = PAGE;
    drawTable();
  };
  for (const id of ["table-score", "table-task", "table-all"]) byId(id).addEventListener("change", refresh);
  byId("table-head").addEventListener("input", refresh);
  byId("table-more").addEventListener("click", () => {
    table.limit = Infinity;
    drawTable();
  });
  const body = byId("table");
  const headOf = (event) => event.target.closest?.("tbody tr[data-head]")?.dataset.head;
  body.addEventListener(
    "click",
    (event) => headOf(event) && select(headByName.get(headOf(event)).index, "table"),
  );
  body.addEventListener("pointerover", (event) =>
    hover(headOf(event) ? headByName.get(headOf(event)).index : null),
  );
  body.addEventListener("pointerleave", () => hover(null));
  body.addEventListener("focusin", (event) => headOf(event) && hover(headByName.get(headOf(event)).index));
  body.addEventListener("focusout", () => hover(null));
  body.addEventListener("keydown", onTableKey);
  on("hover", () => markRows("hovered", state.hovered, (row, same) => row.classList.toggle("hovered", same)));
  on("select", (from) => {
    markRows("selected", state.selected, (row, same) => row.setAttribute("aria-selected", String(same)));
    if (from !== "table") revealRow(heads[state.selected].name);
  });
  on("score", () => {
    byId("table-score").value = state.score;
    refresh();
  });
  drawTable();
}
