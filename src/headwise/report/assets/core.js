// What every part of the page uses: the data, the shared state, a small event bus, elements, number formats.
// Text reaches the document through text nodes only; nothing in these scripts parses markup.

const study = JSON.parse(document.getElementById("study").textContent);
const heads = study.heads.layer.map((layer, i) => ({
  index: i,
  layer,
  head: study.heads.head[i],
  name: `L${layer}.H${study.heads.head[i]}`,
}));
const headByName = new Map(heads.map((head) => [head.name, head]));

const state = { selected: null, hovered: null, score: study.lead };
const listeners = {};

function on(event, listener) {
  (listeners[event] ??= []).push(listener);
}

function emit(event, detail) {
  for (const listener of listeners[event] ?? []) listener(detail);
}

// `from` says which part the choice came from, so that only the others scroll to it.
function select(index, from) {
  state.selected = index;
  try {
    history.replaceState(null, "", `#${heads[index].name}`);
  } catch {
    // Some viewers forbid it; the page works without.
  }
  emit("select", from);
}

function hover(index) {
  if (state.hovered === index) return;
  state.hovered = index;
  emit("hover");
}

function unique(values) {
  return [...new Set(values)];
}

function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

function byId(id) {
  return document.getElementById(id);
}

function fill(parent, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) parent.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      parent.setAttribute(name, value === true ? "" : value);
  }
  parent.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return parent;
}

function element(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// Two decimals, two significant digits below 0.1, and a true minus sign.
function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  let text;
  if (size >= 100) text = value.toFixed(0);
  else if (size >= 10) text = value.toFixed(1);
  else if (size >= 0.1 || size === 0) text = value.toFixed(2);
  else if (size >= 0.0005) text = value.toFixed(1 - Math.floor(Math.log10(size)));
  else text = value.toExponential(0);
  return text.replaceAll("-", "−");
}

function signed(value) {
  if (value === null || value === undefined) return "–";
  return value > 0 ? `+${number(value)}` : number(value);
}

function interval(low, high, format = number) {
  return low === null || low === undefined ? "" : `${format(low)} to ${format(high)}`;
}

function probability(value) {
  if (value === null || value === undefined) return "–";
  return value < 0.001 ? "< 0.001" : value.toFixed(3);
}

function scoreWords(score) {
  return (
    study.words.scores[score] ?? { label: score, heads: `“${score}” heads`, definition: "", unit: "share" }
  );
}

function taskLabel(task) {
  return study.words.tasks[task]?.label ?? task;
}

function probeLabel(probe) {
  return study.words.probes[probe] ?? probe;
}

function modeLabel(mode) {
  return study.words.modes[mode] ?? mode;
}

// The layout of a head's layer in words: its KV head and who shares it.
function keyValueHead(head) {
  const layout = study.manifest.layers[head.layer];
  const size = Math.max(1, Math.floor(layout.num_heads / Math.max(1, layout.num_kv_heads)));
  return { index: Math.floor(head.head / size), size };
}

function place(head) {
  const { index, size } = keyValueHead(head);
  if (size === 1) return `KV head ${index}, its own`;
  const first = index * size;
  return size === 2
    ? `KV head ${index}, shared by H${first} and H${first + 1}`
    : `KV head ${index}, shared by H${first} to H${first + size - 1}`;
}

function windowText(layout) {
  const span = layout.window;
  if (span === null || span === undefined) return "";
  if (Array.isArray(span)) {
    if (span.every((side) => side === null)) return "";
    const [left, right] = span.map((side) => side ?? "∞");
    return `window: ${left} before, ${right} after`;
  }
  return `window ${span}`;
}
