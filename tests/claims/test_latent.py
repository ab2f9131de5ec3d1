"""Claims of docs/claims/latent.md: what latent attention keeps, and why its positions stand apart."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from headwise.cache import LatentCache
from headwise.nn import LatentAttention
from tests.claims.published import fields_of, told

F64 = torch.float64
WIDTH, HEADS, LATENT, PLAIN, TURNED, VALUE = 19, 6, 13, 5, 4, 7


def made(**options: object) -> LatentAttention:
    sizes = {"latent_dim": LATENT, "nope_head_dim": PLAIN, "rope_head_dim": TURNED, "value_head_dim": VALUE}
    return LatentAttention(WIDTH, HEADS, **(sizes | options), dtype=F64)  # type: ignore[arg-type]


def test_up_projections_move_to_the_query_and_to_the_output() -> None:
    """(W_uk^T q) . c = q . (W_uk c), and W_o sum a (W_uv c) = (W_o W_uv) sum a c: by hand, then both forms."""
    query, latents, shares = (
        torch.randn(PLAIN, dtype=F64),
        torch.randn(11, LATENT, dtype=F64),
        torch.rand(11, dtype=F64),
    )
    to_key, to_value = torch.randn(PLAIN, LATENT, dtype=F64), torch.randn(VALUE, LATENT, dtype=F64)
    output = torch.randn(WIDTH, VALUE, dtype=F64)
    assert torch.allclose(latents @ to_key.T @ query, latents @ (to_key.T @ query), atol=1e-12)
    assert torch.allclose(
        output @ (shares @ (latents @ to_value.T)), output @ to_value @ (shares @ latents), atol=1e-12
    )
    layer, inputs = made(), torch.randn(2, 7, WIDTH, dtype=F64)
    forms = [layer(inputs, causal=True, form=form).output for form in ("expanded", "absorbed")]
    assert torch.allclose(*forms, atol=1e-12)


def test_what_is_cached_is_the_latent_and_one_rotary_key() -> None:
    layer, inputs = made(), torch.randn(2, 7, WIDTH, dtype=F64)
    cache = LatentCache(2, 7, LATENT, TURNED, dtype=F64)
    with torch.no_grad():
        steps = [layer(inputs[:, at : at + 1], causal=True, cache=cache).output for at in range(7)]
        assert torch.allclose(torch.cat(steps, 1), layer(inputs, causal=True).output, atol=1e-12)
    assert cache.nbytes == 2 * 7 * (LATENT + TURNED) * 8


@pytest.mark.parametrize(("name", "layers"), [("deepseek-ai/DeepSeek-V2", 60), ("deepseek-ai/DeepSeek-V3", 61)])
def test_the_published_models_keep_576_numbers_a_token_and_layer(name: str, layers: int) -> None:
    fields = fields_of(name)
    latent, turned = fields["kv_lora_rank"], fields["qk_rope_head_dim"]
    assert (latent, turned) == (512, 64)
    assert told(name).per_token == layers * (latent + turned) * 2
    # All heads expanded: 128 heads of 192 for keys and of 128 for values, 71 times as much.
    expanded = 128 * (192 + 128)
    assert Fraction(expanded, latent + turned) == Fraction(640, 9)


def test_no_number_of_kv_heads_keeps_as_much() -> None:
    """Heads of 128, as in these models, keep 256 numbers each: 576 is two and a quarter of them."""
    assert Fraction(512 + 64, 2 * 128) == Fraction(9, 4)
    assert told("deepseek-ai/DeepSeek-V3").per_token not in {61 * 2 * groups * 128 * 2 for groups in range(1, 129)}


def test_every_head_reads_another_key_from_the_same_latent() -> None:
    """Keys of all heads over many tokens have the rank of the latent, and no two heads the same keys."""
    layer, latents = made(), torch.randn(101, LATENT, dtype=F64)
    rows = layer.kv_b_proj.weight.unflatten(0, (HEADS, PLAIN + VALUE))
    keys = torch.einsum("tl,hnl->htn", latents, rows[:, :PLAIN])
    everything = torch.einsum("tl,hnl->thn", latents, rows).flatten(1)
    assert torch.linalg.matrix_rank(everything) == LATENT
    for head in range(1, HEADS):  # heads of one group would share one space of PLAIN dimensions
        both = torch.cat([keys[0], keys[head]], -1)
        assert torch.linalg.matrix_rank(both) > PLAIN
