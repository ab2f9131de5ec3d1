"""Claims of docs/claims/projections.md: what the four matrices hold, and in which order their numbers lie."""

from __future__ import annotations

from itertools import product
from math import gcd

import pytest
import torch
from torch import Tensor, nn

from headwise.layout import HeadLayout
from headwise.nn import GroupedQueryAttention
from headwise.plan import plan

BATCH, LENGTH, HEADS, DIM = 2, 5, 3, 7
WIDTH = HEADS * DIM


def made(heads: int = HEADS, kv_heads: int | None = None, **options: object) -> GroupedQueryAttention:
    return GroupedQueryAttention(WIDTH, heads, kv_heads, dtype=torch.float64, **options)  # type: ignore[arg-type]


def hidden(length: int = LENGTH) -> Tensor:
    return torch.randn(BATCH, length, WIDTH, dtype=torch.float64)


def numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("bias", [False, True])
def test_the_count_of_parameters_has_no_h_in_it(bias: bool) -> None:
    """Each of the four matrices is d by d whatever the number of heads, with d more numbers for a bias."""
    counted = {numbers(GroupedQueryAttention(64, heads, bias=bias)) for heads in (1, 2, 4, 8, 16, 32, 64)}
    outside = 4 * sum(parameter.numel() for parameter in nn.Linear(64, 64, bias=bias).parameters())
    assert counted == {outside} == {16_640 if bias else 16_384}
    torchs = nn.MultiheadAttention(64, 8, bias=bias)
    assert numbers(torchs) == outside


@pytest.mark.parametrize("heads", [2, 3, 8])
def test_heads_of_full_width_hold_h_times_as_much(heads: int) -> None:
    width = 8 * heads
    narrow = GroupedQueryAttention(width, heads)
    wide = GroupedQueryAttention(width, heads, head_dim=width)
    assert numbers(wide) == heads * numbers(narrow) == 4 * heads * width**2
    # Queries, keys and values alone leave out the matrix behind the heads, a quarter of either.
    assert numbers(wide) - numbers(wide.o_proj) == 3 * heads * width**2
    assert numbers(narrow) - numbers(narrow.o_proj) == 3 * width**2


def test_the_same_numbers_split_otherwise_compute_otherwise() -> None:
    """Equal weights, equal shapes outside, other outputs, and another number of softmaxes."""
    inputs, outputs, softmaxes = hidden(), {}, {}
    weights = made(1).state_dict()
    for heads in (1, 3, 7):
        module = made(heads)
        module.load_state_dict(weights)
        result = module(inputs, need_weights=True)
        outputs[heads], softmaxes[heads] = result.output, result.weights.numel() // LENGTH
    for one, other in ((1, 3), (1, 7), (3, 7)):
        assert outputs[one].shape == outputs[other].shape
        assert (outputs[one] - outputs[other]).abs().max() > 1e-3
        assert softmaxes[other] * one == softmaxes[one] * other


@pytest.mark.parametrize(("length", "heads"), [(5, 3), (7, 4), (13, 5), (9, 5), (1, 3), (5, 1)])
def test_where_the_wrong_reshape_takes_its_numbers_from(length: int, heads: int) -> None:
    """Entry [h, t] of the wrong tensor is head (hT + t) mod H of token (hT + t) div H."""
    tokens = torch.arange(length * heads * DIM).reshape(1, length, heads * DIM)
    right = tokens.unflatten(-1, (heads, DIM)).transpose(1, 2)[0]
    wrong = tokens.reshape(1, heads, length, DIM)[0]
    assert wrong.shape == right.shape
    staying = 0
    for head, token in product(range(heads), range(length)):
        source, other = divmod(head * length + token, heads)
        assert torch.equal(wrong[head, token], right[other, source])
        staying += torch.equal(wrong[head, token], right[head, token])
    if length == 1 or heads == 1:
        assert staying == length * heads
    else:
        assert staying == gcd(length - 1, heads - 1) + 1 < length * heads


