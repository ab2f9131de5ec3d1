"""What is checked of attention over keys on all ranks, in every process of a world."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any
from unittest import mock

import torch
from torch import Tensor, distributed

from headwise.attention import attention_with_lse, merge
from headwise.cache import DenseCache
from headwise.nn import context_parallel_attention, merge_over_ranks
from tests.nn.parallel.ranks import Check, Found, World, true

# In the process that runs the checks nothing before this asked for tensor parallelism.
LOADED_EARLY = "torch.distributed.tensor" in sys.modules
# Different primes, but for the heads.
BATCH, HEADS, KV_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 6, 3, 5, 19, 7, 11
# How many keys lie on each rank; one has none.
SPLITS = {2: [(8, 11), (19, 0)], 4: [(3, 0, 9, 7), (0, 5, 1, 13)]}
WINDOWS = [(2, 0), None, (0, 0), (4, 1), (1, 0), (6, 0)]
LIMITS = {"causal": True, "window": WINDOWS, "softcap": 3.0}


def numbers(*shape: int) -> Tensor:
    """The same on every rank: all draw alike."""
    return torch.randn(*shape, dtype=torch.float64)


def blind_mask() -> Tensor:
    """A mask under which one query sees nothing, and one nothing of the first 17 keys."""
    mask = torch.rand(BATCH, 1, QUERIES, KEYS) < 0.6
    mask[1, :, 2] = False
    mask[0, :, 3, :17] = False
    mask[0, :, 3, 17:] = True
    return mask


def cases() -> dict[str, dict[str, Any]]:
    """Arguments over all keys."""
    slopes, sinks = {"alibi_slopes": numbers(HEADS).abs()}, {"sinks": numbers(HEADS)}
    by_sequence = {"offset": torch.tensor([9, 4]), "key_lengths": torch.tensor([14, 9])}
    return {
        "plain": {},
        "limits": LIMITS | slopes | sinks | {"offset": KEYS - QUERIES},
        "early queries": LIMITS | sinks | {"offset": 2},
        "sequences": LIMITS | slopes | by_sequence,
        "mask": {"mask": blind_mask(), "bias": numbers(1, HEADS, 1, KEYS)} | sinks,
        "large sinks": {"mask": blind_mask(), "sinks": numbers(HEADS) + 1000.0},
    }


class Part:
    """What this rank holds of the keys."""

    def __init__(self, world: World, sizes: tuple[int, ...]) -> None:
        self.start = [0, *accumulate(sizes)][world.rank]
        self.columns = slice(self.start, self.start + sizes[world.rank])
        self.count = sizes[world.rank]

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The same arguments for these keys."""
        options = dict(options)
        for name in ("mask", "bias"):
            if name in options:
                options[name] = options[name][..., self.columns]
        if "key_lengths" in options:
            options["key_lengths"] = (options["key_lengths"] - self.start).clamp(0, self.count)
        return options


def check_case(name: str, world: World) -> Iterator[Found]:
    """Outputs, LSEs and gradients are those over all keys."""
    for sizes in SPLITS[world.ranks]:
        part, options = Part(world, sizes), cases()[name]
        given = {"query": numbers(BATCH, HEADS, QUERIES, HEAD_DIM), "key": numbers(BATCH, KV_HEADS, KEYS, HEAD_DIM)}
        given["value"] = numbers(BATCH, KV_HEADS, KEYS, VALUE_DIM)
        learnt = {name: options.pop(name) for name in ("bias", "sinks", "alibi_slopes") if name in options}
        leaves, whole_leaves = (
            {name: tensor.clone().requires_grad_() for name, tensor in (given | learnt).items()} for _ in range(2)
        )
        whole = attention_with_lse(**whole_leaves, **options)
        own = leaves | {name: leaves[name][:, :, part.columns] for name in ("key", "value")}
        joined = context_parallel_attention(**part.options(own | options), start=part.start)
        weighting = numbers(BATCH, HEADS, QUERIES, VALUE_DIM), numbers(BATCH, HEADS, QUERIES)
        for output, lse in (whole, joined):
            seen = lse > -torch.inf
            ((output * weighting[0]).sum() + (lse[seen] * weighting[1][seen]).sum()).backward()
        yield Found("output", joined.output, whole.output)
        yield Found("LSE", joined.lse, whole.lse, atol=1e-12 if name != "large sinks" else 1e-9)
        for leaf, tensor in leaves.items():
            expected, columns = whole_leaves[leaf].grad, {"key": 2, "value": 2, "bias": 3}.get(leaf)
            if columns is not None:  # of this rank's own keys
                inside = torch.zeros(KEYS, dtype=torch.bool)
                inside[part.columns] = True
                shape = [1] * 4
                shape[columns] = KEYS
                expected = expected * inside.view(shape)
            actual = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            yield Found(f"gradient of {leaf}", actual, expected)


