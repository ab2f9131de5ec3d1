// One tooltip for the grid and the scatter.

const tooltip = byId("tooltip");

function tooltipRows(measure, index) {
  const format = measure.signed ? signed : number;
  const rows = [[measure.label, format(measure.value[index])]];
  if (measure.value[index] === null) return [[measure.label, "not measured"]];
  if (measure.low?.[index] != null)
    rows.push(["95 % interval", interval(measure.low[index], measure.high[index], format)]);
  if (measure.hasNull) rows.push(["chance", number(measure.null[index])]);
  if (measure.tested) rows.push(["q", probability(measure.q[index])]);
  if (measure.control?.[index] != null) rows.push(["random heads, same layer", signed(measure.control[index])]);
  return rows;
}

function showTooltip(index, box, shown) {
  const head = heads[index];
  const layout = study.manifest.layers[head.layer];
  const rows = shown.flatMap((measure) => tooltipRows(measure, index));
  const found = findingsOf(index).map((score) => scoreWords(score).label.toLowerCase());
  tooltip.replaceChildren(
    element("b", {}, head.name),
    element("div", { class: "where" }, [place(head), windowText(layout)].filter(Boolean).join(" · ")),
    element("div", { class: "where" }, found.length ? `finding: ${found.join(", ")}` : "no finding"),
    element(
      "dl",
      {},
      rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
    ),
  );
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = box.right + 12 + width < innerWidth ? box.right + 12 : Math.max(6, box.left - width - 12);
  const top = Math.min(Math.max(6, box.top - height / 2), innerHeight - height - 6);
  tooltip.style.left = `${Math.min(left, Math.max(6, innerWidth - width - 6))}px`;
  tooltip.style.top = `${top}px`;
}

// A tap has no "leave"; the next scroll ends it.
addEventListener("scroll", hideTooltip, { passive: true });

function hideTooltip() {
  tooltip.hidden = true;
}
