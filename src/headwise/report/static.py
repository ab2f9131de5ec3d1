"""The study as one static picture: the layer × head grid of its leading score, and what breaks without the leaders.

Colours and marks mean what they mean on the page: orange for findings and leading heads, grey for random heads of the
same layers, blue for how much. The same study always gives the same file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headwise.report.folder import Study, read_study
from headwise.report.picture import (
    CHANCE,
    FINDING,
    MUTED,
    QUANTITY,
    TEXT,
    check_picture,
    make_quiet,
    write_picture,
)
from headwise.report.summary import joint_leaders, lead_score, score_results, telling_task
from headwise.report.words import MODES, PROBES, TASKS, label

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

__all__ = ["draw"]


def draw(folder: Path, path: Path) -> Path:
    """Draw the study in `folder` into `path` and return `path`.

    Raises:
        UserError: `folder` isn't a finished study, or `path` doesn't end in .png, .svg or .pdf.
    """
    check_picture(path, "report")
    study = read_study(folder)
    return write_picture(lambda: _compose(study), path, "report")


def _compose(study: Study) -> Figure:
    """A figure of its own, not pyplot's: no window, no state shared with the caller's figures."""
    from matplotlib.figure import Figure

    joint = joint_leaders(study)
    rows = max(len(study.layers) * 0.13, 1.2) + 1.2
    picture = Figure(figsize=(8.6 if len(joint) else 4.3, max(rows, 3.0)), layout="constrained")
    layout = picture.add_gridspec(2, 2 if len(joint) else 1, width_ratios=[4, 5] if len(joint) else [1])
    _draw_grid(picture.add_subplot(layout[:, 0]), study)
    if len(joint):
        lower = picture.add_subplot(layout[1, 1])
        _draw_effects([picture.add_subplot(layout[0, 1], sharex=lower), lower], study, joint)
    _draw_legend(picture, findings=bool(study.scores["finding"].any()), effects=len(joint) > 0)
    picture.suptitle(study.manifest["model"]["name"], x=0.01, ha="left", fontsize=11, fontweight="bold", color=TEXT)
    return picture


def _draw_grid(axes: Axes, study: Study) -> None:
    """Layers downwards, layer 0 on top; white where a layer has fewer heads; KV heads set apart by lines."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    score = lead_score(study)
    rows = study.scores[study.scores["score"] == score]
    decides = rows[rows["primary"].astype(bool)]
    rows = decides if len(decides) else rows[rows["probe"] == rows["probe"].iloc[0]]
    values = np.full((len(study.layers), max(int(layer["num_heads"]) for layer in study.layers)), np.nan)
    values[rows["layer"].to_numpy(int), rows["head"].to_numpy(int)] = rows["value"]
    colours = LinearSegmentedColormap.from_list("headwise", QUANTITY)
    most = max(1.0, float(np.nanmax(values)))  # shares of attention run to 1, so that noise looks like noise
    image = axes.pcolormesh(values, cmap=colours, vmin=0, vmax=most, edgecolor="white", linewidth=0.6)
    _outline(axes, rows[rows["finding"].astype(bool)])
    _separate_groups(axes, study)
    axes.invert_yaxis()
    axes.set(xlabel="head", ylabel="layer")
    probe = str(rows["probe"].iloc[0])
    axes.set_title(f"{label(score)}, {PROBES.get(probe, probe)}", fontsize=9, loc="left", color=TEXT)
    for ticks, count in ((axes.set_xticks, values.shape[1]), (axes.set_yticks, values.shape[0])):
        shown = np.arange(0, count, 1 if count <= 16 else 4)
        ticks(shown + 0.5, [str(each) for each in shown])
    make_quiet(axes, None)
    _draw_scale(axes, image, most)


