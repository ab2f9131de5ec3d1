// The top of the page: what was read, the main results in sentences, and one tile per tested score.

function headLink(name) {
  return element(
    "button",
    {
      type: "button",
      class: "head-link",
      onclick: () => select(headByName.get(name).index, "link"),
    },
    name,
  );
}

// Heads named in a sentence become links; everything else stays text.
function withHeadLinks(text) {
  return text.split(/\b(L\d+\.H\d+)\b/).map((part) => (headByName.has(part) ? headLink(part) : part));
}

function layoutText() {
  const { layers } = study.manifest;
  const kinds = new Set(layers.map((layer) => `${layer.num_heads}/${layer.num_kv_heads}`));
  const start = plural(layers.length, "layer");
  if (kinds.size > 1) return `${start}, ${plural(heads.length, "head")}`;
  const { num_heads: queries, num_kv_heads: groups } = layers[0];
  const shared = queries === groups ? "" : ` on ${plural(groups, "KV head")}`;
  return `${start} × ${plural(queries, "head")}${shared}`;
}

function countText(count) {
  const [unit, name] = count >= 1e9 ? [1e9, "billion"] : count >= 1e6 ? [1e6, "million"] : [1, ""];
  return `${(count / unit).toLocaleString("en", { maximumSignificantDigits: unit === 1 ? 21 : 3 })} ${name}`.trim();
}

function readText() {
  const { model, documents, baselines } = study.manifest;
  const parts = [
    `${countText(model.parameters)} parameters, ${layoutText()}`,
    `Read on ${plural(documents.count, "document")} (${plural(documents.tokens, "token")}) of ${documents.source}`,
  ];
  const losses = Object.entries(baselines ?? {}).map(
    ([task, loss]) => `${number(loss.value)} nats on ${study.words.tasks[task]?.phrase ?? task}`,
  );
  if (losses.length) parts.push(`Intact loss: ${losses.join(", ")}`);
  return `${parts.join(". ")}.`;
}

function tile(result) {
  const strong = result.strong ? `${result.strong} above ½, ` : "";
  const found = result.findings > 0;
  const best = `${found ? "clearest" : "closest"} ${result.best}, ${number(result.value)}`;
  return element(
    "button",
    {
      type: "button",
      class: found ? "tile found" : "tile",
      "data-score": result.score,
      "aria-pressed": "false",
      onclick: () => {
        state.score = result.score;
        emit("score");
      },
    },
    element("span", { class: "name", dir: "auto" }, scoreWords(result.score).label),
    element(
      "span",
      { class: "count" },
      `${result.findings} `,
      element("small", {}, `of ${result.heads} heads`),
    ),
    element("span", { class: "best" }, best),
    element("span", { class: "best" }, `${strong}chance\u00a0${number(result.null)}`),
  );
}

function drawSummary() {
  const { model, checks } = study.manifest;
  document.title = `${model.name} · headwise`;
  byId("model").textContent = model.name;
  byId("read").textContent = readText();
  const failed = (checks ?? []).some((check) => !check.passed);
  byId("alerts").append(
    ...study.alerts.map((text, i) => element("p", { class: failed && i === 0 ? "alert bad" : "alert" }, text)),
  );
  byId("sentences").append(...study.sentences.map((text) => element("p", {}, withHeadLinks(text))));
  byId("tiles").append(...study.results.map(tile));
  on("score", markTile);
  markTile();
}

function markTile() {
  for (const node of byId("tiles").children) {
    node.setAttribute("aria-pressed", String(node.dataset.score === state.score));
  }
}
