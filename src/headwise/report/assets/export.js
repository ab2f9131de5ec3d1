// Files that leave the page: pictures of the figures, and the numbers.

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Model names hold slashes and worse; a file name gets letters, digits and dashes.
function fileName(part, suffix) {
  const model = study.manifest.model.name
    .replace(/[^A-Za-z0-9.]+/g, "-")
    .replace(/^[-.]+|[-.]+$/g, "")
    .slice(0, 60);
  return `${["headwise", model, part].filter(Boolean).join("-")}.${suffix}`;
}

function svgText(node) {
  const copy = node.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.querySelectorAll("[data-live]").forEach((part) => part.remove());
  for (const part of [copy, ...copy.querySelectorAll("*")]) {
    for (const name of ["tabindex", "role", "aria-label", "aria-selected"]) part.removeAttribute(name);
  }
  const { width, height } = node.viewBox.baseVal;
  copy.prepend(drawn("rect", { width, height, fill: colour("surface") }));
  return new XMLSerializer().serializeToString(copy);
}

async function exportDrawing(node, part, format) {
  const vector = new Blob([svgText(node)], { type: "image/svg+xml" });
  if (format === "svg") return download(vector, fileName(part, "svg"));
  const image = new Image();
  image.src = URL.createObjectURL(vector);
  await image.decode();
  const canvas = element("canvas", {});
  canvas.width = node.viewBox.baseVal.width * 2;
  canvas.height = node.viewBox.baseVal.height * 2;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return canvas.toBlob((blob) => download(blob, fileName(part, "png")));
}

function exportFigure(id, format) {
  const target = byId(id);
  const part = id.replace("-chart", "");
  if (id === "grid") return exportDrawing(target.querySelector("svg"), part, format);
  const { width, height } = target.getBoundingClientRect();
  const name = fileName(part, format).slice(0, -format.length - 1);
  return Plotly.downloadImage(target, {
    format,
    filename: name,
    width,
    height,
    scale: format === "png" ? 2 : 1,
  });
}

function addExportButtons() {
  for (const slot of document.querySelectorAll(".exports[data-figure]")) {
    for (const format of ["svg", "png"]) {
      const label = `Save this figure as ${format.toUpperCase()}`;
      slot.append(
        element(
          "button",
          {
            type: "button",
            class: "quiet",
            "data-format": format,
            title: label,
            "aria-label": label,
            onclick: () => exportFigure(slot.dataset.figure, format),
          },
          format.toUpperCase(),
        ),
      );
    }
  }
}

// A cell that starts like a formula would run in a spreadsheet, and a comma or quote would break the row.
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function downloadScores() {
  const columns = [
    "value",
    "low",
    "high",
    "uniform",
    "random",
    "randomHigh",
    "shuffled",
    "null",
    "p",
    "q",
    "finding",
  ];
  const lines = [["layer", "head", "score", "probe", "decides", ...columns].join(",")];
  for (const entry of study.scores) {
    for (const head of heads) {
      if (entry.value[head.index] === null) continue;
      const cells = [head.layer, head.head, entry.score, entry.probe, entry.primary];
      lines.push([...cells, ...columns.map((column) => entry[column][head.index])].map(csvCell).join(","));
    }
  }
  download(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }), fileName("scores", "csv"));
}
