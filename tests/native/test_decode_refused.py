"""What the native decode kernel refuses, before it touches memory, and the texts in which it does."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import native
from tests.native.decoding import ISAS, built

pytestmark = built

B, H, G, L, S, D, DV = 2, 6, 3, 1, 7, 5, 11


def arguments(**changed: Any) -> dict[str, Any]:
    """A call that is right, but for what is changed."""
    return {
        "query": torch.randn(B, H, L, D),
        "key": torch.randn(B, G, S, D),
        "value": torch.randn(B, G, S, DV),
        "output": torch.zeros(B, H, L, DV),
        "offsets": [0] * B,
        "scale": 1.0,
    } | changed


def refused_with(error: type[Exception], message: str, **changed: Any) -> None:
    given = arguments(**changed)
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        native.decode_attention(**given)
    if isinstance(given["output"], Tensor):
        assert not given["output"].any(), "output was written before the call was refused"


def test_the_call_is_right_without_a_change() -> None:
    given = arguments()
    native.decode_attention(**given)
    assert given["output"].all()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("query", (B, H, D), "query: expected [B, H, L, D], got [2, 6, 5]"),
        ("key", (B, G, S, D + 1), "key: expected [B, G, S, D] = [2, 3, 7, 5], got [2, 3, 7, 6]"),
        ("key", (B + 1, G, S, D), "key: expected [B, G, S, D] = [2, 3, 7, 5], got [3, 3, 7, 5]"),
        ("key", (B, 4, S, D), "key: expected a number of KV heads that divides the 6 query heads, got 4"),
        ("key", (B, 0, S, D), "key: expected a number of KV heads that divides the 6 query heads, got 0"),
        ("value", (B, G, S + 1, DV), "value: expected [B, G, S, Dv] = [2, 3, 7, 11], got [2, 3, 8, 11]"),
        ("output", (B, H, L, DV + 1), "output: expected [B, H, L, Dv] = [2, 6, 1, 11], got [2, 6, 1, 12]"),
        ("lse", (B, H), "lse: expected [B, H, L] = [2, 6, 1], got [2, 6]"),
        ("sinks", (H + 1,), "sinks: expected [H] = [6], got [7]"),
        ("slopes", (G, H), "slopes: expected [B, H] = [2, 6], got [3, 6]"),
        ("bias", (H, L, S + 1), "bias: expected a shape that broadcasts to [B, H, L, S] = [2, 6, 1, 7], got [6, 1, 8]"),
        (
            "bias",
            (1, B, H, L, S),
            "bias: expected a shape that broadcasts to [B, H, L, S] = [2, 6, 1, 7], got [1, 2, 6, 1, 7]",
        ),
    ],
)
def test_shapes(name: str, shape: tuple[int, ...], message: str) -> None:
    changed = {name: torch.zeros(shape)}
    if name == "key" and shape[1] in (0, 4):
        changed["value"] = torch.zeros(B, shape[1], S, DV)
    refused_with(ValueError, message, **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"offsets": [0]}, "offsets: expected B = 2 numbers, got 1"),
        ({"offsets": [0, 2**61]}, f"offsets: expected positions of at most 2^60, got {2**61}"),
        ({"key_lengths": [7]}, "key_lengths: expected B = 2 numbers, got 1"),
        ({"key_lengths": [7, 8]}, "key_lengths: expected lengths from 0 to S = 7, got 8"),
        ({"key_lengths": [-1, 7]}, "key_lengths: expected lengths from 0 to S = 7, got -1"),
        ({"left": [0] * 5}, "left: expected H = 6 numbers, got 5"),
        ({"right": [-2] * 6}, "right: expected numbers of keys, or -1 for all, got -2"),
        ({"scale": float("nan")}, "scale: expected a finite number, got nan"),
        ({"softcap": -1.0}, "softcap: expected a positive number, or 0 for none, got -1.000000"),
        ({"threads": 0}, "threads: expected at least 1, got 0"),
        (
            {"isa": "sse9"},
            "isa: expected one of the instruction sets that were built and that this processor has "
            f"({', '.join(ISAS)}), got sse9",
        ),
    ],
)
def test_numbers(changed: dict[str, Any], message: str) -> None:
    refused_with(ValueError, message, **changed)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("key", torch.zeros(B, G, S, D, dtype=torch.bfloat16), "key: expected float32, got bfloat16"),
        ("query", torch.zeros(B, H, L, D, dtype=torch.bool), "query: expected float32, bfloat16 or float16, got bool"),
        ("mask", torch.zeros(S), "mask: expected bool, got float32"),
        ("bias", torch.zeros(S, dtype=torch.bool), "bias: expected float32, bfloat16 or float16, got bool"),
        ("sinks", torch.zeros(H, dtype=torch.float16), "sinks: expected float32, got float16"),
        ("lse", torch.zeros(B, H, L, dtype=torch.bfloat16), "lse: expected float32, got bfloat16"),
    ],
)
def test_dtypes_that_do_not_fit(name: str, tensor: Tensor, message: str) -> None:
    refused_with(ValueError, message, **{name: tensor})


def test_a_dtype_that_no_kernel_knows() -> None:
    message = (
        "headwise.native: expected a tensor of one of float32, bfloat16, float16, bool, got torch.float64; "
        "convert it first"
    )
    refused_with(TypeError, message, query=torch.zeros(B, H, L, D, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "key",
            torch.zeros(B, G, D, S).transpose(2, 3),
            "key: expected a last axis with stride 1, got strides [105, 35, 1, 7]; call .contiguous() on it",
        ),
        (
            "output",
            torch.zeros(B, 1, L, DV).expand(B, H, L, DV),
            "output: expected elements that share no memory, got strides [11, 0, 11, 1]",
        ),
        (
            "sinks",
            torch.zeros(2 * H)[::2],
            "sinks: expected contiguous memory, got strides [2] for shape [6]",
        ),
        (
            "lse",
            torch.zeros(H, B, L).transpose(0, 1),
            "lse: expected contiguous memory, got strides [1, 2, 1] for shape [2, 6, 1]",
        ),
    ],
)
def test_strides(name: str, tensor: Tensor, message: str) -> None:
    refused_with(ValueError, message, **{name: tensor})


def described(**changed: Any) -> SimpleNamespace:
    """What passes for a float32 key, with things that no tensor of PyTorch would say."""
    key = torch.zeros(B, G, S, D)
    told = {"address": key.data_ptr(), "shape": tuple(key.shape), "strides": key.stride()} | changed
    return SimpleNamespace(
        device=torch.device("cpu"),
        dtype=torch.float32,
        shape=told["shape"],
        data_ptr=lambda: told["address"],
        stride=lambda: told["strides"],
        kept=key,
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"address": 0}, "key: expected a pointer to its memory, got none"),
        ({"address": 4098}, "key: expected memory aligned to its elements of 4 bytes, got another address"),
        ({"strides": (1, 1, 1)}, "key: expected as many strides as axes, got [1, 1, 1] for shape [2, 3, 7, 5]"),
        ({"shape": (B, G, -1, D)}, "key: expected sizes of 0 or more, got [2, 3, -1, 5]"),
    ],
)
def test_memory(changed: dict[str, Any], message: str) -> None:
    refused_with(ValueError, message, key=described(**changed))


def test_a_tensor_that_is_not_on_the_cpu() -> None:
    message = "query: expected a tensor on the CPU, got one on meta"
    refused_with(ValueError, message, query=torch.zeros(B, H, L, D, device="meta"))


def test_an_environment_variable_that_names_no_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWISE_ISA", "mmx")
    message = (
        "HEADWISE_ISA: expected one of the instruction sets that were built and that this processor has "
        f"({', '.join(ISAS)}), got mmx"
    )
    refused_with(ValueError, message)
    monkeypatch.setenv("HEADWISE_ISA", ISAS[0])
    native.decode_attention(**arguments())
