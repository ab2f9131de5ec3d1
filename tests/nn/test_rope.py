"""Rotary embedding against a loop over pairs in float64, and against the modules of transformers."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

from headwise.nn import RotaryEmbedding, to_half_split, to_interleaved
from tests.helpers.compare import assert_same, assert_same_function
from tests.nn.widened import Widened

BATCH, HEADS, LENGTH, WIDTH, TURNED = 2, 3, 5, 14, 6
BASE = 50_000.0
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "beta_fast": 16,
    "beta_slow": 2,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, own factor": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}
    | {"attention_factor": 1.3, "truncate": False},
    "yarn, a step": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}
    | {"beta_fast": 2, "beta_slow": 2, "truncate": False},
}


def inputs(dtype: torch.dtype = torch.float64, width: int = WIDTH) -> Tensor:
    return torch.randn(BATCH, HEADS, LENGTH, width, dtype=dtype)


def by_hand(x: Tensor, positions: Tensor, turned: int, interleaved: bool) -> Tensor:
    """One pair of one token after the other."""
    result = x.clone()
    for b in range(BATCH):
        for token in range(x.shape[2]):
            place = int(positions[token] if positions.dim() == 1 else positions[b % len(positions), token])
            for pair in range(turned // 2):
                angle = place * BASE ** (-2 * pair / turned)
                one, other = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + turned // 2)
                first, second = x[b, :, token, one], x[b, :, token, other]
                result[b, :, token, one] = math.cos(angle) * first - math.sin(angle) * second
                result[b, :, token, other] = math.sin(angle) * first + math.cos(angle) * second
    return result


POSITIONS = {
    "one row": torch.tensor([0, 1, 7, 3, 1009]),
    "one row for all": torch.tensor([[4, 5, 6, 7, 8]]),
    "a row each": torch.tensor([[0, 1, 2, 3, 4], [503, 2, 2, 0, 11]]),
}


@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("turned", [TURNED, WIDTH, None])
@pytest.mark.parametrize("interleaved", [False, True])
def test_every_pair_turns_by_its_angle(positions: Tensor, turned: int | None, interleaved: bool) -> None:
    rope = RotaryEmbedding(WIDTH, BASE, rotary_dim=turned, interleaved=interleaved)
    assert_same_function(
        lambda x: (rope(x, positions),),
        lambda x: (by_hand(x, positions, turned or WIDTH, interleaved),),
        {"x": inputs()},
    )


def test_scores_depend_on_distances_only() -> None:
    rope, query, key = RotaryEmbedding(WIDTH, scaling=LLAMA3), inputs(), inputs()
    places = torch.arange(LENGTH)
    here, there = (
        rope(query, places + shift) @ rope(key, places + shift).transpose(-1, -2) for shift in (0, 1_000_003)
    )
    # At a million the angles themselves are rounded by 1e-10; the rest is the exact claim.
    assert_same(there, here, atol=1e-8)
    assert not torch.allclose(rope(query, places) @ key.transpose(-1, -2), here)


def config(scaling: dict[str, Any], width: int = WIDTH, **options: Any) -> Any:
    parameters = scaling | {"rope_theta": BASE}
    return transformers.LlamaConfig(
        hidden_size=width * HEADS, num_attention_heads=HEADS, head_dim=width, rope_parameters=parameters, **options
    )


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("width", [WIDTH, 64, 128])
def test_frequencies_are_those_of_transformers_to_the_bit(scaling: dict[str, Any], width: int) -> None:
    expected = modeling_llama.LlamaRotaryEmbedding(config(scaling, width))
    rope = RotaryEmbedding(width, BASE, scaling=scaling)
    assert torch.equal(rope.inverse_frequencies, expected.inv_freq)
    assert rope.magnitude == expected.attention_scaling


def test_the_scalings_differ() -> None:
    frequencies = [RotaryEmbedding(64, BASE, scaling=scaling).inverse_frequencies for scaling in SCALINGS.values()]
    same = [torch.equal(one, other) for at, one in enumerate(frequencies) for other in frequencies[:at]]
    assert not any(same)


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_llama_turns_alike(scaling: dict[str, Any]) -> None:
    query, positions = inputs(), torch.tensor([[0, 1, 2, 3, 4], [503, 2, 2, 0, 11]])
    with Widened():
        cosine, sine = modeling_llama.LlamaRotaryEmbedding(config(scaling))(query, positions)
        expected, _ = modeling_llama.apply_rotary_pos_emb(query, query, cosine, sine)
    assert_same(RotaryEmbedding(WIDTH, BASE, scaling=scaling)(query, positions), expected)


def test_gpt_neox_turns_a_part_alike() -> None:
    query, positions = inputs(), torch.arange(LENGTH)[None] + 3
    parameters = {"rope_type": "default", "rope_theta": BASE, "partial_rotary_factor": 0.5}
    settings = transformers.GPTNeoXConfig(
        hidden_size=WIDTH * HEADS,
        num_attention_heads=HEADS,
        rope_parameters=parameters | {"partial_rotary_factor": 0.43},
    )
    with Widened():
        cosine, sine = modeling_gpt_neox.GPTNeoXRotaryEmbedding(settings)(query, positions)
        expected, _ = modeling_gpt_neox.apply_rotary_pos_emb(query, query, cosine, sine)
    assert cosine.shape[-1] == TURNED
    assert_same(RotaryEmbedding(WIDTH, BASE, rotary_dim=TURNED)(query, positions), expected)


@pytest.mark.parametrize("scaling", ["default", "yarn"])
def test_deepseek_turns_interleaved_pairs_alike(scaling: str) -> None:
    query, positions = inputs(), torch.arange(LENGTH)[None] + 3
    sizes = {"qk_rope_head_dim": WIDTH, "rope_parameters": SCALINGS[scaling] | {"rope_theta": BASE}}
    with Widened():
        second = modeling_deepseek_v2.DeepseekV2RotaryEmbedding(transformers.DeepseekV2Config(**sizes))
        in_place, _ = modeling_deepseek_v2.apply_rotary_emb(query, query, second(query, positions))
        third = modeling_deepseek_v3.DeepseekV3RotaryEmbedding(transformers.DeepseekV3Config(**sizes))
        halves, _ = modeling_deepseek_v3.apply_rotary_pos_emb_interleave(query, query, *third(query, positions))
    turned = RotaryEmbedding(WIDTH, BASE, interleaved=True, scaling=SCALINGS[scaling])(query, positions)
    assert_same(turned, in_place)
    # DeepSeek-V3 in transformers puts all first features of the pairs before all second ones.
    assert_same(torch.cat([turned[..., 0::2], turned[..., 1::2]], -1), halves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scaling", ["llama3", "yarn"])
def test_narrow_types_lose_no_more_than_in_transformers(dtype: torch.dtype, scaling: str) -> None:
    positions = torch.tensor([[0, 1, 503, 8191, 131_071]])
    query = inputs(dtype)
    exact = RotaryEmbedding(WIDTH, BASE, scaling=SCALINGS[scaling])(query.double(), positions)
    cosine, sine = modeling_llama.LlamaRotaryEmbedding(config(SCALINGS[scaling]))(query, positions)
    theirs, _ = modeling_llama.apply_rotary_pos_emb(query, query, cosine, sine)
    ours = RotaryEmbedding(WIDTH, BASE, scaling=SCALINGS[scaling])(query, positions)
    assert ours.dtype == dtype
    assert (ours.double() - exact).abs().max() <= 2 * (theirs.double() - exact).abs().max()


def test_casting_a_model_leaves_the_frequencies_alone() -> None:
    rope = RotaryEmbedding(WIDTH, BASE, scaling=LLAMA3)
    before = rope.inverse_frequencies.clone()
    for cast in (rope.half(), copy.deepcopy(rope).bfloat16(), rope.double(), rope.to(torch.float16)):
        assert torch.equal(cast.inverse_frequencies, before)
    assert not rope.state_dict()
    assert not list(rope.parameters())


def test_a_model_without_memory_gets_its_frequencies_with_it() -> None:
    with torch.device("meta"):
        rope = RotaryEmbedding(WIDTH, BASE)
    assert rope.inverse_frequencies.is_meta
    query, positions = inputs(torch.float32), torch.arange(LENGTH)
    filled = rope.to_empty(device="cpu")
    assert torch.equal(filled(query, positions), RotaryEmbedding(WIDTH, BASE)(query, positions))


def test_autocast_does_not_narrow_angles() -> None:
    rope, query, positions = RotaryEmbedding(WIDTH), inputs(torch.float32), torch.arange(LENGTH) + 1009
    plain = rope(query, positions)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rope(query, positions), plain)


@pytest.mark.parametrize("turned", [None, TURNED])
def test_a_projection_moves_between_the_pairings(turned: int | None) -> None:
    weights = [torch.randn(HEADS * WIDTH, 11, dtype=torch.float64) for _ in range(2)]
    tokens, positions = torch.randn(LENGTH, 11, dtype=torch.float64), torch.arange(LENGTH) * 7

    def scores(interleaved: bool, *rows: Tensor) -> Tensor:
        rope = RotaryEmbedding(WIDTH, BASE, rotary_dim=turned, interleaved=interleaved)
        query, key = (
            rope((tokens @ row.T).unflatten(-1, (HEADS, WIDTH)).transpose(0, 1)[None], positions) for row in rows
        )
        return query @ key.transpose(-1, -2)

    moved = [to_interleaved(row, WIDTH, turned) for row in weights]
    assert_same(scores(True, *moved), scores(False, *weights))
    assert not torch.allclose(scores(True, *weights), scores(False, *weights))
    assert all(torch.equal(to_half_split(new, WIDTH, turned), old) for new, old in zip(moved, weights, strict=True))
    gain = torch.arange(WIDTH)  # of a norm over one head
    assert to_interleaved(gain, WIDTH, 6).tolist() == [0, 3, 1, 4, 2, 5, *range(6, WIDTH)]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"head_dim": 0}, ValueError, "RotaryEmbedding: expected head_dim to be a positive integer, got 0"),
    ({"head_dim": 7}, ValueError, "RotaryEmbedding: expected an even rotary_dim of at most head_dim 7, got 7; "
     "features turn in pairs"),
    ({"head_dim": 6, "rotary_dim": 8}, ValueError,
     "RotaryEmbedding: expected an even rotary_dim of at most head_dim 6, got 8; features turn in pairs"),
    ({"base": 1.0}, ValueError, "RotaryEmbedding: expected base above 1, got 1.0"),
    ({"scaling": "llama3"}, TypeError,
     "scaling: expected a dictionary such as {'rope_type': 'llama3', ...}, got 'llama3'"),
    ({"scaling": {"rope_type": "longrope"}}, ValueError,
     "scaling: expected rope_type to be one of default, linear, llama3, yarn, got 'longrope', which headwise does not "
     "know; run the model through transformers instead"),
    ({"scaling": {"type": "dynamic", "factor": 2.0}}, ValueError,
     "scaling: expected rope_type to be one of default, linear, llama3, yarn, got 'dynamic', which headwise does not "
     "know; run the model through transformers instead"),
    ({"scaling": {"rope_type": "linear"}}, ValueError,
     "scaling: expected factor with rope_type 'linear', got no factor"),
    ({"scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}}, ValueError,
     "scaling: expected factor with rope_type 'linear', got also rope_theta"),
    ({"scaling": {"rope_theta": 5.0}}, ValueError,
     "scaling: expected nothing else with rope_type 'default', got also rope_theta"),
    ({"scaling": {"rope_type": "linear", "factor": "2"}}, TypeError,
     "scaling: expected factor to be a number, got '2'"),
    ({"scaling": {"rope_type": "linear", "factor": 0.0}}, ValueError,
     "scaling: expected factor to be a positive number, got 0.0"),
    ({"scaling": YARN | {"truncate": 1}}, TypeError, "scaling: expected truncate to be True or False, got 1"),
    ({"scaling": LLAMA3 | {"low_freq_factor": 4.0}}, ValueError,
     "scaling: expected low_freq_factor below high_freq_factor, got 4.0 and 4.0"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED)
def test_what_does_not_fit_is_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        RotaryEmbedding(**{"head_dim": 8} | options)


def test_inputs_that_do_not_fit_are_refused() -> None:
    rope, query = RotaryEmbedding(WIDTH), inputs()
    with pytest.raises(TypeError, match=r"^positions: expected integers, got torch.float32; cast with \.long\(\)$"):
        rope(query, torch.zeros(LENGTH))
    with pytest.raises(ValueError, match=r"^positions: expected \[length\] or \[batch, length\], got \[1, 1, 5\]$"):
        rope(query, torch.zeros(1, 1, LENGTH, dtype=torch.long))
    message = (
        r"^positions: expected \[5\] or \[2, 5\] for \[2, 3, 5, 14\], got \[1, 4\]; there is one position for each"
    )
    with pytest.raises(ValueError, match=message):
        rope(query, torch.arange(4))
    with pytest.raises(ValueError, match=r"got \[3, 5\]; there is one position"):
        rope(query, torch.zeros(3, LENGTH, dtype=torch.long))
    with pytest.raises(ValueError, match=r"^RotaryEmbedding: expected \[batch, heads, length, head_dim = 14\], got \["):
        rope(inputs(width=7), torch.arange(LENGTH))
    with pytest.raises(
        ValueError, match=r"^rows: expected a multiple of head_dim 14 along the first axis, got \[15\]$"
    ):
        to_interleaved(torch.zeros(15), WIDTH)


def test_print_tells_the_settings() -> None:
    rope = RotaryEmbedding(WIDTH, 1e6, rotary_dim=TURNED, interleaved=True, scaling=LLAMA3)
    assert repr(rope) == "RotaryEmbedding(head_dim=14, base=1e+06, rotary_dim=6, interleaved, scaling=llama3)"
