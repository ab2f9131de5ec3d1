// What the plotly figures share: fonts, axes, and a logarithmic scale that has a place for 0 and for both signs.

// Both signs on a logarithmic axis: linear within ±knee, logarithmic beyond.
function bend(value, knee) {
  return value === null ? null : Math.asinh(value / knee / 2);
}

function bentTicks(low, high, knee) {
  const powers = [];
  for (let power = knee; power <= Math.max(Math.abs(low), Math.abs(high)) * 1.01; power *= 10)
    powers.push(power);
  const values = [...powers.map((power) => -power).reverse(), 0, ...powers].filter(
    (value) => value >= low * 1.05 && value <= high * 1.05,
  );
  return {
    tickvals: values.map((value) => bend(value, knee)),
    ticktext: values.map((value) => String(Number(value.toPrecision(1))).replace("-", "−")),
  };
}

// The knee: a power of ten at or below the smaller magnitudes, so that the linear part hides little.
function kneeOf(values) {
  const sizes = values
    .filter(Boolean)
    .map(Math.abs)
    .sort((a, b) => a - b);
  if (!sizes.length) return 0.01;
  return Math.min(10 ** Math.floor(Math.log10(sizes[Math.floor(sizes.length / 10)])), 0.1);
}

function plotFont(size = 12) {
  return { family: getComputedStyle(document.body).fontFamily, size, color: colour("muted") };
}

// Plotly reads a few tags in its texts; ours are plain.
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function plotAxis(title, extra) {
  return {
    title: { text: plain(title), standoff: 12 },
    gridcolor: colour("line"),
    zerolinecolor: colour("strong-line"),
    linecolor: colour("strong-line"),
    tickfont: plotFont(11),
    automargin: true,
    tickangle: 0,
    ...extra,
  };
}

const plotConfig = { displaylogo: false, displayModeBar: false, responsive: false, doubleClick: "reset" };
