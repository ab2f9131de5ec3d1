"""What is checked of tensor parallelism, in every process of a world."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from headwise.cache import DenseCache, KeyValueCache, LatentCache, WindowCache
from headwise.nn import (
    GroupedQueryAttention,
    HeadParallel,
    LatentAttention,
    RotaryEmbedding,
    local_kv_heads,
    tensor_parallel_plan,
)
from tests.helpers.compare import EXACT
from tests.nn.parallel.ranks import Check, Found, World, true

# 12 heads and a length of 8 can be split over 2 and 4 ranks; all other sizes are primes (rope needs an even width).
BATCH, LENGTH, CONTEXT, WIDTH, HEADS, HEAD_DIM = 3, 8, 7, 11, 12, 10
# One window for each two query heads: a rank that took another's would see it.
WINDOWS = [(2, 0), (2, 0), None, None, (4, 0), (4, 0), (1, 0), (1, 0), (0, 0), (0, 0), (3, 0), (3, 0)]
EVERYTHING: dict[str, Any] = {
    "rope": RotaryEmbedding(HEAD_DIM, 100.0), "qk_norm": 1e-5, "norm_offset": True, "bias": True, "window": WINDOWS,
    "sinks": True, "softcap": 3.0, "scale": 0.7,
}  # fmt: skip
GROUPED: dict[str, tuple[int, dict[str, Any]]] = {
    "12 KV heads": (12, {"bias": True}),
    "4 KV heads": (4, EVERYTHING),
    "2 KV heads": (2, EVERYTHING),
    "1 KV head": (1, EVERYTHING | {"bias": False, "out_bias": True}),
}
LATENT: dict[str, dict[str, Any]] = {
    "plain": {},
    "query latent": {"query_latent_dim": 5, "bias": True, "sinks": True, "window": WINDOWS},
}
NESTED = {"latent_dim": 13, "nope_head_dim": 3, "rope_head_dim": 2, "value_head_dim": 7}


def numbers(*shape: int, grad: bool = False) -> Tensor:
    """The same on every rank: all draw alike."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def grouped(kv_heads: int, **options: Any) -> GroupedQueryAttention:
    return drawn(GroupedQueryAttention(WIDTH, HEADS, kv_heads, HEAD_DIM, dtype=torch.float64, **options))


def latent(**options: Any) -> LatentAttention:
    return drawn(LatentAttention(WIDTH, HEADS, **NESTED, dtype=torch.float64, **options))