def _draw_scale(axes: Axes, image: QuadMesh, most: float) -> None:
    """The colour scale, in the line of the title."""
    bar = axes.figure.colorbar(image, cax=axes.inset_axes((0.66, 1.012, 0.34, 0.014)), orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([0.0, most])
    bar.ax.xaxis.set_ticks_position("top")
    bar.ax.tick_params(labelsize=7, length=0, pad=1, colors=MUTED)


def _outline(axes: Axes, findings: pd.DataFrame) -> None:
    from matplotlib.patches import Rectangle

    for layer, head in zip(findings["layer"], findings["head"], strict=True):
        axes.add_patch(Rectangle((head + 0.06, layer + 0.06), 0.88, 0.88, fill=False, edgecolor=FINDING, linewidth=1.3))


def _separate_groups(axes: Axes, study: Study) -> None:
    for layer, layout in enumerate(study.layers):
        size = int(layout["num_heads"]) // max(1, int(layout["num_kv_heads"]))
        for edge in range(size, int(layout["num_heads"]), size) if size > 1 else ():
            axes.plot([edge, edge], [layer, layer + 1], color="white", linewidth=2.4, solid_capstyle="butt")


def _draw_effects(panels: list[Axes], study: Study, joint: pd.DataFrame) -> None:
    """Zeroed above, replaced by the mean below, on the same axis: the largest set of every score with its controls."""
    of_lead = joint[joint["score"] == lead_score(study)]
    task = telling_task(of_lead if len(of_lead) else joint)
    rows = joint[joint["task"] == task].drop_duplicates(["score", "mode"])  # the largest set comes first
    order = [result["score"] for result in score_results(study) if (rows["score"] == result["score"]).any()]
    for panel, mode in zip(panels, MODES, strict=True):
        of_mode = rows[rows["mode"] == mode].set_index("score")
        for line, score in enumerate(order):
            if score in of_mode.index:
                _draw_line(panel, line, of_mode.loc[score])
        names = [f"{label(score)}, {_count(rows[rows['score'] == score]['size'].max())}" for score in order]
        panel.set_yticks(range(len(order)), names)
        panel.set_ylim(len(order) - 0.4, -0.6)
        panel.axvline(0, color=CHANCE, linewidth=0.8, zorder=1)
        panel.set_title("Zeroed" if mode == "zero" else "Replaced by their mean", fontsize=9, loc="left", color=TEXT)
        make_quiet(panel, "x")
    panels[0].tick_params(labelbottom=False)
    panels[1].set_xlabel(f"rise of the loss (nats), {TASKS.get(task, (task,))[0].lower()}")


def _count(size: int) -> str:
    return "1 head" if size == 1 else f"{size} heads"


def _draw_line(panel: Axes, line: int, row: pd.Series) -> None:
    spread = [[max(row["delta"] - row["low"], 0)], [max(row["high"] - row["delta"], 0)]]
    filled = FINDING if row["excess_low"] > 0 else "white"
    panel.errorbar(
        row["delta"], line, xerr=spread, fmt="D", color=FINDING, markerfacecolor=filled, markersize=5, capsize=2, lw=1.2
    )
    panel.plot(row["control_delta"], line + 0.22, "|", color=CHANCE, markersize=9, markeredgewidth=2)


def _draw_legend(picture: Figure, *, findings: bool, effects: bool) -> None:
    from matplotlib.lines import Line2D

    marks = {}
    if findings:
        outlined = Line2D([], [], linestyle="", marker="s", color=FINDING, markerfacecolor="white", markersize=6)
        marks["finding"] = outlined
    if effects:
        marks["leading heads"] = Line2D([], [], linestyle="", marker="D", color=FINDING, markersize=5)
        control = Line2D([], [], linestyle="", marker="|", color=CHANCE, markersize=9, markeredgewidth=2)
        marks["random heads of the same layers"] = control
    picture.legend(
        marks.values(), marks.keys(), loc="outside lower left", ncols=3, frameon=False, fontsize=8, handletextpad=0.2
    )
