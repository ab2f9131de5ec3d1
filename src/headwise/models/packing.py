"""How architectures pack the projections of their heads: reading them out, and writing other numbers of heads back.

Every packing is a pair of functions on the attention module (and the module that holds its output projection).

Symbols: H query heads, G KV heads, D head dim, E model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.models.head_weights import HeadWeights

__all__ = ["PACKINGS", "Packing"]


@dataclass(frozen=True)
class Packing:
    """One way of packing.

    Attributes:
        name: what to call it.
        read: takes the attention module, the module that holds the output projection, and the width of a head.
        write: takes the same modules and new weights; gives both modules new projections.
        shares: whether it can hold fewer KV heads than query heads.
    """

    name: str
    read: Callable[[Any, Any, int], HeadWeights]
    write: Callable[[Any, Any, HeadWeights], None]
    shares: bool = True


def _rows(weight: Tensor, head_dim: int) -> Tensor:
    return weight.unflatten(0, (-1, head_dim))


def _bias(linear: Any, head_dim: int) -> Tensor | None:
    return None if linear.bias is None else linear.bias.unflatten(0, (-1, head_dim))


def _columns(weight: Tensor, head_dim: int) -> Tensor:
    """``[E, H D]`` to ``[H, E, D]``."""
    return weight.unflatten(1, (-1, head_dim)).transpose(0, 1)


def _output(weights: HeadWeights) -> Tensor:
    """``[H, E, Dv]`` to ``[E, H Dv]``."""
    return weights.output.transpose(0, 1).flatten(1)


def _flat(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.flatten()


def _linear(weight: Tensor, bias: Tensor | None, like: Any) -> nn.Linear:
    """A linear layer with these weights, of the dtype, device and trainability of another one."""
    old = like.weight
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None:
            kept = tensor.detach().to(dtype=old.dtype, device=old.device).contiguous().clone()
            setattr(made, name, nn.Parameter(kept, requires_grad=old.requires_grad))
    return made.train(like.training)


def _separate(names: str, output: str, *, shares: bool = True) -> Packing:
    """Four linear layers."""
    names_of_parts = names.split()

    def read(module: Any, outer: Any, head_dim: int) -> HeadWeights:
        parts = [getattr(module, name) for name in names_of_parts]
        last = getattr(outer, output)
        query, key, value = (_rows(part.weight, head_dim) for part in parts)
        q_bias, k_bias, v_bias = (_bias(part, head_dim) for part in parts)
        return HeadWeights(query, key, value, _columns(last.weight, head_dim), q_bias, k_bias, v_bias, last.bias)

    def write(module: Any, outer: Any, weights: HeadWeights) -> None:
        parts = weights.query, weights.key, weights.value
        biases = weights.query_bias, weights.key_bias, weights.value_bias
        for name, part, bias in zip(names_of_parts, parts, biases, strict=True):
            setattr(module, name, _linear(part.flatten(0, 1), _flat(bias), getattr(module, name)))
        setattr(outer, output, _linear(_output(weights), weights.output_bias, getattr(outer, output)))

    return Packing("four projections" if shares else "four projections, a key for every query", read, write, shares)


def _packed_rows(module: Any, outer: Any, head_dim: int) -> HeadWeights:
    """Phi-3: rows of all queries, then all keys, then all values."""
    rows = _rows(module.qkv_proj.weight, head_dim)
    heads = outer.o_proj.weight.shape[1] // head_dim
    kv_heads = (len(rows) - heads) // 2
    query, key, value = rows.split([heads, kv_heads, kv_heads])
    return HeadWeights(query, key, value, _columns(outer.o_proj.weight, head_dim))


def _pack_rows(module: Any, outer: Any, weights: HeadWeights) -> None:
    rows = torch.cat([weights.query, weights.key, weights.value]).flatten(0, 1)
    module.qkv_proj = _linear(rows, None, module.qkv_proj)
    outer.o_proj = _linear(_output(weights), None, outer.o_proj)


def _interleaved(module: Any, outer: Any, head_dim: int) -> HeadWeights:
    """GPT-NeoX: query, key and value of head 0, then those of head 1, and so on."""
    packed = module.query_key_value
    query, key, value = packed.weight.unflatten(0, (-1, 3, head_dim)).unbind(1)
    biases = (None,) * 3 if packed.bias is None else packed.bias.unflatten(0, (-1, 3, head_dim)).unbind(1)
    q_bias, k_bias, v_bias = biases
    output = _columns(outer.dense.weight, head_dim)
    return HeadWeights(query, key, value, output, q_bias, k_bias, v_bias, outer.dense.bias)


def _interleave(module: Any, outer: Any, weights: HeadWeights) -> None:
    rows = torch.stack([weights.query, weights.key, weights.value], 1).flatten(0, 2)
    bias = None
    if weights.query_bias is not None:
        assert weights.key_bias is not None
        assert weights.value_bias is not None
        bias = torch.stack([weights.query_bias, weights.key_bias, weights.value_bias], 1).flatten()
    module.query_key_value = _linear(rows, bias, module.query_key_value)
    outer.dense = _linear(_output(weights), weights.output_bias, outer.dense)


def _transposed(module: Any, outer: Any, head_dim: int) -> HeadWeights:
    """GPT-2: one ``[E, 3 H D]`` for inputs from the left, all queries, then all keys, then all values."""
    query, key, value = (_rows(part, head_dim) for part in module.c_attn.weight.T.chunk(3))
    q_bias, k_bias, v_bias = (part.unflatten(0, (-1, head_dim)) for part in module.c_attn.bias.chunk(3))
    output = _columns(outer.c_proj.weight.T, head_dim)
    return HeadWeights(query, key, value, output, q_bias, k_bias, v_bias, outer.c_proj.bias)


def _transpose(module: Any, outer: Any, weights: HeadWeights) -> None:
    rows = torch.cat([weights.query, weights.key, weights.value]).flatten(0, 1)
    assert weights.query_bias is not None
    assert weights.key_bias is not None
    assert weights.value_bias is not None
    bias = torch.cat([weights.query_bias, weights.key_bias, weights.value_bias]).flatten()
    module.c_attn = _conv(rows, bias, module.c_attn)
    assert weights.output_bias is not None
    outer.c_proj = _conv(_output(weights), weights.output_bias, outer.c_proj)
    module.split_size = weights.num_heads * weights.query.shape[1]


def _conv(weight: Tensor, bias: Tensor, like: Any) -> Any:
    """transformers' Conv1D, which is a linear layer with its weight the other way round."""
    from transformers.pytorch_utils import Conv1D

    source = _linear(weight, bias, like)
    made = Conv1D(weight.shape[0], weight.shape[1])
    made.weight = nn.Parameter(source.weight.detach().T.contiguous(), requires_grad=like.weight.requires_grad)
    made.bias = source.bias
    return made.train(like.training)


_FOUR = _separate("q_proj k_proj v_proj", "o_proj")

PACKINGS: dict[str, Packing] = {
    "bert": _separate("query key value", "dense", shares=False),
    "gemma2": _FOUR,
    "gpt2": Packing("one projection, all queries first, transposed", _transposed, _transpose, shares=False),
    "gpt_neox": Packing("one projection, head by head", _interleaved, _interleave, shares=False),
    "llama": _FOUR,
    "mistral": _FOUR,
    "phi3": Packing("one projection, all queries first", _packed_rows, _pack_rows),
    "qwen2": _FOUR,
    "qwen3": _FOUR,
}
