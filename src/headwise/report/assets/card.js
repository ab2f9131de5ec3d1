// The selected head: every score beside its nulls, what its removal does, and one example.

function effectCell(measure, index) {
  const value = measure?.value[index] ?? null;
  if (value === null) return element("td", {}, "–");
  const format = measure.signed ? signed : number;
  return element("td", { title: interval(measure.low[index], measure.high[index], format) }, format(value));
}

function effectRow(task, index) {
  const find = (kind, mode) => measures.find((m) => m.kind === kind && m.task === task && m.mode === mode);
  const shown = [find("importance"), find("single", "zero"), find("single", "mean")];
  const name = element("th", { scope: "row", class: "text" }, taskLabel(task));
  return element(
    "tr",
    {},
    name,
    shown.map((measure) => effectCell(measure, index)),
  );
}

function headEffects(index) {
  const tasks = unique(measures.filter((m) => m.kind !== "score").map((m) => m.task));
  if (!tasks.length) {
    const text = "Effects were not measured in this study.";
    return element("section", {}, element("h4", {}, "Without it"), element("p", { class: "looks" }, text));
  }
  const titles = ["", "Importance", "Zeroed", "By mean"].map((text) => element("th", { scope: "col" }, text));
  const body = element(
    "tbody",
    {},
    tasks.map((task) => effectRow(task, index)),
  );
  return element(
    "section",
    {},
    element("h4", {}, "Without it, loss in nats"),
    element("table", {}, element("thead", {}, element("tr", {}, titles)), body),
    setsWith(heads[index].name),
  );
}

function setsWith(name) {
  const sets = study.effects
    .filter((row) => row.kind === "joint" && row.role === "leader" && row.heads.includes(name))
    .map((row) => `${scoreWords(row.score).label.toLowerCase()} (${plural(row.heads.length, "head")})`);
  if (!sets.length) return null;
  return element("p", { class: "key" }, `Also removed jointly with leading heads: ${unique(sets).join(", ")}.`);
}

function headBadges(index) {
  const badge = (text, name) => element("span", { class: name }, text);
  const found = findingsOf(index).map((score) => badge(scoreWords(score).label, "badge"));
  return element("div", { class: "badges" }, found.length ? found : badge("no finding", "badge none"));
}

function cardHeader(head) {
  const local = windowText(study.manifest.layers[head.layer]);
  const where = [`Layer ${head.layer}, head ${head.head}`, place(head), local].filter(Boolean).join(" · ");
  return element(
    "header",
    {},
    element("h3", {}, head.name),
    element("p", { class: "place" }, where),
    headBadges(head.index),
  );
}

function drawCard() {
  const card = byId("card");
  const head = heads[state.selected];
  const parts = [scoreRanges(head.index), headEffects(head.index), examplesOf(head)];
  card.dataset.head = head.name;
  card.replaceChildren(cardHeader(head), element("div", { class: "columns" }, parts));
  card.scrollTop = 0;
  card.querySelectorAll(".example").forEach(scrollToQuery);
}

function setUpCard() {
  on("select", (from) => {
    drawCard();
    // Chosen in a sentence or, in a narrow room, in the table, the card is out of sight; elsewhere it is beside.
    const isBelow = getComputedStyle(byId("card")).position === "static";
    if (from === "link" || (isBelow && from === "table")) byId("card-area").scrollIntoView({ block: "start" });
  });
  drawCard();
}
