"""Layouts by name: what they stand for, and what is refused."""

from __future__ import annotations

import json

import pytest

from headwise.bench.layouts.costs import Load
from headwise.bench.layouts.like import shape_like
from headwise.bench.layouts.settings import Settings, check_memory
from headwise.bench.layouts.specs import LayoutSpec, Shape, default_layouts, parse_layouts
from headwise.errors import UserError
from tests.bench.layouts import LOAD, SHAPE, settings, spec


def test_names_stand_for_sizes():
    made = parse_layouts(" mha, gqa:3,mqa,mla:11+4,window:7,mixed:2@5,mqa/3,mla:7+2/2 ", SHAPE)
    sizes = {"width": 23, "head_dim": 10}
    assert made == (
        LayoutSpec("mha", heads=6, kv_heads=6, **sizes),
        LayoutSpec("gqa:3", heads=6, kv_heads=3, **sizes),
        LayoutSpec("mqa", heads=6, kv_heads=1, **sizes),
        LayoutSpec("mla:11+4", heads=6, kv_heads=6, latent=11, rope=4, **sizes),
        LayoutSpec("window:7", heads=6, kv_heads=6, local_heads=6, window=7, **sizes),
        LayoutSpec("mixed:2@5", heads=6, kv_heads=6, local_heads=2, window=5, **sizes),
        LayoutSpec("mqa/3", 23, heads=3, kv_heads=1, head_dim=20),
        LayoutSpec("mla:7+2/2", 23, heads=2, kv_heads=2, head_dim=30, latent=7, rope=2),
    )


def test_other_numbers_of_heads_leave_the_query_projection_as_large():
    made = parse_layouts("mha/4,mha/8,mha/16,mha/32", Shape.divided(512, 8))
    assert [(each.heads, each.head_dim) for each in made] == [(4, 128), (8, 64), (16, 32), (32, 16)]


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        (8, "mha,gqa:4,gqa:2,mqa"),
        (9, "mha,mqa"),
        (1, "mha"),
        (2, "mha,mqa"),
        (4, "mha,gqa:2,mqa"),
        (6, "mha,gqa:3,mqa"),
    ],
)
def test_without_words_the_groups_are_those_that_can_be_formed(heads, words):
    assert default_layouts(heads) == words
    parse_layouts(words, Shape(14, heads, 2))


FORMS = "mha, gqa:KVHEADS, mqa, mla:RANK+ROPE, window:KEYS or mixed:LOCALHEADS@KEYS"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "gqa",
            f"--layouts: expected {FORMS}, each with /HEADS behind it for another number of query heads, got 'gqa'",
        ),
        ("mha,", f"--layouts: expected {FORMS}, each with /HEADS behind it for another number of query heads, got ''"),
        (
            "gqa:4",
            "--layouts gqa:4: expected a number of KV heads that divides the 6 query heads, got 4; use one of 1, 2, 3, "
            "6",
        ),
        ("gqa:0", "--layouts gqa:0: expected a number of KV heads that divides the 6 query heads, got 0; use one of"),
        (
            "mla:11+3",
            "--layouts mla:11+3: expected an even rotary part of at least 2 elements, since positions turn pairs, got "
            "3; write mla:11+4",
        ),
        ("mla:11+0", "got 0; write mla:11+2"),
        ("mla:0+4", "--layouts mla:0+4: expected a latent of at least 1 element, got 0"),
        (
            "window:0",
            "--layouts window:0: expected a window of at least 1 key, the query's own, got 0; window:1 sees nothing "
            "else",
        ),
        (
            "mixed:7@5",
            "--layouts mixed:7@5: expected 1 to 6 local heads, of the 6 that there are, got 7; mixed:6@5 makes all of "
            "them local",
        ),
        ("mixed:0@5", "expected 1 to 6 local heads, of the 6 that there are, got 0; mha has none"),
        ("mixed:2@0", "--layouts mixed:2@0: expected a window of at least 1 key"),
        ("window:5/3", "which elsewhere says which layers have the window, and here there is one; for 3 heads write "),
        (
            "mha/7",
            "--layouts mha/7: expected a number of heads that divides the 60 features of all heads, got 7; use one of "
            "1, 2, 3, 5, 6, 10, 15, 30",
        ),
        ("mha/0", "--layouts mha/0: expected a number of heads that divides the 60 features of all heads, got 0"),
        (
            "mha/4",
            "--layouts mha/4: expected heads of an even width, since rotary positions turn pairs, got 4 heads of 15",
        ),
        ("mqa,mqa", "--layouts: expected each layout once, got mqa twice; leave one out"),
        ("MQA,mqa", "--layouts: expected each layout once, got mqa twice; leave one out"),
        ("mha,gqa:6", "--layouts: expected each layout once, got gqa:6, which is what mha is; leave one out"),
        ("window:5,mixed:6@5", "got mixed:6@5, which is what window:5 is; leave one out"),
        (",".join(f"window:{size}" for size in range(1, 18)), "--layouts: expected at most 16 layouts, got 17"),
    ],
)
def test_wrong_words_are_refused(words, told):
    with pytest.raises(UserError) as refused:
        parse_layouts(words, SHAPE)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("width", "heads", "told"),
    [
        (0, 8, "--width: expected an even number of 2 to 1,048,576, which heads of an even width divide, got 0"),
        (31, 8, "--width: expected an even number of 2 to 1,048,576, which heads of an even width divide, got 31"),
        (
            10**18,
            3,
            f"--width: expected an even number of 2 to 1,048,576, which heads of an even width divide, got {10**18}",
        ),
        (34, 8, "--heads: expected a number of heads that divides --width 34, got 8; use one of 1, 17"),
        (34, 0, "--heads: expected a number of heads that divides --width 34, got 0; use one of 1, 17"),
        (34, 34, "--heads: expected heads of an even width, since rotary positions turn pairs, got 34 heads of 1; use"),
    ],
)
def test_wrong_sizes_are_refused(width, heads, told):
    with pytest.raises(UserError) as refused:
        Shape.divided(width, heads)
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"words": "mha"}, "--layouts: expected something to compare mha with, got it alone; name another layout"),
        ({"load": Load(0, 5, "float32")}, "--batch: expected at least 1 sequence, got 0"),
        ({"load": Load(1, 1, "float32")}, "--context: expected at least 2 tokens, the last of which is decoded, got 1"),
        ({"load": Load(1, 5, "int8")}, "--dtype: expected float32, bfloat16 or float16, got 'int8'"),
        ({"rounds": 4}, "--rounds: expected 5, of which there are quartiles, to 10,000, which take hours, got 4"),
        (
            {"rounds": 10**9},
            "--rounds: expected 5, of which there are quartiles, to 10,000, which take hours, got 1000000000",
        ),
    ],
)
def test_wrong_settings_are_refused(options, told):
    with pytest.raises(UserError) as refused:
        settings(**options)
    assert str(refused.value).startswith(told)


