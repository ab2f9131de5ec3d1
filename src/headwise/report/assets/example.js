// One query of a real document: its weights as the background of the tokens it attends to.

// Spaces and line ends inside a token are part of it, so they are made visible where a token stands alone.
function visibleToken(token) {
  return token.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";
}

// The keys that a score counts for this query; null where the tokens alone don't say (delimiters, new scores).
function countedKeys({ score, tokens, query }) {
  const isCopy = (i) => i !== query && tokens[i] === tokens[query];
  const tests = {
    previous: (i) => i === query - 1,
    first: (i) => i === 0,
    duplicate: isCopy,
    induction: (i) => i > 0 && isCopy(i - 1),
  };
  return tests[score] ? tokens.map((_, i) => i).filter((i) => i !== query && tests[score](i)) : null;
}

function tokenStyle(weight, top) {
  const share = weight ? weight / top : 0;
  if (share < 0.005) return null;
  const background = `background: color-mix(in srgb, var(--quantity) ${Math.round(share * 80)}%, transparent)`;
  return share > 0.7 ? `${background}; color: var(--surface)` : background;
}

function tokenNode(example, i, top, counted) {
  const weight = example.weights[i] ?? null;
  const names = [
    i === example.query ? "query" : "",
    counted?.includes(i) ? "counted" : "",
    weight === null ? "unseen" : "",
  ];
  const title = `${i}: ${visibleToken(example.tokens[i])} ${number(weight)}`;
  const text = example.tokens[i].replaceAll("\n", "↵\n");
  return element("bdi", { class: names.join(" ").trim() || null, style: tokenStyle(weight, top), title }, text);
}

function tokenCode(token) {
  return element("code", {}, element("bdi", {}, visibleToken(token)));
}

function distanceText(example, i) {
  const distance = example.query - i;
  if (distance === 0) return "itself";
  return `${plural(Math.abs(distance), "token")} ${distance > 0 ? "back" : "ahead"}`;
}

// "harbour looks at master (12 tokens back) 0.89": the query and the keys with the largest weights.
function looksAt(example, counted) {
  const best = example.weights
    .map((weight, i) => [weight ?? 0, i])
    .filter(([weight]) => weight >= 0.02)
    .sort((a, b) => b[0] - a[0])
    .slice(0, 3);
  const parts = best.flatMap(([weight, i], rank) => [
    rank ? ", " : " looks at ",
    tokenCode(example.tokens[i]),
    ` (${distanceText(example, i)}) ${number(weight)}`,
  ]);
  if (!best.length) parts.push(" spreads its attention thinly");
  if (counted) {
    const mass = counted.reduce((sum, i) => sum + (example.weights[i] ?? 0), 0);
    parts.push(`. Underlined, what the score counts: ${number(mass)} of the weight`);
  }
  return element("p", { class: "looks" }, tokenCode(example.tokens[example.query]), parts, ".");
}

function exampleNode(example) {
  const counted = countedKeys(example);
  const top = example.weights.reduce((most, weight) => Math.max(most, weight ?? 0), 0) || 1;
  // Tokens of some tokenizers carry no spaces; without a gap the text would be one word.
  const apart = example.tokens.some((token) => /^\s|\s$/.test(token)) ? "example" : "example apart";
  const box = { class: apart, dir: "auto", tabindex: 0, role: "group", "aria-label": "Example text" };
  return element(
    "section",
    {},
    element("h4", {}, `Example: ${scoreWords(example.score).label}`),
    looksAt(example, counted),
    element(
      "div",
      box,
      example.tokens.map((_, i) => tokenNode(example, i, top, counted)),
    ),
    element(
      "p",
      { class: "key" },
      `Framed: the query. Background: its weight on each token. Document: ${example.document}`,
    ),
  );
}

function examplesOf(head) {
  const own = study.examples.filter((example) => example.layer === head.layer && example.head === head.head);
  return own.map(exampleNode);
}

function scrollToQuery(box) {
  const query = box.querySelector(".query");
  if (query) box.scrollTop = Math.max(0, query.offsetTop - box.clientHeight + 40);
}