def test_the_wrong_reshape_lets_tokens_into_heads_that_are_not_theirs() -> None:
    """With it, what should be head 0 of every token is made of the first tokens only."""
    tokens = torch.arange(LENGTH).repeat_interleave(WIDTH).reshape(1, LENGTH, WIDTH)  # every number names its token
    assert set(tokens.unflatten(-1, (HEADS, DIM)).transpose(1, 2)[0, 0].flatten().tolist()) == set(range(LENGTH))
    assert set(tokens.reshape(1, HEADS, LENGTH, DIM)[0, 0].flatten().tolist()) == {0, 1}


def test_the_shapes_of_width_512_and_eight_heads() -> None:
    layer = GroupedQueryAttention(512, 8)
    seen: list[tuple[int, ...]] = []
    layer.q_proj.register_forward_hook(lambda module, given, result: seen.append(tuple(result.shape)))
    result = layer(torch.randn(2, 5, 512), need_weights=True)
    assert layer.head_dim == 64
    assert seen == [(2, 5, 512)]
    assert layer.project_context(torch.randn(2, 5, 512)).key.shape == (2, 8, 5, 64)
    assert result.weights.shape == (2, 8, 5, 5)
    assert torch.allclose(result.weights.sum(-1), torch.ones(2, 8, 5))  # the last axis, that of the keys
    assert not torch.allclose(result.weights.sum(-2), torch.ones(2, 8, 5))
    assert result.output.shape == (2, 5, 512)


@pytest.mark.parametrize("head", range(HEADS))
def test_a_head_reads_every_input_feature(head: int) -> None:
    """The derivative of one head's queries by the input has no column of zeros; a slice of the input would have."""
    layer, inputs = made(), hidden(1).requires_grad_()
    rows = slice(head * DIM, (head + 1) * DIM)
    (slope,) = torch.autograd.grad(layer.q_proj(inputs)[..., rows].square().sum(), inputs)
    assert (slope != 0).all()
    assert torch.linalg.matrix_rank(layer.q_proj.weight[rows]) == DIM  # and what it sees of them has d_h dimensions


def test_a_transposed_tensor_can_be_viewed_as_long_as_its_strides_allow_it() -> None:
    heads = hidden().unflatten(-1, (HEADS, DIM)).transpose(1, 2)  # [B, H, T, D], not contiguous
    assert not heads.is_contiguous()
    halves = torch.randn(BATCH, HEADS, LENGTH, 6).transpose(1, 2).view(BATCH, LENGTH, HEADS, 2, 3)
    assert halves.shape == (2, 5, 3, 2, 3)  # an axis may be split
    merged = heads.transpose(1, 2)
    assert merged.view(BATCH, LENGTH, WIDTH).data_ptr() == heads.data_ptr()  # transposed back it merges without a copy
    computed = heads.contiguous().transpose(1, 2)  # as it comes out of a product of matrices
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        computed.view(BATCH, LENGTH, WIDTH)
    for copied in (computed.reshape(BATCH, LENGTH, WIDTH), computed.contiguous().view(BATCH, LENGTH, WIDTH)):
        assert torch.equal(copied, merged.flatten(2))
        assert copied.data_ptr() != computed.data_ptr()
    for tokens, count in ((1, HEADS), (LENGTH, 1)):  # one token or one head: nothing to interleave, so a view will do
        legal = torch.randn(BATCH, count, tokens, DIM).transpose(1, 2)
        assert legal.reshape(BATCH, tokens, count * DIM).data_ptr() == legal.data_ptr()


def test_packed_and_separate_projections_are_the_same_function() -> None:
    """And PyTorch's packed matrix is the three one upon the other, along the axis of its outputs."""
    layer, inputs = made(bias=True), hidden()
    torchs = layer.to_torch()
    packed = torchs.in_proj_weight
    assert torch.equal(packed, torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight], 0))
    assert layer.q_proj.weight.shape == (WIDTH, WIDTH)
    assert GroupedQueryAttention(WIDTH, HEADS, 1).k_proj.weight.shape == (DIM, WIDTH)  # [output, input]
    one, three = nn.functional.linear(inputs, packed, torchs.in_proj_bias), (layer.q_proj, layer.k_proj, layer.v_proj)
    assert torch.allclose(one, torch.cat([each(inputs) for each in three], -1), atol=1e-14)
    assert torch.allclose(torchs(inputs, inputs, inputs)[0], layer(inputs).output, atol=1e-12)


