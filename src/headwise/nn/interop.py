"""The way to and from ``torch.nn.MultiheadAttention``: its packed weights and its inverted masks.

PyTorch's module packs the query, key and value projections along the output rows of ``in_proj_weight`` ``[3E, E]``, in
that order, and its boolean masks say True = *ignore*. Only this file knows that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from headwise.nn.grouped import GroupedQueryAttention


class TorchMasks(NamedTuple):
    """Masks in the convention of this library.

    Attributes:
        mask: booleans that broadcast to ``[B, H, L, S]``, True = may attend; None where nothing is hidden.
        bias: floats that broadcast to ``[B, H, L, S]``; None where PyTorch's masks were boolean.
    """

    mask: Tensor | None
    bias: Tensor | None


def masks_from_torch(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, num_heads: int
) -> TorchMasks:
    """Turn the masks of ``torch.nn.MultiheadAttention`` (True = ignore, or floats that are added) around.

    Args:
        attn_mask: ``[L, S]`` or ``[B * H, L, S]``, boolean or floating.
        key_padding_mask: ``[B, S]``, boolean or floating.
        num_heads: ``H``.

    Raises:
        ValueError: a rank doesn't fit, or the first axis isn't divisible by ``H``.
    """
    if attn_mask is not None and attn_mask.dim() == 3:
        if attn_mask.shape[0] % num_heads:
            raise ValueError(
                f"attn_mask: expected a first axis that {num_heads} heads divide (batch times heads), got "
                f"{attn_mask.shape[0]} in {list(attn_mask.shape)}"
            )
        attn_mask = attn_mask.unflatten(0, (-1, num_heads))  # [B, H, L, S]
    elif attn_mask is not None and attn_mask.dim() != 2:
        raise ValueError(f"attn_mask: expected [L, S] or [batch * heads, L, S], got {list(attn_mask.shape)}")
    if key_padding_mask is not None:
        if key_padding_mask.dim() != 2:
            raise ValueError(f"key_padding_mask: expected [batch, keys], got {list(key_padding_mask.shape)}")
        key_padding_mask = key_padding_mask[:, None, None, :]
    given = [tensor for tensor in (attn_mask, key_padding_mask) if tensor is not None]
    ignored = [tensor for tensor in given if tensor.dtype == torch.bool]
    added = [tensor for tensor in given if tensor.dtype != torch.bool]
    return TorchMasks(
        mask=~(ignored[0] | ignored[-1]) if ignored else None,
        bias=sum(added[1:], added[0]) if added else None,
    )


def refuse_unsupported(module: nn.MultiheadAttention) -> None:
    """Refuse what a module can do and this library's layer can't, by its name.

    Raises:
        TypeError: it is no ``torch.nn.MultiheadAttention``.
        ValueError: it uses ``kdim``, ``vdim``, ``add_bias_kv``, ``add_zero_attn`` or ``dropout``.
    """
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(f"from_torch: expected a torch.nn.MultiheadAttention, got {type(module).__name__}")
    reasons = {
        f"kdim={module.kdim} (keys of another width than {module.embed_dim})": module.kdim != module.embed_dim,
        f"vdim={module.vdim} (values of another width than {module.embed_dim})": module.vdim != module.embed_dim,
        "add_bias_kv=True (learned extra key and value)": module.bias_k is not None,
        "add_zero_attn=True (an extra key of zeros)": module.add_zero_attn,
        f"dropout={module.dropout} (dropout of attention weights)": module.dropout > 0,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"from_torch: {reason} is not supported by GroupedQueryAttention; build it without")


def read_torch(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """The state of a ``GroupedQueryAttention`` (``q_proj.weight``, ...) that computes what ``module`` computes."""
    state = {"o_proj.weight": module.out_proj.weight.detach()}
    assert module.in_proj_weight is not None  # there unless kdim or vdim differ, which was refused
    rows = zip("qkv", module.in_proj_weight.detach().chunk(3), strict=True)
    state.update({f"{name}_proj.weight": weight for name, weight in rows})
    if module.in_proj_bias is not None:
        biases = zip("qkv", module.in_proj_bias.detach().chunk(3), strict=True)
        state.update({f"{name}_proj.bias": bias for name, bias in biases})
        state["o_proj.bias"] = module.out_proj.bias.detach()
    return state


def make_torch(layer: GroupedQueryAttention, reasons: Mapping[str, bool], batch_first: bool) -> nn.MultiheadAttention:
    """The module that computes what ``layer`` computes, unless a reason against that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"to_torch: {reason}, which torch.nn.MultiheadAttention can't express; keep this layer")
    weight, biased = layer.o_proj.weight, layer.o_proj.bias is not None
    module = nn.MultiheadAttention(
        layer.embed_dim,
        layer.num_heads,
        bias=biased,
        batch_first=batch_first,
        device=weight.device,
        dtype=weight.dtype,
    )
    write_torch(module, layer.state_dict())
    return module.train(layer.training)


@torch.no_grad()
def write_torch(module: nn.MultiheadAttention, state: dict[str, Tensor]) -> None:
    """The inverse of :func:`read_torch`: copy the state of a ``GroupedQueryAttention`` into ``module``."""
    assert module.in_proj_weight is not None
    module.in_proj_weight.copy_(torch.cat([state[f"{name}_proj.weight"] for name in "qkv"]))
    module.out_proj.weight.copy_(state["o_proj.weight"])
    if module.in_proj_bias is not None:
        module.in_proj_bias.copy_(torch.cat([state[f"{name}_proj.bias"] for name in "qkv"]))
        module.out_proj.bias.copy_(state["o_proj.bias"])
