"""Removing heads: the same function as zeroing them, what is left, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from headwise.errors import UserError
from headwise.layout import HeadLayout
from headwise.models.weights import heads_of
from headwise.surgery.prune import prune
from headwise.surgery.pruning.scores import SCORES, UnitScores, score_units
from headwise.surgery.pruning.units import choose, count_to_remove, example_after
from tests.models import tiny
from tests.surgery.pruning import SUPPORTED, checkpoint, decoded, logits, rows

OWN_KEYS = ("gpt2", "gpt-neox", "bert")  # five heads, each with keys of its own; the others have six on two
GROUPED = HeadLayout(6, 2, 10)


def kept(name: str) -> dict[int, list[int]]:
    """Layer 0 keeps a whole group, layer 2 a part of both: every layer another number."""
    return {0: [1, 3], 2: [0, 2, 4]} if name in OWN_KEYS else {0: [3, 4, 5], 2: [0, 2, 3, 4]}


def gone(name: str) -> list[tuple[int, int]]:
    heads = 5 if name in OWN_KEYS else 6
    return [(layer, head) for layer, own in kept(name).items() for head in range(heads) if head not in own]


@pytest.mark.parametrize("name", SUPPORTED)
def test_removed_is_zeroed_in_prefill_and_in_cached_decoding(name):
    tokens = tiny.tokens(2, 13)
    exact = checkpoint(name, torch.float64)
    for dtype in (torch.float64, torch.float32):
        model = exact if dtype == torch.float64 else checkpoint(name)
        pruned = prune(model, keep=kept(name), compensate=False)
        assert [layout.num_heads for layout in pruned.layouts] == [
            len(kept(name)[0]),
            model.max_heads,
            len(kept(name)[2]),
        ]
        runs = [logits] if name == "bert" else [logits, lambda one, given: decoded(one, given, 7)]
        for run in runs:
            with model.ablate(gone(name)):
                wanted = run(model, tokens)
            with exact.ablate(gone(name)):
                truth = run(exact, tokens)
            # What zeroing itself loses in float32 against float64, a few times over since sums go another way.
            rounding = float((wanted - truth).abs().max())
            distance = float((run(pruned, tokens) - wanted).abs().max())
            assert distance <= (1e-9 if dtype == torch.float64 else max(4 * rounding, 1e-6))
            assert rounding < 1e-4 * float(truth.abs().max())


def test_the_model_stays_as_it_was_and_the_history_tells_all():
    model = checkpoint("llama")
    model.history = ({"operation": "before"},)
    digest, before = model.weights_sha256, model.layouts
    pruned = prune(model, rows(), heads=3, score="contribution", unit="group", seed=5)
    model.forget_hash()
    assert (model.weights_sha256, model.layouts, model.history) == (digest, before, ({"operation": "before"},))
    first, entry = json.loads(json.dumps(pruned.history))
    assert first == {"operation": "before"}
    (layer,) = entry["removed"]
    removed = entry.pop("removed")[layer]
    assert removed in ([0, 1, 2], [3, 4, 5])
    assert entry.pop("recovered").keys() == {layer}
    assert entry.pop("headwise")
    assert entry == {
        "operation": "prune", "score": "contribution", "unit": "group", "uniform": False, "seed": 5, "heads": 3,
        "compensated": True, "tokens": 21 * 13, "length": 13, "documents": list(rows().documents),
    }  # fmt: skip
    by_hand = prune(model, keep={1: [3, 4, 5]}, compensate=False).history[-1]
    assert (by_hand["removed"], by_hand["documents"], by_hand["tokens"]) == ({"1": [0, 1, 2]}, [], 0)


def test_fewer_parameters_and_the_right_ones():
    model = checkpoint("llama")
    pruned = prune(model, keep={1: [4, 1, 2, 5]}, compensate=False)
    old, new = heads_of(model, 1), heads_of(pruned, 1)
    assert torch.equal(new.query, old.query[[1, 2, 4, 5]])
    assert torch.equal(new.output, old.output[[1, 2, 4, 5]])
    assert torch.equal(new.value, old.value)
    assert model.parameters - pruned.parameters == 2 * 2 * 10 * 42
    again = prune(pruned, heads=4, score="magnitude", unit="head", compensate=False)
    assert sum(layout.num_heads for layout in again.layouts) == 12


@pytest.mark.parametrize(
    ("keep", "told"),
    [
        ({1: [0, 1, 3]}, r"in layer 1, got 2 of group 0; 1 of group 1; remove L1.H1 too, or others of their groups"),
        ({0: [0, 3, 4, 5]}, r"got 1 of group 0; 3 of group 1; remove L0.H4, L0.H5 too"),
        ({2: []}, "at least one head to stay in layer 2, got none"),
        ({3: [0]}, "expected layers 0 to 2, got layer 3"),
        ({0: [6]}, "different heads from 0 to 5 in layer 0, got 6"),
        ({0: [1, 1]}, "different heads from 0 to 5 in layer 0, got 1, 1"),
        ({0: range(6)}, "expected heads to remove, got all of them to keep"),
    ],
)
def test_heads_that_cannot_stay_are_refused_by_name(keep, told):
    with pytest.raises(UserError, match=told):
        prune(checkpoint("llama"), keep=keep, compensate=False)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"heads": 4}, r"a multiple of 3 up to 9 of the 18 heads \(whole KV groups; .*\), got 4; use 3 or 6"),
        ({"heads": 12}, "up to 9 of the 18 heads .*, got 12; use 9"),
        ({"heads": 0}, "prune: expected at least 1 head to remove, got 0"),
        ({"heads": 3, "unit": "head"}, "a multiple of 2 up to 12 of the 18 heads .*, got 3; use 2 or 4"),
        (
            {"heads": 3, "uniform": True},
            "a multiple of 9 up to 9 of the 18 heads .each from every layer, .*, got 3; use 9",
        ),
        ({"share": 0.1}, "got a share of 0.1, which is 1.8 heads; use --heads 3"),
        ({"share": 1.0}, "a share between 0 and 1, got 1.0"),
        ({}, "got both or neither"),
        ({"heads": 3, "share": 0.2}, "got both or neither"),
        ({"heads": 3, "keep": {0: [0, 1, 2]}}, "the heads to keep, or how many to remove, got both"),
        ({"heads": 3, "unit": "layer"}, "the unit head or group, got 'layer'"),
        ({"heads": 3, "score": "taste"}, "a score out of contribution, first-order, ablation, magnitude, random"),
        ({"heads": 3, "score": "ablation"}, "expected rows of text for the score ablation, got none"),
        ({"heads": 3, "compensate": True}, "expected rows of text for compensation, got none"),
    ],
)
def test_numbers_that_are_not_possible_are_refused_with_those_that_are(options, told):
    with pytest.raises(UserError, match=told):
        prune(checkpoint("llama"), **{"score": "magnitude", "compensate": False} | options)


def test_architectures_that_cannot_be_reshaped_are_named():
    with pytest.raises(UserError, match="gpt_oss"):
        prune(checkpoint("gpt-oss"), heads=3, score="magnitude", compensate=False)


def test_the_least_goes_and_every_layer_keeps_a_unit():
    layouts = [GROUPED, GROUPED, HeadLayout(6, 3, 10)]
    values = np.array([[1.0, 2.0, np.nan], [4.0, 3.0, np.nan], [0.0, 9.0, 9.5]])
    with pytest.raises(UserError, match="KV groups of one size to choose groups from, got sizes 2, 3"):
        count_to_remove(layouts, "group", heads=3, uniform=False)
    assert choose(layouts[:2], values[:2], "group", 6, uniform=False) == {0: [0, 1, 2], 1: [3, 4, 5]}
    assert choose(layouts[:2], values[:2], "group", 3, uniform=False) == {0: [0, 1, 2]}
    # Both of layer 0 are less than any of layer 1, but one has to stay.
    assert choose(layouts[:2], values[:2] + [[0], [5]], "group", 6, uniform=False) == {0: [0, 1, 2], 1: [3, 4, 5]}
    gone = {0: [0, 1, 2]}
    assert choose(layouts[:2], values[:2], "group", 3, uniform=False, gone=gone) == {1: [3, 4, 5]}


def test_query_heads_go_from_every_group_at_once():
    values = np.array([[5, 1, 3, 2, 6, 4], [9, 9, 9, 9, 0, 9]], dtype=float)
    assert choose([GROUPED] * 2, values, "head", 2, uniform=False) == {0: [1, 3]}
    assert choose([GROUPED] * 2, values, "head", 4, uniform=True) == {0: [1, 3], 1: [0, 4]}
    assert choose([GROUPED] * 2, values, "head", 4, uniform=False) == {0: [1, 2, 3, 5]}
    assert choose([GROUPED] * 2, values, "head", 2, uniform=False, gone={0: [1, 3]}) == {0: [2, 5]}
    alone = [HeadLayout(3, 3, 7)] * 2
    assert choose(alone, np.array([[3, 1, 2], [9, 0, 8]]), "head", 2, uniform=False) == {0: [1], 1: [1]}
    assert choose(alone, np.array([[1, 2, 3], [9, 8, 7]]), "head", 3, uniform=False) == {0: [0, 1], 1: [2]}


@pytest.mark.parametrize(
    ("unit", "count", "uniform", "after"),
    [
        ("group", 6, True, [(3, 1), (3, 1)]),
        ("head", 4, True, [(4, 2), (4, 2)]),
        ("group", 3, False, [(3, 1), (6, 2)]),
        ("head", 6, False, [(2, 2), (4, 2)]),
    ],
)
def test_what_a_format_will_have_to_hold_is_known_before(unit, count, uniform, after):
    assert example_after([GROUPED] * 2, unit, count, uniform=uniform) == after


def test_a_share_is_rounded_down_to_whole_units():
    layouts = [GROUPED] * 3
    assert count_to_remove(layouts, "group", share=0.45, uniform=False) == 6
    assert count_to_remove(layouts, "group", share=0.5, uniform=True) == 9
    assert count_to_remove(layouts, "head", share=1 / 3, uniform=True) == 6
    # 0.29 * 100 is 28.999999999999996.
    assert count_to_remove([HeadLayout(20, 20, 7)] * 5, "group", share=0.29, uniform=False) == 29


def test_scores_that_are_known_already_decide():
    values = np.array([[5.0, 4.0], [3.0, 1.0], [9.0, 8.0]])
    pruned = prune(checkpoint("llama"), heads=3, scores=UnitScores("magnitude", "group", values), compensate=False)
    assert pruned.history[-1]["removed"] == {"1": [3, 4, 5]}
    assert pruned.history[-1]["score"] == "magnitude"


def test_known_scores_say_of_which_unit_they_are():
    model = checkpoint("llama")
    scores = score_units(model, score="random", unit="head", seed=2)
    entry = prune(model, heads=2, scores=scores, compensate=False).history[-1]
    assert entry["unit"] == "head"
    ((layer, removed),) = entry["removed"].items()
    assert removed == choose(model.layouts, scores.values, "head", 2, uniform=False)[int(layer)]


def test_the_seed_draws_random_scores():
    model = checkpoint("llama")
    for seed in (3, 4, 5):
        values = score_units(model, score="random", seed=seed).values
        wanted = choose(model.layouts, values, "group", 6, uniform=False)
        removed = prune(model, heads=6, score="random", seed=seed, compensate=False).history[-1]["removed"]
        assert removed == {str(layer): heads for layer, heads in wanted.items()}


def test_a_uniform_number_goes_from_every_layer():
    """By the scores alone two layers would lose both of theirs."""
    values = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    values = np.repeat(values, 3, axis=1) + np.arange(6) / 100
    scores = UnitScores("magnitude", "head", values)
    pruned = prune(checkpoint("llama"), heads=6, scores=scores, uniform=True, compensate=False)
    assert [layout.num_heads for layout in pruned.layouts] == [4, 4, 4]
    assert pruned.history[-1]["uniform"]
    free = prune(checkpoint("llama"), heads=6, scores=scores, compensate=False)
    assert [layout.num_heads for layout in free.layouts] == [2, 4, 6]


@pytest.mark.parametrize("score", SCORES)
def test_the_history_names_documents_only_where_they_were_read(score):
    text = rows(3, 1, 7)
    entry = prune(checkpoint("llama"), text, heads=3, score=score, compensate=False).history[-1]
    read = score not in ("magnitude", "random")
    assert entry["documents"] == (list(text.documents) if read else [])
    assert (entry["tokens"], entry["length"]) == ((21, 7) if read else (0, None))
