"""To and from ``torch.nn.MultiheadAttention``: the same outputs, weights and gradients, and honest refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.nn import GroupedQueryAttention, masks_from_torch
from tests.helpers.compare import assert_same

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 12, 4


def torch_module(**options: Any) -> nn.MultiheadAttention:
    module = nn.MultiheadAttention(WIDTH, HEADS, **({"batch_first": True} | options)).double()
    for parameter in module.parameters():  # its biases start at zero, which would hide them
        nn.init.normal_(parameter, std=0.5)
    return module


def torch_outputs(
    module: nn.MultiheadAttention, query: Tensor, context: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    return module(query, context, context, need_weights=True, average_attn_weights=False, **options)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("direction", ["from_torch", "to_torch"])
@pytest.mark.parametrize("masked", ["none", "causal", "per head", "padding", "float"])
def test_outputs_weights_and_gradients_are_equal(bias: bool, direction: str, masked: str) -> None:
    if direction == "from_torch":
        module = torch_module(bias=bias)
        layer = GroupedQueryAttention.from_torch(module)
    else:
        layer = GroupedQueryAttention(WIDTH, HEADS, bias=bias, dtype=torch.float64)
        module = layer.to_torch()
    ignored = {
        "none": {},
        "causal": {"attn_mask": torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)},
        "per head": {
            "attn_mask": (torch.rand(BATCH * HEADS, LENGTH, LENGTH) < 0.5) & ~torch.eye(LENGTH, dtype=torch.bool)
        },
        "padding": {"key_padding_mask": torch.tensor([[False] * 5, [False, False, False, True, True]])},
        "float": {
            "attn_mask": torch.randn(LENGTH, LENGTH, dtype=torch.float64),
            "key_padding_mask": torch.randn(BATCH, LENGTH, dtype=torch.float64),
        },
    }[masked]
    inputs = [torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64).requires_grad_()]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    expected = torch_outputs(module, inputs[0], inputs[0], **ignored)
    masks = masks_from_torch(**ignored, num_heads=HEADS)
    padding = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    actual = layer(inputs[1], mask=masks.mask, bias=masks.bias, query_mask=padding, need_weights=True)
    assert_same(actual.output, expected[0])
    assert_same(actual.weights, expected[1])
    upstream = [torch.randn_like(tensor) for tensor in expected]
    torch.autograd.backward(expected, upstream)
    torch.autograd.backward(list(actual), upstream)
    assert_same(gradient(inputs[1]), gradient(inputs[0]))
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    assert module.in_proj_weight is not None
    assert_same(torch.cat([gradient(part.weight) for part in projections]), gradient(module.in_proj_weight))
    assert_same(gradient(layer.o_proj.weight), gradient(module.out_proj.weight))
    if bias:
        assert_same(torch.cat([gradient(part.bias) for part in projections]), gradient(module.in_proj_bias))
        assert_same(gradient(layer.o_proj.bias), gradient(module.out_proj.bias))


def gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def test_causal_here_is_the_inverted_mask_there() -> None:
    module = torch_module()
    inputs = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    blocked = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    expected = torch_outputs(module, inputs, inputs, attn_mask=blocked)
    actual = GroupedQueryAttention.from_torch(module)(inputs, causal=True, need_weights=True)
    assert_same(actual.output, expected[0])
    assert_same(actual.weights, expected[1])


def test_cross_attention_and_length_first_modules() -> None:
    module = torch_module(batch_first=False)
    query = torch.randn(LENGTH, BATCH, WIDTH, dtype=torch.float64)
    context = torch.randn(7, BATCH, WIDTH, dtype=torch.float64)
    expected = torch_outputs(module, query, context)
    layer = GroupedQueryAttention.from_torch(module)
    actual = layer(query.transpose(0, 1), context.transpose(0, 1), need_weights=True)
    assert_same(actual.output.transpose(0, 1), expected[0])
    assert_same(actual.weights, expected[1])
    assert layer.to_torch(batch_first=False).batch_first is False
    assert_same(torch_outputs(layer.to_torch(batch_first=False), query, context)[0], expected[0])


def test_weights_are_copies_and_the_rest_is_kept() -> None:
    module = torch_module().eval()
    layer = GroupedQueryAttention.from_torch(module)
    again = layer.to_torch()
    assert not layer.training
    assert not again.training
    assert again.batch_first
    for name, parameter in module.named_parameters():
        twin = again.get_parameter(name)
        assert torch.equal(twin, parameter)
        assert twin.dtype == torch.float64
        assert twin.requires_grad
        assert twin.data_ptr() != parameter.data_ptr()
    with torch.no_grad():
        layer.q_proj.weight.zero_()
    assert module.in_proj_weight is not None
    assert module.in_proj_weight[:WIDTH].ne(0).all()


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "kdim": ({"kdim": 7}, "kdim=7 (keys of another width than 12)"),
    "vdim": ({"vdim": 7}, "vdim=7 (values of another width than 12)"),
    "add_bias_kv": ({"add_bias_kv": True}, "add_bias_kv=True (learned extra key and value)"),
    "add_zero_attn": ({"add_zero_attn": True}, "add_zero_attn=True (an extra key of zeros)"),
    "dropout": ({"dropout": 0.1}, "dropout=0.1 (dropout of attention weights)"),
}


@pytest.mark.parametrize(("options", "reason"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_the_layer_lacks_is_refused_by_name(options: dict[str, Any], reason: str) -> None:
    message = f"from_torch: {reason} is not supported by GroupedQueryAttention; build it without"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        GroupedQueryAttention.from_torch(nn.MultiheadAttention(WIDTH, HEADS, **options))


def test_only_multihead_attention_is_read() -> None:
    with pytest.raises(TypeError, match=r"^from_torch: expected a torch.nn.MultiheadAttention, got Linear$"):
        GroupedQueryAttention.from_torch(nn.Linear(3, 3))  # type: ignore[arg-type]


INEXPRESSIBLE: dict[str, tuple[tuple[int, ...], dict[str, Any], str]] = {
    "shared heads": ((12, 4, 2), {}, "4 query heads share 2 KV heads"),
    "widths": ((12, 4, 4, 5), {}, "4 heads of width 5 do not add up to embed_dim 12"),
    "biases": ((12, 4), {"out_bias": True}, "only some of its projections have a bias"),
}


@pytest.mark.parametrize(("sizes", "options", "reason"), INEXPRESSIBLE.values(), ids=INEXPRESSIBLE)
def test_what_pytorch_cannot_express_is_refused(sizes: tuple[int, ...], options: dict[str, Any], reason: str) -> None:
    message = f"to_torch: {reason}, which torch.nn.MultiheadAttention can't express; keep this layer"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        GroupedQueryAttention(*sizes, **options).to_torch()


def test_masks_are_turned_around() -> None:
    ignore = torch.tensor([[True, False, False], [False, True, False]])
    masks = masks_from_torch(ignore, num_heads=2)
    assert masks.bias is None
    assert masks.mask is not None
    assert torch.equal(masks.mask, ~ignore)
    padding = torch.tensor([[False, False, True]])
    both = masks_from_torch(ignore, padding, num_heads=2).mask
    assert both is not None
    assert both.int().tolist() == [[[[0, 1, 0], [1, 0, 0]]]]
    mixed = masks_from_torch(ignore.float(), padding, num_heads=2)
    assert mixed.mask is not None
    assert mixed.bias is not None
    assert torch.equal(mixed.bias, ignore.float())
    assert mixed.mask.shape == (1, 1, 1, 3)
    assert masks_from_torch(num_heads=2) == (None, None)


def test_masks_of_wrong_ranks_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^attn_mask: expected a first axis that 4 heads divide .* got 6 in \[6, 2, 3\]$"
    ):
        masks_from_torch(torch.zeros(6, 2, 3), num_heads=4)
    with pytest.raises(ValueError, match=r"^attn_mask: expected \[L, S\] or \[batch \* heads, L, S\], got \[3\]$"):
        masks_from_torch(torch.zeros(3), num_heads=4)
    with pytest.raises(ValueError, match=r"^key_padding_mask: expected \[batch, keys\], got \[3\]$"):
        masks_from_torch(None, torch.zeros(3), num_heads=4)