def drawn(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def split(world: World, whole: nn.Module, style: HeadParallel | None = None) -> nn.Module:
    """A copy of ``whole`` over all ranks, with the weights of rank 0; the other ranks bring NaN."""
    copy = deepcopy(whole)
    if world.rank:
        for parameter in copy.parameters():
            nn.init.constant_(parameter, torch.nan)
    plan = tensor_parallel_plan(copy, world.ranks)
    return parallelize_module(copy, world.mesh, plan if style is None else dict.fromkeys(plan, style))


def same_gradients(whole: nn.Module, parted: nn.Module) -> Iterator[Found]:
    expected = dict(whole.named_parameters())
    actual = dict(parted.named_parameters())
    yield true("names of parameters", list(actual) == list(expected))
    for name, parameter in actual.items():
        yield true(f"{name} is placed as its gradient", parameter.placements == parameter.grad.placements)
        yield Found(f"{name}", parameter.full_tensor(), expected[name])
        gradient = expected[name].grad
        allowed = EXACT * max(1.0, float(gradient.abs().max()))  # float64 is as exact as its largest numbers
        yield Found(f"gradient of {name}", parameter.grad.full_tensor(), gradient, allowed)


def same_calls(world: World, whole: nn.Module, inputs: dict[str, Tensor], **options: Any) -> Iterator[Found]:
    """Outputs, and gradients of parameters and inputs."""
    parted, weighting = split(world, whole), numbers(BATCH, LENGTH, WIDTH)
    results, leaves = [], []
    for layer in (parted, whole):
        leaves.append({name: tensor.clone().requires_grad_() for name, tensor in inputs.items()})
        results.append(layer(**leaves[-1], **options).output)
        (results[-1] * weighting).sum().backward()
    yield Found("output", *results)
    for name in inputs:
        yield Found(f"gradient of {name}", leaves[0][name].grad, leaves[1][name].grad)
    yield from same_gradients(whole, parted)


def check_grouped(kv_heads: int, options: dict[str, Any], world: World) -> Iterator[Found]:
    layer = grouped(kv_heads, **options)
    yield from same_calls(world, layer, {"hidden": numbers(BATCH, LENGTH, WIDTH)}, causal=True)


def check_latent(options: dict[str, Any], form: Any, world: World) -> Iterator[Found]:
    yield from same_calls(world, latent(**options), {"hidden": numbers(BATCH, LENGTH, WIDTH)}, causal=True, form=form)


def check_said_of_all_heads(world: World) -> Iterator[Found]:
    """Masks, biases and windows of a call, for each head and for all; weights are those of the own heads."""
    mask = torch.rand(BATCH, HEADS, LENGTH, LENGTH) < 0.8
    mask |= torch.eye(LENGTH, dtype=torch.bool)
    hidden = {"hidden": numbers(BATCH, LENGTH, WIDTH)}
    for layer in (grouped(2), latent()):
        for bias in (numbers(HEADS, LENGTH, 1), numbers(LENGTH, LENGTH)):
            yield from same_calls(world, layer, hidden | {"bias": bias}, mask=mask, window=WINDOWS)
            layer.zero_grad()
        parted, (given,) = split(world, layer), hidden.values()
        own = slice(parted.local_heads.start, parted.local_heads.stop)
        weights = parted(given, mask=mask, need_weights=True).weights
        yield Found("weights", weights, layer(given, mask=mask, need_weights=True).weights[:, own])


def check_context(world: World) -> Iterator[Found]:
    inputs = {"hidden": numbers(BATCH, LENGTH, WIDTH), "context": numbers(BATCH, CONTEXT, WIDTH)}
    for kv_heads in (4, 2):
        layer = grouped(kv_heads, bias=True, qk_norm=1e-5)
        yield from same_calls(world, layer, inputs)
        layer.zero_grad()
        parted, leaves, results = split(world, layer), [], []
        for module in (parted, layer):
            context = inputs["context"].clone().requires_grad_()
            results.append(module(inputs["hidden"], module.project_context(context)).output)
            results[-1].square().sum().backward()
            leaves.append(context.grad)
        yield Found("output over projected context", *results)
        yield Found("gradient of projected context", *leaves)
        yield from same_gradients(layer, parted)


def dense(kv_heads: range) -> KeyValueCache:
    return DenseCache(BATCH, len(kv_heads), LENGTH, HEAD_DIM, dtype=torch.float64)


def windowed(kv_heads: range) -> KeyValueCache:
    kept = [2, None, 1, 4]  # what the query heads of four KV heads see farthest, in other words than WINDOWS
    windows = [kept[head] for head in kv_heads]
    return WindowCache(BATCH, len(kv_heads), windows, HEAD_DIM, capacity=LENGTH, dtype=torch.float64)


FAR = [(2, 0), (2, 0), (0, 0), None, None, (4, 0), (1, 0), (1, 0), (0, 0), (4, 0), (3, 0), (3, 0)]


@torch.no_grad()
def check_cached(world: World) -> Iterator[Found]:
    hidden = numbers(BATCH, LENGTH, WIDTH)
    for kv_heads, make in ((12, dense), (4, dense), (2, dense), (1, dense), (4, windowed)):
        layer = grouped(kv_heads, **EVERYTHING | {"window": FAR})
        parted = split(world, layer)
        cache = make(local_kv_heads(parted))
        steps = [parted(part, causal=True, cache=cache).output for part in hidden.split([4, 1, 1, 2], 1)]
        yield Found(f"steps with {kv_heads} KV heads", torch.cat(steps, 1), layer(hidden, causal=True).output)
        yield true("KV heads of the whole", local_kv_heads(layer) == range(kv_heads))
        yield true("KV heads of a rank", len(local_kv_heads(parted)) == max(1, kv_heads // world.ranks))


@torch.no_grad()
def check_latent_cached(world: World) -> Iterator[Found]:
    hidden = numbers(BATCH, LENGTH, WIDTH)
    for form in ("absorbed", "expanded", None):
        layer = latent(**LATENT["query latent"])
        parted = split(world, layer)
        cache, alone = (LatentCache(BATCH, LENGTH, 13, 2, dtype=torch.float64) for _ in range(2))
        parts = hidden.split([4, 1, 1, 2], 1)
        steps = [parted(part, causal=True, cache=cache, form=form).output for part in parts]
        yield Found(f"steps, {form}", torch.cat(steps, 1), layer(hidden, causal=True).output)
        layer(hidden, causal=True, cache=alone)
        yield Found("latents", cache.latents, alone.latents)
        yield Found("rotary keys", cache.rotary_keys, alone.rotary_keys)


def check_training(world: World) -> Iterator[Found]:
    """Clipping and optimizers treat all parameters alike, and take the same steps."""
    for layer in (grouped(2, **EVERYTHING), latent(**LATENT["query latent"])):
        parted, hidden = split(world, layer), numbers(BATCH, LENGTH, WIDTH)
        for module in (parted, layer):
            optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, foreach=True)
            for _ in range(2):
                optimizer.zero_grad()
                module(hidden, causal=True).output.square().sum().backward()
                nn.utils.clip_grad_norm_(module.parameters(), 0.3, foreach=True)
                optimizer.step()
        trained = dict(layer.named_parameters())
        for name, parameter in parted.named_parameters():
            # Where a gradient is near 0, AdamW divides its rounding error by about itself.
            yield Found(name, parameter.full_tensor(), trained[name], atol=1e-9)


class Block(nn.Module):
    """Two attention layers and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([grouped(4), latent()])
        self.up, self.down = (nn.Linear(*widths, dtype=torch.float64) for widths in ((WIDTH, 20), (20, WIDTH)))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = hidden + layer(hidden, causal=True).output
        return hidden + self.down(self.up(hidden).relu())


def check_model(world: World) -> Iterator[Found]:
    whole = Block()
    parted = deepcopy(whole)
    plan = tensor_parallel_plan(parted, world.ranks)
    yield true("paths", list(plan) == ["layers.0", "layers.1"])
    parallelize_module(parted, world.mesh, plan | {"up": ColwiseParallel(), "down": RowwiseParallel()})
    results = [model(numbers(BATCH, LENGTH, WIDTH)) for model in (parted, whole) if torch.manual_seed(5)]
    for result in results:
        result.square().sum().backward()
    yield Found("output", *results)
    yield from same_gradients(whole, parted)


def check_tokens_spread(world: World) -> Iterator[Found]:
    """Each rank brings and takes its own tokens; in between there are all of them."""
    for layer in (grouped(2, **EVERYTHING), latent(**LATENT["query latent"])):
        parted = split(world, layer, HeadParallel(input_layouts=Shard(1), output_layouts=Shard(1)))
        hidden, weighting = numbers(BATCH, LENGTH, WIDTH, grad=True), numbers(BATCH, LENGTH, WIDTH)
        own = hidden.detach().chunk(world.ranks, 1)[world.rank].requires_grad_()
        output, expected = parted(own, causal=True).output, layer(hidden, causal=True).output
        (output * weighting.chunk(world.ranks, 1)[world.rank]).sum().backward()
        (expected * weighting).sum().backward()
        yield Found("output", output, expected.chunk(world.ranks, 1)[world.rank])
        yield Found("gradient of hidden", own.grad, hidden.grad.chunk(world.ranks, 1)[world.rank])
        yield from same_gradients(layer, parted)


def check_distributed_tensors(world: World) -> Iterator[Found]:
    """Inputs and outputs may be distributed tensors; frozen parameters stay so."""
    layer = grouped(4, qk_norm=1e-5).requires_grad_(False)
    parted = split(world, layer, HeadParallel(use_local_output=False))
    hidden = numbers(BATCH, LENGTH, WIDTH)
    given = DTensor.from_local(hidden.chunk(world.ranks, 1)[world.rank], world.mesh, [Shard(1)])
    output = parted(given).output
    yield true("distributed", isinstance(output, DTensor))
    yield Found("output", output.full_tensor(), layer(hidden).output)
    yield true("frozen", not any(parameter.requires_grad for parameter in parted.parameters()))


CHECKS: dict[str, Check] = {
    **{f"grouped, {name}": partial(check_grouped, *given) for name, given in GROUPED.items()},
    **{
        f"latent, {name}, {form}": partial(check_latent, options, form)
        for name, options in LATENT.items()
        for form in ("expanded", "absorbed")
    },
    "said of all heads": check_said_of_all_heads,
    "context": check_context,
    "cached": check_cached,
    "latent cached": check_latent_cached,
    "training": check_training,
    "model": check_model,
    "tokens spread": check_tokens_spread,
    "distributed tensors": check_distributed_tensors,
}
