// Colours: resolved from the style sheet, so that charts and exported images follow the chosen scheme.

const ramps = {
  light: ["#f3f4f1", "#d3e4e6", "#a3cbd7", "#68a8c4", "#3681a8", "#1d5a86", "#123a5f"],
  dark: ["#23282e", "#243f50", "#265b78", "#2f7ba1", "#4a9dc4", "#83c3de", "#d2edf7"],
};
// Below zero: ochre. Blue against ochre survives red-green colour blindness.
const negativeRamps = {
  light: ["#f3f4f1", "#ead9b5", "#d3ab63", "#a8772c", "#6e470f"],
  dark: ["#23282e", "#4d3d20", "#7d602a", "#b98f45", "#ecd095"],
};

function isDark() {
  const forced = document.documentElement.dataset.theme;
  return forced ? forced === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// A custom property holds `light-dark(...)`; only a used colour says which of the two applies.
const colourProbe = element("span", { hidden: true });
document.body.append(colourProbe);

function colour(name) {
  colourProbe.style.color = `var(--${name})`;
  return getComputedStyle(colourProbe).color;
}

function channels(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

function mix(stops, share) {
  const position = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const lower = Math.min(Math.floor(position), stops.length - 2);
  const [a, b] = [channels(stops[lower]), channels(stops[lower + 1])];
  return a.map((value, i) => Math.round(value + (b[i] - value) * (position - lower)));
}

// A colour scale over [low, high]; below zero it runs the other way on its own ramp, with the same unit.
function colourScale(low, high) {
  const scheme = isDark() ? "dark" : "light";
  const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return {
    low,
    high,
    at(value) {
      const [r, g, b] =
        value >= 0 ? mix(ramps[scheme], value / size) : mix(negativeRamps[scheme], -value / size);
      return `rgb(${r}, ${g}, ${b})`;
    },
  };
}

// Dark or light ink, whichever stands out on `rgb(...)`.
function inkOn(fill) {
  const [r, g, b] = fill.match(/\d+/g).map((value) => (value / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#14171a" : "#f7f8f8";
}

// A round step that cuts `span` into about `count` parts.
function roundStep(span, count) {
  const raw = span / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * ([1, 2, 5].find((factor) => factor * power >= raw * 0.999) ?? 10);
}
