// How the numbers came about: definitions, the run's record, its checks.

function definitionList(pairs, className) {
  return element(
    "dl",
    { class: className },
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]),
  );
}

function methodPart(title, ...children) {
  return element("section", {}, element("h4", {}, title), ...children);
}

function flat(object, prefix = "") {
  return Object.entries(object ?? {}).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? flat(value, `${prefix}${name}.`)
      : [[`${prefix}${name}`, Array.isArray(value) ? value.join(" ") : value]],
  );
}

function bytesText(bytes) {
  if (bytes === null || bytes === undefined) return null;
  const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), 0), 4);
  return `${number(bytes / 1024 ** power)} ${["bytes", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function durationText(seconds) {
  if (seconds === null || seconds === undefined) return null;
  if (seconds < 90) return `${number(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

function shellWord(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

function runRecord() {
  const { manifest } = study;
  const { model, documents } = manifest;
  return definitionList([
    ["model", model.name],
    ["from", model.source],
    ["kind", `${model.model_type}, ${model.causal ? "causal" : "bidirectional"}`],
    ["weights SHA-256", model.weights_sha256],
    ["parameters", model.parameters?.toLocaleString("en")],
    [
      "documents",
      `${documents.source}: ${plural(documents.count, "document")}, ${plural(documents.tokens, "token")}`,
    ],
    ["command", (manifest.command ?? []).map(String).map(shellWord).join(" ")],
    ["seed", manifest.seed],
    ["threads", manifest.threads],
    ["created", manifest.created],
    ["time", durationText(manifest.seconds)],
    ["peak memory", bytesText(manifest.peak_bytes)],
  ]);
}

function checkList() {
  const checks = study.manifest.checks ?? [];
  if (!checks.length) return element("p", {}, "No checks were recorded.");
  return element(
    "ul",
    {},
    checks.map((check) =>
      element(
        "li",
        {},
        element("span", { class: check.passed ? "passed" : "failed" }, check.passed ? "✓ passed" : "✗ failed"),
        element("span", {}, `${check.name}: `, element("small", {}, check.detail ?? "")),
      ),
    ),
  );
}

function scoreDefinitions() {
  return definitionList(
    unique(study.scores.map((entry) => entry.score)).map((score) => {
      const decides = decidingMeasure(score);
      const where = decides.tested ? ` Decided on ${probeLabel(decides.probe)}.` : "";
      return [scoreWords(score).label, `${scoreWords(score).definition || "No definition recorded."}${where}`];
    }),
    "definitions",
  );
}

function drawMethod() {
  const paragraphs = Object.entries(study.words.method)
    .filter(
      ([title]) =>
        study.effects.length || study.importance.length || !["Importance", "Ablation"].includes(title),
    )
    .flatMap(([title, text]) => [element("h4", {}, title), element("p", {}, text)]);
  const rest = flat({ ...study.manifest.versions, ...study.manifest.machine });
  byId("method-body").append(
    element("div", { class: "text" }, paragraphs),
    element(
      "div",
      {},
      methodPart("What each score is", scoreDefinitions()),
      methodPart("Checks of this run", checkList()),
    ),
    element(
      "div",
      {},
      methodPart("This run", runRecord()),
      methodPart("Settings", definitionList(flat(study.manifest.settings))),
      methodPart("Versions and machine", definitionList(rest)),
    ),
  );
  byId("foot").textContent =
    `Made by headwise ${study.manifest.headwise}. This page is one file and loads nothing.`;
}
