"""ONNX Runtime's own kernel for grouped heads, ``com.microsoft.GroupQueryAttention`` on the CPU, as a live judge.

It has no float64, so the two are held against each other by their errors: headwise in float64 stands for the exact
result, and headwise in float32 or float16 may be at most twice as far from it as ONNX Runtime is. ONNX Runtime in turn
may be at most ten times as far as headwise: its kernels differ between processors (without AVX-512 its rotation errs
2.1 times as much as ours), but had one of them another meaning, that one would be thousands of times as far.

How it counts: always causal; ``seqlens_k`` is the number of keys less one; ``local_window_size`` w means w keys, the
own one included, that is ``window=(w - 1, 0)``; past and present lie in buffers that may be longer than what is held;
``smooth_softmax`` is a sink of logit 0 for each head, ``head_sink`` one logit per head.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``G`` KV heads, ``D`` head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor

from headwise.attention import attention
from headwise.cache import DenseCache, attend
from headwise.nn.rope import RotaryEmbedding, Rotation
from tests.helpers.compare import assert_same
from tests.peers.onnx_cases import join_heads, split_heads

# In the order of the operator's inputs.
INPUTS = (
    "query key value past_key past_value seqlens_k total_sequence_length cos_cache sin_cache position_ids "
    "attention_bias head_sink"
).split()
OUTPUTS = ["output", "present_key", "present_value"]
TYPES = {torch.float32: TensorProto.FLOAT, torch.float16: TensorProto.FLOAT16, torch.int32: TensorProto.INT32}

HEADS, KV_HEADS, HEAD_DIM = 9, 3, 16
SCALE = float(np.float32(0.3))  # attributes are float32

# What is asked of ONNX Runtime (attributes), and the same for headwise. True stands for random numbers that are an
# input of both; the sinks of a smooth softmax are 0.
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "scale": ({"scale": SCALE}, {"scale": SCALE}),
    "softcap": ({"softcap": 2.0}, {"softcap": 2.0}),
    "window": ({"local_window_size": 3}, {"window": (2, None)}),
    "smooth": ({"smooth_softmax": 1}, {"sinks": False}),
    "sinks": ({}, {"sinks": True}),
    "bias": ({}, {"bias": True}),
    "all": (
        {"scale": SCALE, "softcap": 2.0, "local_window_size": 3},
        {"scale": SCALE, "softcap": 2.0, "window": (2, None), "sinks": True, "bias": True},
    ),
}


def run_onnxruntime(tensors: dict[str, Tensor], heads: int, kv_heads: int, **attributes: Any) -> tuple[Tensor, ...]:
    """Output ``[B, H, L, D]``, present keys and present values ``[B, G, buffer, D]`` of a model of this one node."""
    tensors = tensors | {"total_sequence_length": (tensors["seqlens_k"].max() + 1).int()}
    named = [name if name in tensors else "" for name in INPUTS]
    sizes = {"num_heads": heads, "kv_num_heads": kv_heads}
    node = helper.make_node("GroupQueryAttention", named, OUTPUTS, domain="com.microsoft", **sizes, **attributes)
    given = [
        helper.make_tensor_value_info(name, TYPES[tensors[name].dtype], None) for name in INPUTS if name in tensors
    ]
    made = [helper.make_tensor_value_info(name, TYPES[tensors["query"].dtype], None) for name in OUTPUTS]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "judge", given, made), opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    output, *present = session.run(None, {name: tensor.numpy() for name, tensor in tensors.items()})
    return split_heads(torch.from_numpy(output), heads), *map(torch.from_numpy, present)


def assert_err_alike(theirs: Tensor, ours: Callable[[torch.dtype], Tensor]) -> None:
    """Both are about as far from headwise in float64, as said above; errors are root mean squares."""
    exact, own = ours(torch.float64), ours(theirs.dtype)
    assert own.dtype == theirs.dtype
    our_error, their_error = (float((result.double() - exact).square().mean().sqrt()) for result in (own, theirs))
    assert 0 < our_error <= 2 * their_error, f"headwise errs by {our_error:.3g}, ONNX Runtime by {their_error:.3g}"
    assert their_error <= 10 * our_error, f"headwise errs by {our_error:.3g}, ONNX Runtime by {their_error:.3g}"


class Tokens:
    """Random queries, keys and values of some tokens, and what a feature needs beside them."""

    def __init__(self, dtype: torch.dtype, batch: int, length: int, keys: int, heads: int, kv_heads: int) -> None:
        self.dtype, self.heads, self.kv_heads = dtype, heads, kv_heads
        self.query = torch.randn(batch, heads, length, HEAD_DIM).to(dtype)
        self.key, self.value = (torch.randn(batch, kv_heads, length, HEAD_DIM).to(dtype) for _ in range(2))
        self.bias, self.sinks = torch.randn(batch, heads, length, keys).to(dtype), torch.randn(heads).to(dtype)

    def judged(self, lengths: list[int], feature: str, **more: Tensor) -> tuple[Tensor, ...]:
        """What ONNX Runtime makes of it; ``lengths`` of all keys of each sequence, new ones included."""
        attributes, options = FEATURES[feature]
        tensors = {name: join_heads(getattr(self, name)) for name in ("query", "key", "value")}
        tensors["seqlens_k"] = torch.tensor(lengths, dtype=torch.int32) - 1
        if options.get("bias"):
            tensors["attention_bias"] = self.bias
        if options.get("sinks"):
            tensors["head_sink"] = self.sinks
        return run_onnxruntime(tensors | more, self.heads, self.kv_heads, **attributes)

    def options(self, feature: str, dtype: torch.dtype) -> dict[str, Any]:
        """The same feature for headwise."""
        options = dict(FEATURES[feature][1])
        if "bias" in options:
            options["bias"] = self.bias.to(dtype)
        if "sinks" in options:
            options["sinks"] = self.sinks.to(dtype) * options["sinks"]
        return options


def real(tensor: Tensor, lengths: list[int]) -> Tensor:
    """The first ``lengths[b]`` tokens of each sequence of ``[B, heads, L, D]``, one after the other."""
    return torch.cat([sequence[:, :length] for sequence, length in zip(tensor, lengths, strict=True)], 1)


def poisoned(tensor: Tensor, lengths: list[int]) -> Tensor:
    """A copy with NaN behind the first ``lengths[b]`` tokens of each sequence of ``[B, heads, L, D]``."""
    copy = tensor.clone()
    for sequence, length in zip(copy, lengths, strict=True):
        sequence[:, length:] = torch.nan
    return copy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("feature", FEATURES)
def test_prompts_padded_on_the_right(feature: str, dtype: torch.dtype) -> None:
    lengths = [7, 4]
    tokens = Tokens(dtype, 2, 7, 7, HEADS, KV_HEADS)
    theirs, keys, values = tokens.judged(lengths, feature)
    assert_same(real(keys, lengths), real(tokens.key, lengths), atol=0.0)
    assert_same(real(values, lengths), real(tokens.value, lengths), atol=0.0)

    def ours(dtype: torch.dtype) -> Tensor:
        key, value = (poisoned(tensor, lengths).to(dtype) for tensor in (tokens.key, tokens.value))
        options = tokens.options(feature, dtype)
        output = attention(tokens.query.to(dtype), key, value, causal=True, offset=0, key_lengths=lengths, **options)
        return real(output, lengths)

    assert_err_alike(real(theirs, lengths), ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("feature", FEATURES)
def test_decoding_behind_prompts_of_different_lengths(feature: str, dtype: torch.dtype) -> None:
    check_decoding(feature, dtype, past=[7, 1, 4], new=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("feature", FEATURES)
def test_several_new_tokens_behind_a_prompt(feature: str, dtype: torch.dtype) -> None:
    check_decoding(feature, dtype, past=[6], new=3)


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (12, 2), (28, 4), (71, 1), (65, 5), (7, 7)])
@pytest.mark.parametrize("feature", ["plain", "all"])
def test_head_layouts(heads: int, kv_heads: int, feature: str) -> None:
    check_decoding(feature, torch.float32, past=[5, 2], new=1, heads=heads, kv_heads=kv_heads)


def check_decoding(
    feature: str, dtype: torch.dtype, past: list[int], new: int, heads: int = HEADS, kv_heads: int = KV_HEADS
) -> None:
    """New tokens behind held ones: headwise's cache, and buffers of 11 tokens that are NaN where nothing is held."""
    batch, buffer, total = len(past), 11, [length + new for length in past]
    tokens = Tokens(dtype, batch, new, max(total), heads, kv_heads)
    held = [torch.randn(batch, kv_heads, buffer, HEAD_DIM).to(dtype) for _ in range(2)]
    buffers = {f"past_{kind}": poisoned(tensor, past) for kind, tensor in zip(("key", "value"), held, strict=True)}
    theirs, *present = tokens.judged(total, feature, **buffers)

    def ours(dtype: torch.dtype) -> Tensor:
        cache = DenseCache(batch, kv_heads, buffer, HEAD_DIM, dtype=dtype)
        cache.append(*(tensor.to(dtype) for tensor in held), lengths=past)
        parts = cache.append(tokens.key.to(dtype), tokens.value.to(dtype))
        if dtype == theirs.dtype:
            for actual, expected in zip((cache.keys, cache.values), present, strict=True):
                assert_same(real(actual, total), real(expected, total), atol=0.0)
        return attend(tokens.query.to(dtype), parts, causal=True, **tokens.options(feature, dtype))

    assert_err_alike(theirs, ours)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_local_window_counts_the_own_key(size: int) -> None:
    """``local_window_size`` 3 is what Hugging Face calls a sliding window of 3: two keys before the own one."""
    tokens = Tokens(torch.float32, 1, 7, 7, HEADS, KV_HEADS)
    tensors = {name: join_heads(getattr(tokens, name)) for name in ("query", "key", "value")}
    tensors["seqlens_k"] = torch.tensor([6], dtype=torch.int32)
    theirs, *_ = run_onnxruntime(tensors, HEADS, KV_HEADS, local_window_size=size)

    def ours(left: int) -> Callable[[torch.dtype], Tensor]:
        operands = (tokens.query, tokens.key, tokens.value)
        return lambda dtype: attention(*(tensor.to(dtype) for tensor in operands), causal=True, window=(left, None))

    assert_err_alike(theirs, ours(size - 1))
    for left in (size - 2, size):
        with pytest.raises(AssertionError, match="ONNX Runtime by"):
            assert_err_alike(theirs, ours(left))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [48, 16])
