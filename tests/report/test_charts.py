"""The figures show what the tables hold: every measure, chance, intervals, controls, the example."""

from __future__ import annotations

import pytest

from headwise.report.folder import read_study


def test_the_grid_shows_every_measure(usual):
    options = [option.get_attribute("value") for option in usual.all("#grid-measure option")]
    assert len(options) == 9 + 6 + 2 + 4  # tested scores, descriptions, importance, single ablations
    fills = set()
    for option in options:
        usual.choose("#grid-measure", option)
        label = usual.one("#grid svg").get_attribute("aria-label")
        cells = (
            "return [...document.querySelectorAll('#grid [role=gridcell]')].map((c) => c.getAttribute('fill')).join()"
        )
        fills.add(usual.run(cells))
        assert label.endswith("of every head")
    assert len(fills) == len(options)
    assert "Measured for" in usual.text("#grid-caption")


@pytest.mark.parametrize(
    ("measure", "score"),
    [("score/first/repeated", "first"), ("importance/text", "induction"), ("score/entropy/text", "induction")],
)
def test_findings_of_the_shown_score_are_outlined(usual, findings, measure, score):
    usual.choose("#grid-measure", measure)
    rows = findings[findings["score"] == score]
    outlined = usual.run(
        "return [...document.querySelectorAll('#grid [data-finding=true]')].map((c) => c.dataset.head)"
    )
    assert outlined == [f"L{layer}.H{head}" for layer, head in sorted(zip(rows["layer"], rows["head"], strict=True))]


def test_colour_above_chance(usual, findings):
    best = findings[findings["score"] == "induction"].sort_values("value").iloc[-1]
    cell = f"#grid [data-head='L{best['layer']}.H{best['head']}']"
    assert f"{best['value']:.2f}" in usual.one(cell).get_attribute("aria-label")
    usual.one("#grid-above").click()
    assert f"+{best['value'] - best['null']:.2f}" in usual.one(cell).get_attribute("aria-label")


def test_the_scatter_shades_chance_and_shows_intervals(usual, made):
    table = read_study(made()).scores
    rows = table[(table["score"] == "induction") & table["primary"]]
    edge = max(rows["null"].max(), rows["null_random_high"].max())
    band = usual.run("return document.querySelector('#scatter').layout.shapes[0]")
    assert band["x0"] == 0
    assert band["x1"] == pytest.approx(edge, rel=1e-3)
    bars = usual.run("return document.querySelector('#scatter').data[1].error_x.array")
    found = rows[rows["finding"]].sort_values(["layer", "head"])
    assert bars == pytest.approx(list(found["high"] - found["value"]), rel=0.02)


def test_log_axes_keep_every_point_and_label_true_values(usual):
    usual.choose("#scatter-y", "single/mean/text")
    before = usual.run("return document.querySelector('#scatter').data.map((trace) => trace.x.length)")
    usual.one("#scatter-log").click()
    after = usual.run("return document.querySelector('#scatter').data.map((trace) => trace.y)")
    assert [len(values) for values in after] == before
    assert None not in after[0]
    assert min(after[0]) < 0  # some heads lower the loss
    ticks = usual.run("return document.querySelector('#scatter').layout.xaxis.ticktext")
    assert "0.1" in ticks
    assert usual.all("#scatter .xtick text")


def test_effects_stand_beside_their_controls(usual, made):
    effects = read_study(made()).effects
    panel = "return document.querySelector('#effects-chart').data.slice(arguments[0], arguments[0] + 3)"
    rows = effects[(effects["task"] == "repeated") & (effects["mode"] == "zero") & (effects["kind"] == "joint")]
    random, mean, leading = usual.run(panel, 0)
    leaders = rows[rows["role"] == "leader"]
    assert leading["x"] == pytest.approx(list(leaders["delta"]), rel=1e-3)
    lines = usual.run("return document.querySelector('#effects-chart').layout.yaxis.ticktext")
    assert [line.strip() for line in lines[:2]] == ["Induction · 2 heads", "Induction · 6 heads"]
    assert leading["y"] == list(range(len(lines)))
    assert mean["x"] == pytest.approx(list(leaders["control_delta"]), rel=1e-3)
    assert sorted(random["x"]) == pytest.approx(sorted(rows[rows["role"] == "control"]["delta"]), rel=1e-3)
    sure = leaders["excess_low"] > 0
    assert leading["marker"]["symbol"] == ["diamond" if yes else "diamond-open" for yes in sure]
    axes = usual.run(
        "const {xaxis, xaxis2} = document.querySelector('#effects-chart').layout; return [xaxis.range, xaxis2.range]"
    )
    assert axes[0] == axes[1]  # zeroed and replaced by the mean are compared by eye
    usual.one("#effects-details summary").click()
    assert len(usual.all("#effects-table tbody tr")) == 4 * len(leaders)


def test_effects_of_one_head_at_a_time(usual, made):
    effects = read_study(made()).effects
    usual.choose("#effects-kind", "single")
    assert usual.one("#effects-score").get_attribute("value") == "induction"
    shown = usual.run("return document.querySelector('#effects-chart').data[2].customdata")
    rows = effects[(effects["kind"] == "single") & (effects["score"] == "induction") & (effects["role"] == "leader")]
    assert set(shown) == {heads[0] for heads in rows["heads"]}
    usual.one("#effects-log").click()


def test_the_example_marks_what_the_score_counts(usual, made):
    example = next(each for each in read_study(made()).examples if each["score"] == "induction")
    usual.one(f"#grid [data-head='L{example['layer']}.H{example['head']}']").click()
    tokens = usual.all("#card .example bdi")
    assert len(tokens) == len(example["tokens"])
    strongest = max(range(len(tokens)), key=lambda i: example["weights"][i])
    assert "counted" in tokens[strongest].get_attribute("class")
    assert "color-mix" in tokens[strongest].get_attribute("style")
    assert tokens[example["query"]].get_attribute("class") == "query"