def test_capitals_count_as_small_letters():
    words = "mha,gqa:3,mqa,mla:11+4,window:7,mixed:2@5,mqa/3"
    assert parse_layouts(words.upper(), SHAPE) == parse_layouts(words.title(), SHAPE) == parse_layouts(words, SHAPE)


def test_a_single_layout_of_shared_heads_is_compared_with_repeating_them():
    assert Settings((spec("mqa"),), LOAD).specs[0].grouped


def test_what_there_is_no_memory_for_is_refused():
    from headwise.bench.layouts.costs import cost_of

    asked = settings()
    costs = [cost_of(each, asked.load) for each in asked.specs]
    check_memory(asked, costs, None)
    check_memory(asked, costs, 1 << 30)
    caches = sum(cost.planned for cost in costs)
    with pytest.raises(UserError) as refused:
        check_memory(asked, costs, 2 * caches)
    told = str(refused.value)
    assert told.startswith("--context: expected caches and activations in at most half of the ")
    assert "for 5 layouts at batch 3, context 31 in float32; ask for a shorter --context, a smaller --batch or " in told


LLAMA = {
    "model_type": "llama", "hidden_size": 37, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 14,
    "num_key_value_heads": 2, "vocab_size": 97, "intermediate_size": 41, "max_position_embeddings": 53,
}  # fmt: skip
DEEPSEEK = {
    **LLAMA, "model_type": "deepseek_v3", "num_key_value_heads": 6, "kv_lora_rank": 11, "q_lora_rank": 13,
    "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 2,
}  # fmt: skip


def like(config, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return shape_like(str(path))


@pytest.mark.parametrize(("kv_heads", "name"), [(6, "mha"), (2, "gqa:2"), (1, "mqa")])
def test_sizes_come_from_a_config(tmp_path, kv_heads, name):
    assert like(LLAMA | {"num_key_value_heads": kv_heads}, tmp_path) == (Shape(37, 6, 14), name, [])


def test_sizes_of_a_latent_model_come_from_its_config(tmp_path):
    shape, name, notes = like(DEEPSEEK, tmp_path)
    assert (shape, name) == (Shape(37, 6, 6), "mla:11+4")
    assert [note.split("config.json ")[1] for note in notes] == [
        "have a latent of their own; here they are projected at once"
    ]
    with pytest.raises(UserError, match=r"expected values as wide as the part of a key without position, got 8 and 6"):
        like(DEEPSEEK | {"v_head_dim": 8}, tmp_path)


def test_what_a_layout_leaves_out_of_a_model_is_said(tmp_path):
    config = LLAMA | {"model_type": "mistral", "sliding_window": 19}
    (told,) = like(config, tmp_path)[2]
    assert told.endswith("sees a part of the context only, which is left out; window:KEYS stands for it")
