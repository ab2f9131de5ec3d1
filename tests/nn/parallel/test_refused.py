"""What can't be split, and what ranks can't do, is refused with a reason, before anything is changed or sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

import headwise.nn
from headwise.nn import (
    GroupedQueryAttention,
    HeadParallel,
    LatentAttention,
    context_parallel_attention,
    local_kv_heads,
    merge_over_ranks,
    tensor_parallel_plan,
)
from tests.helpers.compare import assert_same


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A world of one rank."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def grouped(heads: int, kv_heads: int, **options: Any) -> GroupedQueryAttention:
    return GroupedQueryAttention(7, heads, kv_heads, 5, **options)


def latent(heads: int) -> LatentAttention:
    return LatentAttention(7, heads, latent_dim=11, nope_head_dim=3, rope_head_dim=2, value_head_dim=5)


REFUSED: dict[str, tuple[nn.Module, int, str]] = {
    "query heads": (
        grouped(12, 4),
        8,
        "GroupedQueryAttention: expected ranks that divide num_heads 12, got 8; use one of 1, 2, 4, 12 ranks",
    ),
    "KV heads": (
        grouped(12, 4),
        3,
        "GroupedQueryAttention: expected ranks that divide num_kv_heads 4, or that it divides, got 3; use one of 1, 2, "
        "4, 12 ranks",
    ),
    "more ranks than KV heads": (
        nn.Sequential(grouped(6, 3), nn.ModuleDict({"inner": grouped(12, 4)})),
        6,
        "GroupedQueryAttention 1.inner: expected ranks that divide num_kv_heads 4, or that it divides, got 6; use one "
        "of 1, 2, 4, 12 ranks",
    ),
    "one KV head": (
        grouped(6, 1),
        4,
        "GroupedQueryAttention: expected ranks that divide num_heads 6, got 4; use one of 1, 2, 3, 6 ranks",
    ),
    "latent": (
        latent(9),
        2,
        "LatentAttention: expected ranks that divide num_heads 9, got 2; use one of 1, 3, 9 ranks",
    ),
    "no ranks": (
        latent(3),
        0,
        "LatentAttention: expected ranks that divide num_heads 3, got 0; use one of 1, 3 ranks",
    ),
    "no layer": (
        nn.Linear(3, 5),
        2,
        "tensor_parallel_plan: expected GroupedQueryAttention or LatentAttention layers, got Linear without one",
    ),
}


@pytest.mark.parametrize(("module", "ranks", "message"), REFUSED.values(), ids=REFUSED)
def test_heads_that_cannot_be_split_are_refused(module: nn.Module, ranks: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tensor_parallel_plan(module, ranks)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "possible"),
    [
        (12, 4, [1, 2, 4, 12]),
        (12, 12, [1, 2, 3, 4, 6, 12]),
        (12, 2, [1, 2, 4, 6, 12]),
        (28, 4, [1, 2, 4, 28]),
        (71, 1, [1, 71]),
    ],
)
def test_all_other_head_counts_are_split(heads: int, kv_heads: int, possible: list[int]) -> None:
    layer = grouped(heads, kv_heads)
    for ranks in range(1, heads + 1):
        if ranks in possible:
            assert list(tensor_parallel_plan(layer, ranks)) == [""]
        else:
            with pytest.raises(ValueError, match=r"expected ranks that divide"):
                tensor_parallel_plan(layer, ranks)


def test_a_layer_is_split_once_and_over_one_dimension(mesh: DeviceMesh) -> None:
    layer = grouped(6, 3, sinks=True)
    square = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "heads"))
    message = 'HeadParallel: expected a mesh of one dimension, got 2; pass one of them, mesh["name"]'
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parallelize_module(layer, square, tensor_parallel_plan(layer, 1))
    assert layer.local_heads is None
    assert not any(isinstance(parameter, DTensor) for parameter in layer.parameters())
    parallelize_module(layer, square["heads"], tensor_parallel_plan(layer, 1))
    assert all(isinstance(parameter, DTensor) for parameter in layer.parameters())
    with pytest.raises(ValueError, match=r"^GroupedQueryAttention: expected a layer that isn't split, got one that "):
        parallelize_module(layer, mesh, HeadParallel())
    message = (
        "HeadParallel: expected a GroupedQueryAttention or LatentAttention, got Linear; tensor_parallel_plan finds the "
        "layers of a model"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        parallelize_module(nn.Linear(3, 5), mesh, HeadParallel())


def test_no_tokens_are_refused(mesh: DeviceMesh) -> None:
    layer = parallelize_module(latent(2), mesh, HeadParallel())
    message = (
        "hidden: expected at least one token in a layer split over ranks, got [2, 0, 7]; PyTorch multiplies no empty "
        "distributed tensors, so leave the call out on every rank"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layer(torch.zeros(2, 0, 7))


def test_kv_heads_of_a_rank_are_those_that_its_query_heads_read() -> None:
    layer = grouped(12, 4)
    assert local_kv_heads(layer) == range(4)
    for heads, kv_heads in ((range(6), range(2)), (range(6, 12), range(2, 4)), (range(4, 5), range(1, 2))):
        layer.local_heads = heads
        assert local_kv_heads(layer) == kv_heads


def tensors(keys: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ones(2, 4, 3, 7), torch.ones(2, 2, keys, 7), torch.ones(2, 2, keys, 11)


CONTEXT: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    **{
        name: (
            ValueError,
            options,
            "offset: expected the absolute position of the first query with causal, window or alibi_slopes, got None; "
            "a rank doesn't know how many keys the others hold",
        )
        for name, options in {
            "causal": {"causal": True},
            "window": {"window": (1, 1)},
            "slopes": {"alibi_slopes": torch.ones(4)},
        }.items()
    },
    "start": (
        TypeError,
        {"offset": 3, "start": 1.0},
        "start: expected an integer or a LongTensor [2], got float",
    ),
    "starts": (
        ValueError,
        {"offset": 3, "start": torch.ones(3, dtype=torch.long)},
        "start: expected shape [2], one number per sequence, got [3]",
    ),
    "offset": (
        TypeError,
        {"offset": True},
        "offset: expected an integer or a LongTensor [2], got bool",
    ),
    "sinks": (
        ValueError,
        {"sinks": torch.ones(3)},
        "sinks: expected shape [4], one number per query head, got [3]",
    ),
}


@pytest.mark.parametrize(("error", "options", "message"), CONTEXT.values(), ids=CONTEXT)
@pytest.mark.usefixtures("mesh")
def test_what_ranks_could_not_place_is_refused(error: type[Exception], options: dict[str, Any], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        context_parallel_attention(*tensors(), **options)


@pytest.mark.usefixtures("mesh")
def test_shapes_are_refused_before_ranks_wait() -> None:
    with pytest.raises(
        ValueError, match=r"^merge_over_ranks: expected output \[B, H, L, Dv\] and LSE \[B, H, L\], got "
    ):
        merge_over_ranks(torch.ones(2, 4, 3, 7), torch.ones(2, 4, 5))
    query, key, value = tensors()
    with pytest.raises(ValueError, match=r"^query: expected 4 axes"):
        context_parallel_attention(query[0], key, value)


@pytest.mark.usefixtures("mesh")
def test_a_second_derivative_is_refused() -> None:
    query, key, value = (tensor.double().requires_grad_() for tensor in tensors())
    output, _ = context_parallel_attention(query, key, value)
    (gradient,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable"):
        gradient.sum().backward()


def test_without_a_group_there_is_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "is_initialized", lambda: False)
    message = (
        ": expected a process group, got none; start with torchrun and call torch.distributed.init_process_group first"
    )
    with pytest.raises(RuntimeError, match=f"^context_parallel_attention{re.escape(message)}$"):
        context_parallel_attention(*tensors())
    with pytest.raises(RuntimeError, match=f"^merge_over_ranks{re.escape(message)}$"):
        merge_over_ranks(torch.ones(2, 4, 3, 7), torch.ones(2, 4, 3))


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    assert {"HeadParallel", "local_kv_heads", "tensor_parallel_plan"} <= set(dir(headwise.nn))
    message = f"module 'headwise.nn' has no attribute 'HeadParalel'; it offers {', '.join(headwise.nn.__all__)}"
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        headwise.nn.HeadParalel  # noqa: B018


def test_one_rank_is_one_process(mesh: DeviceMesh) -> None:
    """A script that is started without torchrun's other ranks gives the same."""
    layer, hidden = grouped(6, 3).double(), torch.randn(2, 3, 7, dtype=torch.float64)
    expected = layer(hidden, causal=True).output
    assert_same(parallelize_module(layer, mesh, HeadParallel())(hidden, causal=True).output, expected)
