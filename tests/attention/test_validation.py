"""Wrong arguments are refused at the public door by a message that says who, what was expected, what came."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from headwise.attention import attention, attention_weights, attention_with_lse
from headwise.attention.reference import reference_attention

B, H, G, L, S, D = 2, 6, 3, 5, 7, 11


def tensors(**changed: Any) -> dict[str, Any]:
    return {
        "query": torch.zeros(B, H, L, D),
        "key": torch.zeros(B, G, S, D),
        "value": torch.zeros(B, G, S, D),
    } | changed


SHAPES = {
    "three axes": (
        {"query": torch.zeros(B, L, D)},
        "query: expected 4 axes [batch, heads, length, head_dim], got 3 in [2, 5, 11]; "
        "add the missing axis or transpose heads before length",
    ),
    "batch": (
        {"key": torch.zeros(3, G, S, D)},
        "key: expected batch 2 as in query [2, 6, 5, 11], got 3 in [3, 3, 7, 11]; expand the smaller one",
    ),
    "heads": (
        {"query": torch.zeros(B, 7, L, D)},
        "query: expected a head count that 3 KV heads divide, got 7; query head h reads KV head "
        "h // (heads / KV heads), so every KV head must serve equally many",
    ),
    "no heads": (
        {"query": torch.zeros(B, 0, L, D)},
        "query, key: expected at least one head each, got 0 query and 3 KV heads",
    ),
    "width": (
        {"key": torch.zeros(B, G, S, 13)},
        "key: expected head_dim 11 as in query [2, 6, 5, 11], got 13 in [2, 3, 7, 13]; "
        "query and key must share their width (only value may differ)",
    ),
    "no width": (
        {"query": torch.zeros(B, H, L, 0), "key": torch.zeros(B, G, S, 0)},
        "query: expected a positive head_dim, got [2, 6, 5, 0]; the last axis is head_dim",
    ),
    "value": (
        {"value": torch.zeros(B, G, 8, D)},
        "value: expected [batch, KV heads, length] = [2, 3, 7] as in key, got [2, 3, 8] in [2, 3, 8, 11]; "
        "key and value come in pairs",
    ),
    "device": (
        {"key": torch.zeros(B, G, S, D, device="meta")},
        "key: expected device cpu as in query, got meta; move it with .to(...)",
    ),
    "padding mask": (
        {"mask": torch.ones(B, S, dtype=torch.bool)},
        "mask: expected a shape that broadcasts to [batch, heads, queries, keys] = [2, 6, 5, 7], got [2, 7]; "
        "one of [batch, keys] is passed as mask[:, None, None, :], one of [batch, queries, keys] as mask[:, None]",
    ),
    "five axes": (
        {"bias": torch.zeros(1, 1, 1, 1, 1)},
        "bias: expected a shape that broadcasts to [batch, heads, queries, keys] = [2, 6, 5, 7], got [1, 1, 1, 1, 1]; "
        "one of [batch, keys] is passed as bias[:, None, None, :], one of [batch, queries, keys] as bias[:, None]",
    ),
    "sinks": (
        {"sinks": torch.zeros(G)},
        "sinks: expected shape [6], one number per query head, got [3]",
    ),
    "slopes": (
        {"alibi_slopes": torch.zeros(H, B)},
        "alibi_slopes: expected shape [6] or [2, 6], one number per query head, got [6, 2]",
    ),
    "lengths": ({"key_lengths": [3]}, "key_lengths: expected shape [2], one number per sequence, got [1]"),
    "long lengths": (
        {"key_lengths": torch.tensor([3, 8])},
        "key_lengths: expected numbers from 0 to 7 (the key length), got [3, 8]; "
        "it counts the leading keys that are held, new ones included",
    ),
    "offset": ({"offset": torch.tensor([1, 2, 3])}, "offset: expected shape [2], one number per sequence, got [3]"),
    "window bound": (
        {"window": (-1, 0)},
        "window: expected bounds of 0 or more, got (-1, 0); a query always sees its own key, and None means unbounded",
    ),
    "windows": (
        {"window": [(1, 0), None, None]},
        "window: expected one (left, right) or 6 of them, one per query head, got 3: [(1, 0), None, None]",
    ),
    "softcap": (
        {"softcap": 0.0},
        "softcap: expected a positive number, got 0.0; leave it None for no soft-cap",
    ),
    "scale": ({"scale": float("nan")}, "scale: expected a finite number, got nan"),
    "backend": ({"backend": "magic"}, "backend: expected None or one of 'native', 'sdpa', 'math', got 'magic'"),
}

TYPES = {
    "no tensor": ({"query": [1.0]}, "query: expected a torch.Tensor, got list; convert it first"),
    "integers": (
        {"query": torch.zeros(B, H, L, D, dtype=torch.int64)},
        "query: expected one of float16, bfloat16, float32, float64, got torch.int64; cast it with .to(...)",
    ),
    "two dtypes": (
        {"value": torch.zeros(B, G, S, D, dtype=torch.float64)},
        "value: expected dtype torch.float32 as in query, got torch.float64; cast one of them",
    ),
    "additive mask": (
        {"mask": torch.zeros(L, S)},
        "mask: expected dtype torch.bool (True = may attend), got torch.float32; "
        "pass numbers that are added to the scores as bias=",
    ),
    "boolean bias": (
        {"bias": torch.zeros(L, S, dtype=torch.bool)},
        "bias: expected a floating dtype, got torch.bool; pass a boolean mask (True = may attend) as mask=",
    ),
    "mask as list": ({"mask": [True]}, "mask: expected a bool tensor (True = may attend), got list"),
    "bias as number": ({"bias": 1.0}, "bias: expected a floating tensor, got float"),
    "integer sinks": (
        {"sinks": torch.zeros(H, dtype=torch.int64)},
        "sinks: expected a floating tensor with one number per query head, got torch.int64",
    ),
    "float lengths": (
        {"key_lengths": [3.0, 4.0]},
        "key_lengths: expected integers, got torch.float32; cast with .long()",
    ),
    "offset": ({"offset": 1.5}, "offset: expected an integer, a LongTensor [2] or None, got float"),
    "window as number": (
        {"window": 4},
        "window: expected None, (left, right) or one of those per head, got int; a window of the last 5 keys is (4, 0)",
    ),
    "floats as window": (
        {"window": (2.0, 0)},
        "window: expected whole numbers or None in (left, right), got (2.0, 0)",
    ),
    "float window": (
        {"window": [(1.0, 0)] * H},
        "window: expected whole numbers or None in (left, right), got (1.0, 0)",
    ),
    "number among windows": ({"window": [4] * H}, "window: expected (left, right) or None, got 4"),
    "scale as text": ({"scale": "big"}, "scale: expected a number or None, got str"),
    "no value": (
        {"value": None},
        "value: expected a torch.Tensor, got NoneType; for weights alone call attention_weights",
    ),
}


@pytest.mark.parametrize(("changed", "message"), SHAPES.values(), ids=SHAPES)
def test_what_does_not_fit_is_a_value_error(changed: dict[str, Any], message: str) -> None:
    for operation in (attention, attention_with_lse):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            operation(**tensors(**changed))


@pytest.mark.parametrize(("changed", "message"), TYPES.values(), ids=TYPES)
def test_what_has_the_wrong_type_is_a_type_error(changed: dict[str, Any], message: str) -> None:
    for operation in (attention, attention_with_lse):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            operation(**tensors(**changed))


def test_weights_check_the_same() -> None:
    with pytest.raises(ValueError, match=r"^key: expected batch 2"):
        attention_weights(torch.zeros(B, H, L, D), torch.zeros(1, G, S, D))


def test_reference_refuses_options_that_it_does_not_know() -> None:
    with pytest.raises(
        TypeError, match=r"^reference_attention: no option is called causl; there are mask, bias, causal"
    ):
        reference_attention(**tensors(), causl=True)
