"""Latent attention: two forms that are one function, a small cache, and why position needs features of its own."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention.reference import reference_attention
from headwise.cache import DenseCache, LatentCache
from headwise.nn import LatentAttention, RotaryEmbedding
from tests.helpers.compare import assert_same, assert_same_function
from tests.helpers.operations import Operations

BATCH, LENGTH, WIDTH, HEADS, LATENT, NOPE, ROPE, VALUE = 2, 7, 11, 3, 17, 5, 4, 13
PER_HEAD = [(2, 0), None, (0, 0)]
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale_all_dim": 0.7}


def hidden(length: int = LENGTH, batch: int = BATCH) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


def made(**options: Any) -> LatentAttention:
    sizes = {"latent_dim": LATENT, "nope_head_dim": NOPE, "rope_head_dim": ROPE, "value_head_dim": VALUE}
    module = LatentAttention(WIDTH, HEADS, dtype=torch.float64, **sizes | options)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "proj" not in name:  # norms and sinks start where they could hide
                torch.nn.init.normal_(parameter, 1.0, 0.3)
    return module


def latent_cache(batch: int = BATCH, capacity: int = 13) -> LatentCache:
    """Unwritten memory holds NaN."""
    cache = LatentCache(batch, capacity, LATENT, ROPE, dtype=torch.float64)
    cache.append(*(torch.full((batch, 1, capacity, width), torch.nan, dtype=torch.float64) for width in (LATENT, ROPE)))
    cache.reset()
    return cache


def by_hand(module: LatentAttention, inputs: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Head by head from slices of the weights, with the oracle of attention."""

    def normed(tokens: Tensor, norm: Any) -> Tensor:
        if isinstance(norm, torch.nn.Identity):
            return tokens
        return tokens / (tokens.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight

    positions = torch.arange(inputs.shape[1])
    rates = module.rope.base ** (-torch.arange(ROPE // 2, dtype=torch.float64) * 2 / ROPE)
    turn = torch.polar(torch.ones(len(positions), ROPE // 2, dtype=torch.float64), positions[:, None] * rates)

    def turned(tokens: Tensor) -> Tensor:
        return torch.view_as_real(torch.complex(tokens[..., 0::2], tokens[..., 1::2]) * turn).flatten(-2)

    source, rows = inputs, module.q_proj.weight if module.query_latent_dim is None else module.q_b_proj.weight
    if module.query_latent_dim is not None:
        source = normed(inputs @ module.q_a_proj.weight.T, module.q_a_layernorm)
    low = inputs @ module.kv_a_proj_with_mqa.weight.T
    latent, shared = normed(low[..., :LATENT], module.kv_a_layernorm), turned(low[..., LATENT:])
    queries, keys, values, nope = [], [], [], module.nope_head_dim
    for head in range(HEADS):
        query = source @ rows[head * (nope + ROPE) : (head + 1) * (nope + ROPE)].T
        read = module.kv_b_proj.weight[head * (nope + VALUE) : (head + 1) * (nope + VALUE)]
        queries.append(torch.cat([query[..., :nope], turned(query[..., nope:])], -1))
        keys.append(torch.cat([latent @ read[:nope].T, shared], -1))
        values.append(latent @ read[nope:].T)
    result = reference_attention(*(torch.stack(heads, 1) for heads in (queries, keys, values)), **options)
    return torch.cat(list(result.output.unbind(1)), -1) @ module.o_proj.weight.T, result.weights


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "query latent": {"query_latent_dim": 19},
    "linear, all of the key turns": {"latent_norm": False, "nope_head_dim": 0},
    "window, sinks, soft-cap": {"window": PER_HEAD, "sinks": True, "softcap": 3.0, "scale": 0.4},
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", [None, "expanded", "absorbed"])
@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_are_those_written_out(name: str, form: Any, causal: bool) -> None:
    module, inputs = made(**OPTIONS[name]), hidden()
    told = {option: given for option, given in OPTIONS[name].items() if option in ("window", "softcap", "scale")}
    output, weights = by_hand(module, inputs, causal=causal, **told | {"sinks": module.sinks})
    result = module(inputs, causal=causal, form=form, need_weights=True)
    assert_same(result.output, output)
    assert_same(result.weights, weights)


@pytest.mark.parametrize("name", OPTIONS)
def test_both_forms_have_the_same_gradients(name: str) -> None:
    module = made(**OPTIONS[name])
    weights = {key: tensor.detach() for key, tensor in module.named_parameters()}

    def in_form(form: str) -> Any:
        def run(inputs: Tensor, **given: Tensor) -> tuple[Tensor]:
            options = {"causal": True, "form": form}
            return (torch.func.functional_call(module, given, (inputs,), options).output,)

        return run

    assert_same_function(in_form("absorbed"), in_form("expanded"), {"inputs": hidden(), **weights})


@pytest.mark.parametrize("form", [None, "expanded", "absorbed"])
@pytest.mark.parametrize("steps", [(4, 1, 1, 0, 1), (1,) * 7, (7,)])
def test_cached_steps_are_the_full_pass(form: Any, steps: tuple[int, ...]) -> None:
    module, inputs, cache = made(window=PER_HEAD, sinks=True), hidden(), latent_cache()
    with torch.no_grad():
        full = module(inputs, causal=True, need_weights=True)
        outputs, start = [], 0
        for part in inputs.split(list(steps), 1):
            result = module(part, causal=True, cache=cache, form=form, need_weights=True)
            outputs.append(result.output)
            stop = start + part.shape[1]
            assert_same(result.weights, full.weights[:, :, start:stop, :stop])
            start = stop
    assert_same(torch.cat(outputs, 1), full.output)
    assert cache.nbytes_logical == BATCH * LENGTH * (LATENT + ROPE) * 8  # and nothing per head


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_ragged_sequences_are_those_alone(form: Any) -> None:
    module, cache, inputs = made(), latent_cache(), hidden()
    with torch.no_grad():
        expected = module(inputs, causal=True).output
        first = inputs[:, :5].clone()
        first[1, 2:] = torch.nan
        module(first, causal=True, cache=cache, form=form, lengths=[5, 2])
        second = torch.stack([inputs[0, 5:7], inputs[1, 2:4]])
        output = module(second, causal=True, cache=cache, form=form).output
    assert_same(output[0], expected[0, 5:7])
    assert_same(output[1], expected[1, 2:4])


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_padding_changes_no_real_token(form: Any) -> None:
    module, inputs = made(), hidden()
    padded = torch.cat([torch.full((BATCH, 2, WIDTH), torch.nan, dtype=torch.float64), inputs], 1)
    real = torch.ones(BATCH, LENGTH + 2, dtype=torch.bool)
    real[:, :2] = False
    output = module(padded, causal=True, key_mask=real, form=form).output
    assert_same(output[:, 2:], module(inputs, causal=True).output)
    mask = torch.tril(torch.ones(LENGTH + 2, LENGTH + 2, dtype=torch.bool))
    assert_same(module(padded, mask=mask, key_mask=real, form=form).output[:, 2:], output[:, 2:])


def test_packed_documents_are_those_alone() -> None:
    module, documents = made(), [hidden(length, 1) for length in (3, 1, 5)]
    packed = module(torch.cat(documents, 1), causal=True, cu_seqlens=[0, 3, 4, 9]).output
    assert_same(packed, torch.cat([module(document, causal=True).output for document in documents], 1))


def test_rope_between_query_and_latent_can_not_be_absorbed() -> None:
    """A score is bilinear in the input ``x`` of the query and the latent ``c``: ``x . M c``. For features that don't
    turn, one ``M`` serves all distances. With rotary embedding on the expanded key there is an ``M`` for each distance,
    and the best one for two distances misses the scores by as much as they are worth."""
    rope = RotaryEmbedding(6, 10.0)
    to_query, to_key = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    inputs, latents = torch.randn(101, 4, dtype=torch.float64), torch.randn(101, 5, dtype=torch.float64)
    pairs = torch.einsum("nx,nc->nxc", inputs, latents).flatten(1)  # a score is linear in M, with these coefficients

    def scores(distance: int, turns: bool) -> Tensor:
        query, key = (inputs @ to_query.T)[None, None], (latents @ to_key.T)[None, None]
        if turns:
            query = rope(query, torch.full((101,), 20 + distance))
            key = rope(key, torch.full((101,), 20))
        return (query * key).sum(-1)[0, 0]

    def misses(distances: list[int], turns: bool) -> float:
        """The part of the scores that the best single ``M`` leaves."""
        wanted = torch.cat([scores(distance, turns) for distance in distances])
        known = pairs.repeat(len(distances), 1)
        best = torch.linalg.lstsq(known, wanted[:, None]).solution
        return float(((known @ best)[:, 0] - wanted).norm() / wanted.norm())

    assert misses([1], turns=True) < 1e-12
    assert misses([4], turns=True) < 1e-12
    assert misses([1, 4], turns=False) < 1e-12
    assert misses([1, 4], turns=True) > 0.5


@pytest.mark.parametrize(("queries", "absorbs"), [(1, True), (145, True), (146, False), (1000, False)])
def test_the_cheaper_form_is_chosen_over_a_cache(queries: int, absorbs: bool) -> None:
    sizes = {"latent_dim": 512, "nope_head_dim": 128, "rope_head_dim": 64, "value_head_dim": 128}
    module = LatentAttention(WIDTH, 1, **sizes, device="meta")
    assert module._absorbs(None, queries, 1000, cached=True) == absorbs
    assert not module._absorbs(None, queries, 1000, cached=False)
    assert module._absorbs("absorbed", queries, 1000, cached=False)
    assert not module._absorbs("expanded", 1, 1000, cached=True)
    expanded = 1000 * 512 * 256 + queries * 1000 * (128 + 64 + 128)
    absorbed = queries * 512 * 256 + queries * 1000 * (512 + 64 + 512)
    assert absorbs == (absorbed < expanded)


def test_absorbed_steps_make_no_keys_of_heads() -> None:
    module, cache = made(latent_dim=2, rope_head_dim=2, nope_head_dim=31, value_head_dim=29), None
    cache = LatentCache(BATCH, 401, 2, 2, dtype=torch.float64)
    largest = {}
    with torch.no_grad():
        module(hidden(400), causal=True, cache=cache)
        for form in ("absorbed", "expanded"):
            with Operations(*module.parameters(), cache.latents) as ran:
                module(hidden(1), causal=True, cache=cache, form=form)
            largest[form] = ran.largest_bytes
            cache.rollback(1)
    keys_of_heads = BATCH * HEADS * 401 * (31 + 2) * 8
    assert largest["expanded"] >= keys_of_heads
    assert largest["absorbed"] < keys_of_heads / 4


def test_yarn_enlarges_the_scale() -> None:
    module = made(rope=RotaryEmbedding(ROPE, interleaved=True, scaling=YARN))
    assert module.scale == pytest.approx(9**-0.5 * (0.1 * 0.7 * math.log(40) + 1) ** 2)
    assert made().scale == 9**-0.5
    assert made(rope=RotaryEmbedding(ROPE, scaling=YARN), scale=0.5).scale == 0.5


def test_one_graph_and_the_same_results() -> None:
    torch.compiler.reset()
    module = made(query_latent_dim=19, window=PER_HEAD)
    for form in ("expanded", "absorbed"):
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)

        def run(layer: Any, form: str = form) -> Any:
            return lambda inputs: (layer(inputs, causal=True, form=form).output,)

        assert_same_function(run(compiled), run(module), {"inputs": hidden()})


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_only_the_heads_that_are_here_count(form: Any) -> None:
    whole, inputs = made(window=PER_HEAD), hidden()
    total = torch.zeros(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        part = made(window=PER_HEAD)
        part.load_state_dict(whole.state_dict())
        for projection, width in ((part.q_proj, NOPE + ROPE), (part.kv_b_proj, NOPE + VALUE)):
            projection.weight = torch.nn.Parameter(projection.weight[head * width : (head + 1) * width])
        part.o_proj.weight = torch.nn.Parameter(part.o_proj.weight[:, head * VALUE : (head + 1) * VALUE])
        part.local_heads = range(head, head + 1)
        total += part(inputs, causal=True, form=form).output.detach()
    assert_same(total, whole(inputs, causal=True).output)


@torch.no_grad()
def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    module, cache, inputs = made(window=(3, 0)), latent_cache(), hidden()
    module(inputs[:, :5], causal=True, cache=cache)
    kept = cache.latents.clone(), cache.rotary_keys.clone()
    wrong: list[dict[str, Any]] = [
        {"mask": torch.ones(3, 3, dtype=torch.bool)},
        {"backend": "magic"},
        {"form": "folded"},
        {"positions": torch.arange(9)},
        {"lengths": [3, 1]},
        {"window": (1, 0)},
        {"causal": False},
    ]
    for options in wrong:
        for form in ("expanded", "absorbed"):
            with pytest.raises(ValueError, match=r"^\w+: expected "):
                module(inputs[:, 5:7], **{"causal": True, "cache": cache, "form": form} | options)
            assert torch.equal(cache.latents, kept[0])
            assert torch.equal(cache.rotary_keys, kept[1])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^form: expected 'expanded', 'absorbed' or None, got 'folded'$"):
        made()(hidden(), form="folded")
    with pytest.raises(ValueError, match=r"^LatentAttention: expected latent_dim to be a positive integer, got 0$"):
        made(latent_dim=0)
    for wrong in (-1, False):
        with pytest.raises(ValueError, match="expected nope_head_dim to be 0 or a positive integer"):
            made(nope_head_dim=wrong)
    with pytest.raises(ValueError, match=r"^LatentAttention: expected rope for head_dim 4, got one for 6$"):
        made(rope=RotaryEmbedding(6))
    with pytest.raises(ValueError, match=r"^hidden: expected \[batch, length, embed_dim = 11\], got \[2, 11\]$"):
        made()(torch.zeros(2, 11))
    message = "cache: expected a LatentCache, got DenseCache; LatentAttention caches latents"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"), torch.no_grad():
        made()(hidden(), causal=True, cache=DenseCache(BATCH, 1, 13, 9, dtype=torch.float64))
    with pytest.raises(ValueError, match=re.escape("expected width 9 as in the cache, got 17")), torch.no_grad():
        made()(hidden(), causal=True, cache=LatentCache(BATCH, 13, 9, ROPE, dtype=torch.float64))


def test_print_tells_the_sizes() -> None:
    text = repr(made(window=(3, 0)))
    assert "embed_dim=11, num_heads=3, latent_dim=17, nope_head_dim=5, rope_head_dim=4, value_head_dim=13" in text
    assert "query_latent_dim" not in text
    assert "window=(3, 0)" in text