def check_unread_memory(world: World) -> Iterator[Found]:
    """A rank whose keys nobody sees may hold NaN."""
    query, key, value = numbers(BATCH, HEADS, 1, HEAD_DIM), *(numbers(BATCH, KV_HEADS, KEYS, 7) for _ in range(2))
    far = world.rank < world.ranks - 1
    held = [tensor.masked_fill(torch.tensor(far), torch.nan) for tensor in (key, value)]
    options: dict[str, Any] = {"causal": True, "window": (3, 0)}
    leaf = query.clone().requires_grad_()
    joined = context_parallel_attention(leaf, *held, start=world.rank * KEYS, offset=world.ranks * KEYS - 1, **options)
    joined.output.sum().backward()
    alone = query.clone().requires_grad_()
    expected = attention_with_lse(alone, key, value, offset=KEYS - 1, **options)
    expected.output.sum().backward()
    yield Found("output", joined.output, expected.output)
    yield Found("LSE", joined.lse, expected.lse)
    yield Found("gradient of query", leaf.grad, alone.grad)


def check_decoding(world: World) -> Iterator[Found]:
    """A prompt is cut into caches of uneven length, and the last rank takes the new tokens."""
    prompt, new = 11, 5
    sizes = {2: (7, 4), 4: (6, 0, 5, 0)}[world.ranks]
    part, last = Part(world, sizes), world.rank == world.ranks - 1
    query, key, value = (numbers(BATCH, heads, prompt + new, 7) for heads in (HEADS, KV_HEADS, KV_HEADS))
    sinks = numbers(HEADS)
    cache = DenseCache(BATCH, KV_HEADS, part.count + new, 7, dtype=torch.float64)
    cache.append(key[:, :, part.columns], value[:, :, part.columns])
    for position in range(prompt, prompt + new):
        token = slice(position, position + 1)
        if last:
            cache.append(key[:, :, token], value[:, :, token])
        (held,) = cache.held()
        options: dict[str, Any] = {"causal": True, "window": WINDOWS, "sinks": sinks}
        given = query[:, :, token], held.keys, held.values
        joined = context_parallel_attention(
            *given, start=part.start, offset=position, key_lengths=held.key_lengths, **options
        )
        whole = attention_with_lse(
            query[:, :, token], key[:, :, : position + 1], value[:, :, : position + 1], **options
        )
        yield Found(f"output at {position}", joined.output, whole.output)
        yield Found(f"LSE at {position}", joined.lse, whole.lse)


def check_merge(world: World) -> Iterator[Found]:
    """The same as the merge of all parts in one process, in each dtype; an empty part may hold NaN."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        outputs = torch.randn(world.ranks, BATCH, HEADS, QUERIES, VALUE_DIM).to(dtype)
        lses = torch.randn(world.ranks, BATCH, HEADS, QUERIES).to(torch.promote_types(dtype, torch.float32)) * 5
        outputs[0, 0], lses[0, 0], lses[:, 1, 2, 3] = torch.nan, -torch.inf, -torch.inf
        sinks = torch.randn(HEADS)
        joined = merge_over_ranks(outputs[world.rank], lses[world.rank], sinks=sinks)
        exact = merge(outputs.double(), lses.double(), sinks=sinks.double())
        budget = merge(outputs, lses, sinks=sinks)
        for name in ("output", "lse"):
            actual, best, own = (getattr(result, name) for result in (joined, exact, budget))
            yield true(f"{name} keeps its type in {dtype}", actual.dtype == own.dtype)
            seen = ~best.isinf()
            allowed = 1e-12 if dtype == torch.float64 else 2 * float((own.double() - best)[seen].abs().max())
            yield Found(f"{name} in {dtype}", actual.double(), best, atol=allowed)
        gathered = [torch.empty_like(joined.lse) for _ in range(world.ranks)]
        distributed.all_gather(gathered, joined.lse)
        yield true("the same on every rank", all(torch.equal(joined.lse, other) for other in gathered))


def check_traffic(world: World) -> Iterator[Found]:
    """What is sent depends on the queries alone."""
    for keys in (3, 300):
        part = numbers(BATCH, HEADS, QUERIES, 7), *(numbers(BATCH, KV_HEADS, keys, 7) for _ in range(2))
        with mock.patch.object(distributed, "all_reduce", wraps=distributed.all_reduce) as reduced:
            context_parallel_attention(*part)
        sent = sum(call.args[0].numel() for call in reduced.call_args_list)
        yield true(f"numbers sent with {keys} keys", sent == BATCH * HEADS * QUERIES * (7 + 2))


def check_groups(world: World) -> Iterator[Found]:
    """The ranks of a group join their parts among themselves; a stranger is refused."""
    members = list(range(world.ranks - 1))
    group = distributed.new_group(members)
    output, lse = numbers(world.ranks, 1, 2, 3, 5), numbers(world.ranks, 1, 2, 3)
    own = output[world.rank], lse[world.rank]
    if world.rank in members:
        joined, expected = merge_over_ranks(*own, group=group), merge(output[members], lse[members])
        yield Found("output", joined.output, expected.output)
        yield Found("LSE", joined.lse, expected.lse)
        return
    try:
        merge_over_ranks(*own, group=group)
    except ValueError as error:
        message = f"group: expected one that rank {world.rank} belongs to, got another"
        yield true(f"refusal: {error}", str(error) == message)


def check_imports(world: World) -> Iterator[Found]:
    """Importing the layers doesn't load PyTorch's distributed tensors, which takes seconds."""
    yield true("loaded on first use", not LOADED_EARLY)


CHECKS: dict[str, Check] = {
    "imports": check_imports,
    **{f"keys on ranks, {name}": partial(check_case, name) for name in cases()},
    "unread memory": check_unread_memory,
    "decoding": check_decoding,
    "merge": check_merge,
    "traffic": check_traffic,
    "groups": check_groups,
}