def test_a_matmul_for_each_head_gives_the_same() -> None:
    """By PyTorch alone, one head after the other, each with slices of the matrices."""
    layer, inputs, total = made(), hidden(), torch.zeros(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        rows = slice(head * DIM, (head + 1) * DIM)
        query, key, value = (inputs @ each.weight[rows].T for each in (layer.q_proj, layer.k_proj, layer.v_proj))
        mixed = torch.softmax(query @ key.mT / DIM**0.5, -1) @ value
        total += mixed @ layer.o_proj.weight[:, rows].T  # its own block of the output matrix, into common coordinates
    assert torch.allclose(total, layer(inputs).output, atol=1e-12)


def test_the_output_is_a_sum_over_heads_and_an_average_only_by_choice() -> None:
    layer, inputs = made(), hidden()
    parts = []
    for head in range(HEADS):
        alone = made()
        alone.load_state_dict(layer.state_dict())
        with torch.no_grad():
            kept = torch.zeros(WIDTH, dtype=torch.bool)
            kept[head * DIM : (head + 1) * DIM] = True
            alone.o_proj.weight[:, ~kept] = 0
        parts.append(alone(inputs).output)
    assert torch.allclose(sum(parts), layer(inputs).output, atol=1e-12)
    assert (sum(parts) / HEADS - layer(inputs).output).abs().max() > 1e-3
    with torch.no_grad():  # identity matrices over h, side by side: only then it averages
        layer.o_proj.weight[:DIM] = torch.eye(DIM, dtype=torch.float64).repeat(1, HEADS) / HEADS
    heads = []
    layer.o_proj.register_forward_pre_hook(lambda module, given: heads.append(given[0]))
    averaged = layer(inputs).output[..., :DIM]
    assert torch.allclose(averaged, heads[0].unflatten(-1, (HEADS, DIM)).mean(-2), atol=1e-12)


def test_the_output_projection_moves_nothing_between_positions() -> None:
    layer, features = made(), hidden()
    changed = features.clone()
    changed[:, 2] += 1
    moved = (layer.o_proj(changed) - layer.o_proj(features)).abs().amax((0, 2))
    assert [bool(each) for each in moved > 0] == [False, False, True, False, False]


def test_a_later_matrix_can_do_the_work_of_the_output_projection() -> None:
    layer, inputs, after = made(), hidden(), nn.Linear(WIDTH, 11, dtype=torch.float64)
    folded = nn.Linear(WIDTH, 11, dtype=torch.float64)
    bare = made()
    bare.load_state_dict(layer.state_dict())
    with torch.no_grad():
        folded.weight.copy_(after.weight @ layer.o_proj.weight)
        folded.bias.copy_(after.bias)
        bare.o_proj.weight.copy_(torch.eye(WIDTH))  # which is: none
    assert torch.allclose(folded(bare(inputs).output), after(layer(inputs).output), atol=1e-12)
    # With the input added in between, as transformers do, the sum is what is read, and the fold is another function.
    assert (folded(inputs + bare(inputs).output) - after(inputs + layer(inputs).output)).abs().max() > 1e-2


@pytest.mark.parametrize("sizes", [(12, 0, 1), (12, 3, 0), (13, 3, 1), (12, 3, 2)])
def test_sizes_that_do_not_divide_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        GroupedQueryAttention(*sizes)


def test_widths_of_heads_need_not_add_up_to_the_model_width() -> None:
    """Only query heads by KV heads has to divide. Gemma 2B and Qwen3 choose widths of their own."""
    assert GroupedQueryAttention(13, 6, 2, head_dim=5)(torch.randn(1, 3, 13)).output.shape == (1, 3, 13)
    with pytest.raises(ValueError, match="multiple of num_kv_heads"):
        HeadLayout(6, 4, 5)
    gemma = {"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8}
    told = plan(gemma | {"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096}, context=1)
    assert told.parameters.by_name["query"] == 26 * 2304 * 2048 != 26 * 2304 * 2304