@pytest.mark.parametrize(("past", "new"), [([0, 0], 5), ([7, 3], 1), ([6], 3)])
def test_rotary(dtype: torch.dtype, interleaved: bool, rotary_dim: int, past: list[int], new: int) -> None:
    """Keys are turned before they are stored, from position 0 of each sequence on."""
    rotary = RotaryEmbedding(48, rotary_dim=rotary_dim, interleaved=interleaved)
    # Its kernel reads cosines and sines from tables, of half precision for half types.
    tables = Rotation(*(table.to(dtype) for table in rotary.rotation(torch.arange(23), dtype)))
    batch, buffer, total = len(past), 11, [length + new for length in past]
    query = torch.randn(batch, HEADS, new, 48).to(dtype)
    fresh = [torch.randn(batch, KV_HEADS, new, 48).to(dtype) for _ in range(2)]
    held = [torch.randn(batch, KV_HEADS, buffer, 48).to(dtype) for _ in range(2)]
    tensors = dict(zip(("query", "key", "value"), map(join_heads, (query, *fresh)), strict=True))
    tensors["seqlens_k"] = torch.tensor(total, dtype=torch.int32) - 1
    tensors |= {"cos_cache": tables.cosine[0, 0], "sin_cache": tables.sine[0, 0]}
    if any(past):
        tensors |= {"past_key": poisoned(held[0], past), "past_value": poisoned(held[1], past)}
    theirs, *_ = run_onnxruntime(tensors, HEADS, KV_HEADS, do_rotary=1, rotary_interleaved=int(interleaved))
    positions = torch.tensor(past)[:, None] + torch.arange(new)  # [B, L]

    def ours(dtype: torch.dtype) -> Tensor:
        precision = torch.promote_types(dtype, torch.float32)
        rotation = Rotation(*(table[0, :, positions].transpose(0, 1).to(precision) for table in tables))
        cache = DenseCache(batch, KV_HEADS, buffer, 48, dtype=dtype)
        cache.append(*(tensor.to(dtype) for tensor in held), lengths=past)
        parts = cache.append(rotary.rotate(fresh[0].to(dtype), rotation), fresh[1].to(dtype))
        return attend(rotary.rotate(query.to(dtype), rotation), parts, causal=True)

    assert_err_alike(theirs, ours)
