"""Head layouts side by side: what each changes, and what it leaves."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest

from headwise.plan.answers import plan, plan_architecture
from headwise.plan.compare import compare, curve
from headwise.plan.errors import PlanError
from headwise.plan.figure import draw_comparison
from headwise.plan.layers import Projection
from headwise.plan.relayout import layouts_named
from headwise.plan.request import Request
from headwise.plan.runtimes import runtime_named
from headwise.plan.states import Chunk, Grows, Window
from tests.plan.complete import COMPLETE, ENCODER
from tests.plan.made import cross, grouped, latent, model, recurrent

H, G, D, DV, E = 6, 2, 11, 13, 17


def under(layout: str, made):
    (only,) = layouts_named(layout)
    return only.apply(made)


def planned(made, context=101, **more):
    return plan_architecture(made, Request(context), runtime_named("logical"), **more)


@pytest.mark.parametrize(("layout", "groups"), [("mha", 6), ("gqa:3", 3), ("gqa:2", 2), ("mqa", 1)])
@pytest.mark.parametrize("kind", [{}, {"packed": True}, {"bias": True}, {"causal": False}, {"extent": Window(5)}])
def test_a_grouped_layout_is_the_model_with_that_many_kv_heads(layout, groups, kind):
    """Whatever the model had, the outcome is what is built with that many from the start."""
    built = grouped(0, H, groups, D, E, value_dim=DV, **kind)
    assert under(layout, model(grouped(0, H, G, D, E, value_dim=DV, **kind))).layers == (built,)


def test_a_layer_that_reads_anothers_keys_gains_no_matrix():
    made = model(grouped(0, H, G, D, E), grouped(1, H, G, D, E, owner=0))
    assert under("mha", made) == model(grouped(0, H, H, D, E), grouped(1, H, H, D, E, owner=0))
    second = under("mla:23+5", made).layers[1]
    assert second.attentions[0].projections == (
        Projection("query", E, H * (D + 5)),
        Projection("output", H * D, E),
    )
    assert second.states[0].owner == 0


def test_latent_attention_written_out_has_a_key_and_a_value_per_head():
    made = model(latent(0, H, 23, 5, 7, DV, E))
    whole = under("mha", made)
    assert whole == model(replace(grouped(0, H, H, 12, E, value_dim=DV), kind="latent attention"))
    assert planned(whole).per_token == H * (12 + DV) * 2
    assert planned(under("gqa:2", made)).per_token == 2 * (12 + DV) * 2


@pytest.mark.parametrize("kind", [{}, {"packed": True}])
def test_a_latent_layout_keeps_a_latent_and_one_rotary_key(kind):
    made = under("mla:23+5", model(grouped(0, H, G, D, E, value_dim=DV, **kind)))
    assert made == model(replace(latent(0, H, 23, 5, D, DV, E), kind="attention"))
    assert planned(made).per_token == (23 + 5) * 2


def test_a_latent_model_under_other_latents():
    assert under("mla:29+3", model(latent(0, H, 23, 5, 7, DV, E))) == model(latent(0, H, 29, 3, 7, DV, E))


def test_windows_narrow_what_is_wider():
    kinds = (Grows(), Window(5), Window(50), Chunk(7), Chunk(70))
    made = under("window:31", model(*(grouped(at, H, G, D, E, extent) for at, extent in enumerate(kinds))))
    told = (Window(31), Window(5), Window(31), Chunk(7), Window(31))
    assert made == model(*(grouped(at, H, G, D, E, extent) for at, extent in enumerate(told)))


def test_a_window_may_leave_every_nth_layer_of_attention():
    made = model(recurrent(0), *(grouped(at, H, G, D, E) for at in range(1, 8)))
    kept = [layer.index for layer in under("window:31/3", made).layers if layer.states[0].extent == Grows()]
    assert kept == [3, 6]
    assert planned(under("window:31/3", made), 1000).growth == 2 * 2 * G * D * 2


def test_cross_attention_and_recurrent_states_stay():
    made = model(recurrent(0), cross(1, H, D, E, 29))
    other = under("mqa", made)
    assert other.layers[0] == made.layers[0]
    assert other.layers[1].states[1] == made.layers[1].states[1]
    assert other.layers[1].attentions[1] == made.layers[1].attentions[1]
    assert planned(other).fixed == planned(made).fixed
    assert planned(other).total < planned(made).total


@pytest.mark.parametrize(
    ("layouts", "words"),
    [
        (
            "gqa",
            "--compare: expected mha, gqa:HEADS, mqa, mla:LATENT+ROPE, window:SIZE or window:SIZE/EVERY, got 'gqa'",
        ),
        (
            "mha,,mqa",
            "--compare: expected mha, gqa:HEADS, mqa, mla:LATENT+ROPE, window:SIZE or window:SIZE/EVERY, got ''",
        ),
        (
            "gqa:0",
            "--compare: expected mha, gqa:HEADS, mqa, mla:LATENT+ROPE, window:SIZE or window:SIZE/EVERY, got 'gqa:0'",
        ),
        (
            "gqa:4",
            "--compare gqa:4: expected a number of KV heads that divides the 6 heads of layer 0, got 4",
        ),
        (",".join(["mha"] * 17), "--compare: expected at most 16 layouts, got 17"),
    ],
)
def test_layouts_that_make_no_sense_are_refused(layouts, words):
    with pytest.raises(PlanError, match=f"^{re.escape(words)}$"):
        compare(planned(model(grouped(0, H, G, D, E))), layouts)


@pytest.mark.parametrize("layout", ["window:9999999999999999", "mla:512", "gqa:-1", "gqa:1e3", "mla:0+64", "gqa:٣"])
def test_absurd_layouts_are_refused(layout):
    with pytest.raises(PlanError, match=r"^--compare: expected mha"):
        layouts_named(layout)


def test_a_model_without_attention_has_no_layouts():
    with pytest.raises(PlanError, match=r"^--compare mqa: expected a model with self attention, made has none$"):
        compare(planned(model(recurrent(0))), "mqa")


def test_rows_carry_the_models_own_layout_first():
    base = planned(model(grouped(0, H, G, D, E)), budget=1 << 20)
    rows = compare(base, "mha,window:5").rows
    assert [row.layout for row in rows] == ["as it is", "mha", "window:5"]
    assert rows[0].plan is base
    assert [row.plan.max_context for row in rows] == [(1 << 20) // 88, (1 << 20) // 264, None]
    assert rows[2].plan.max_batch == (1 << 20) // (5 * 88)


def test_tables_say_the_same_in_every_form():
    told = compare(planned(model(grouped(0, H, G, D, E))), "mha,mqa")
    parsed = list(csv.DictReader(io.StringIO(told.csv())))
    assert [row["layout"] for row in parsed] == ["as it is", "mha", "mqa"]
    for row, record in zip(parsed, told.records(), strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in record.items()}
    header, ruler, *lines = told.markdown().splitlines()
    assert header.startswith("| layout | attention_parameters | kv_bytes_per_token |")
    assert "max_batch" not in header
    assert set(ruler) <= set("|-: ")
    assert len(lines) == 3
    assert f"| {told.rows[1].plan.total:,} |" in lines[1]


def test_what_a_runtime_does_for_the_models_code_it_does_for_its_layouts():
    """transformers broadcasts Falcon's KV heads to all query heads, however many there are."""
    fields = {"model_type": "falcon", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
              "new_decoder_architecture": True, "num_kv_heads": 2}  # fmt: skip
    told = compare(plan(fields, context=101, runtime="transformers"), "mha,gqa:2,mqa")
    assert len({row.plan.total for row in told.rows}) == 1
    logical = compare(plan(fields, context=101), "mha,gqa:2,mqa")
    broadcast = told.rows[0].plan.total
    assert [row.plan.total for row in logical.rows] == [broadcast // 6 * groups for groups in (2, 6, 2, 1)]


@pytest.mark.parametrize("model_type", COMPLETE)
def test_every_family_under_its_own_layout_is_itself(model_type):
    """Its own number of KV heads and a window that is wider than all change nothing; fewer heads never take more."""
    try:
        told = plan(COMPLETE[model_type], context=5_000, **ENCODER[model_type])
    except PlanError:
        return  # what is missing from its config is another test's concern
    attentions = [each for layer in told.architecture.layers for each in layer.attentions]
    own = {each.kv_heads for each in attentions if each.kind == "self"}
    if not own and not any(each.kind == "latent" for each in attentions):
        return
    same = ["window:1099511627776"] + [f"gqa:{groups}" for groups in own if len(own) == 1]
    rows = {row.layout: row.plan for row in compare(told, ",".join(["mha", "mqa", *same])).rows}
    for layout in same if not any(each.kind == "latent" for each in attentions) else same[:1]:
        assert (rows[layout].total, rows[layout].per_token) == (told.total, told.per_token)
        assert rows[layout].parameters.by_name == told.parameters.by_name
    assert rows["mqa"].total <= told.total <= rows["mha"].total or told.allocation.role_bytes("latent")


def test_a_curve_is_the_plan_at_every_context():
    base = planned(model(grouped(0, H, G, D, E, Window(5)), grouped(1, H, G, D, E)))
    assert curve(base, [1, 5, 7, 101]) == [2 * 88, 10 * 88, 12 * 88, 106 * 88]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_figure_is_the_same_every_time(tmp_path, suffix):
    told = compare(planned(model(grouped(0, H, G, D, E)), budget=1 << 20), "mha,window:5")
    files = [draw_comparison(told, tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]
    assert len(files[0]) > 5_000


def test_lines_of_the_figure_are_the_curves():
    from matplotlib.figure import Figure

    from headwise.plan import figure

    told = compare(planned(model(grouped(0, H, G, D, E)), 128), "mqa,window:8")
    axes = Figure().add_subplot()
    figure._draw(axes, told)
    contexts = figure._contexts(128)
    assert (contexts[0], contexts[-1]) == (1, 128)
    assert 8 in contexts
    for row, line in zip(told.rows, axes.get_lines(), strict=True):
        assert list(line.get_ydata()) == curve(row.plan, contexts)


@pytest.mark.parametrize("name", ["cache.gif", "cache"])
def test_a_figure_of_another_kind_is_refused(tmp_path, name):
    told = compare(planned(model(grouped(0, H, G, D, E))), "mqa")
    with pytest.raises(PlanError, match=f"^--figure: expected a file that ends in .png, .svg, .pdf, got {name}$"):
        draw_comparison(told, tmp_path / name)


def test_a_figure_that_cannot_be_written_is_refused(tmp_path):
    told = compare(planned(model(grouped(0, H, G, D, E))), "mqa")
    with pytest.raises(PlanError, match=r"^--figure: can't write .* \(No such file or directory\); name another file$"):
        draw_comparison(told, tmp_path / "nowhere" / "cache.png")
