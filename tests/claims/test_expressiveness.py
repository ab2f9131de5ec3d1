"""Claims of docs/claims/expressiveness.md: what a causal mask takes away, what it leaves, and what sharing takes."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from headwise.attention import attention, attention_weights
from headwise.nn import GroupedQueryAttention

F64 = torch.float64
VOCABULARY, LENGTH = 3, 5


class Stack(nn.Module):
    """Causal layers with maps of single positions between them: any depth, any weights."""

    def __init__(self, depth: int, width: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GroupedQueryAttention(width, 3, dtype=F64) for _ in range(depth))
        self.maps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 17), nn.ReLU(), nn.Linear(17, width))
            for _ in range(depth)
        ).double()

    def forward(self, hidden: Tensor, causal: bool) -> Tensor:
        for layer, each in zip(self.layers, self.maps, strict=True):
            hidden = hidden + layer(hidden, causal=causal).output
            hidden = hidden + each(hidden)
        return hidden


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_causal_model_answers_for_a_token_it_has_not_seen(depth: int) -> None:
    """f(x_0, x_1) = (x_1, x_1): inputs that agree in x_0 want different answers at 0, and get the same."""
    model, tokens = Stack(depth), torch.randn(2, 12, dtype=F64)
    inputs = torch.stack([tokens[[0, 0]], tokens[[0, 1]]])
    causal, full = model(inputs, True), model(inputs, False)
    assert torch.allclose(causal[0, 0], causal[1, 0], rtol=0, atol=1e-12)
    assert (causal[0, 1] - causal[1, 1]).abs().max() > 1e-3
    assert (full[0, 0] - full[1, 0]).abs().max() > 1e-3


def test_one_head_without_a_mask_computes_what_no_causal_model_can() -> None:
    """Both positions ask for position 1: the witness function itself, for all of its inputs."""
    query = torch.tensor([[0.0, 900], [0, 900]], dtype=F64)[None, None]
    for first, second in product((-1.0, 1.0), repeat=2):
        tokens = torch.tensor([first, second], dtype=F64)[None, None, :, None]
        output = attention(query, torch.eye(2, dtype=F64)[None, None], tokens, scale=1.0)[0, 0, :, 0]
        assert output.tolist() == [second, second]


def test_a_quarter_of_all_functions_of_two_bits_are_prefix_functions() -> None:
    """(Bits out) to the power of (inputs told apart): 2^(4 + 4) functions, of which 2^(2 + 4)."""
    inputs = list(product((0, 1), repeat=2))
    functions = list(product(product((0, 1), repeat=2), repeat=len(inputs)))
    causal = 0
    for function in functions:
        by_prefix: dict[tuple[int, ...], set[int]] = {}
        for given, told in zip(inputs, function, strict=True):
            for place in range(2):
                by_prefix.setdefault(given[: place + 1], set()).add(told[place])
        causal += all(len(answers) == 1 for answers in by_prefix.values())
    assert (len(functions), causal) == (2**8, 2**6)


@pytest.mark.parametrize("depth", [1, 3])
def test_output_i_is_a_function_of_tokens_up_to_i(depth: int) -> None:
    model, inputs = Stack(depth), torch.randn(2, 7, 12, dtype=F64)
    before = model(inputs, True)
    for place in range(6):
        changed = inputs.clone()
        changed[:, place + 1 :] = torch.randn(2, 6 - place, 12, dtype=F64) * 50
        after = model(changed, True)
        assert torch.allclose(after[:, : place + 1], before[:, : place + 1], rtol=0, atol=1e-12)
        assert (after[:, place + 1 :] - before[:, place + 1 :]).abs().amax(-1).min() > 1e-3


def encoded(tokens: Tensor) -> Tensor:
    """The pair (place, token) one-hot, ``[B, L, LENGTH * VOCABULARY]``."""
    places = torch.arange(tokens.shape[1])
    return nn.functional.one_hot(places * VOCABULARY + tokens, LENGTH * VOCABULARY).double()


def averaging_layer() -> GroupedQueryAttention:
    """One causal head whose scores are all 0 and whose values are its inputs: the mean over the prefix."""
    width = LENGTH * VOCABULARY
    layer = GroupedQueryAttention(width, 1, dtype=F64)
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj):
            projection.weight.zero_()
        for projection in (layer.v_proj, layer.o_proj):
            projection.weight.copy_(torch.eye(width))
    return layer


def prefixes() -> list[tuple[int, ...]]:
    return [prefix for length in range(1, LENGTH + 1) for prefix in product(range(VOCABULARY), repeat=length)]


def lookup(answers: dict[tuple[int, ...], Tensor]) -> nn.Sequential:
    """A hidden unit for each prefix s of k tokens: relu(k (mean . pairs of s + [place = k - 1] - 2) + 1)."""
    width, known = LENGTH * VOCABULARY, list(answers)
    first = nn.Linear(2 * width, len(known), dtype=F64)
    second = nn.Linear(len(known), next(iter(answers.values())).numel(), bias=False, dtype=F64)
    with torch.no_grad():
        first.weight.zero_()
        for unit, prefix in enumerate(known):
            size = len(prefix)
            for place, token in enumerate(prefix):
                first.weight[unit, place * VOCABULARY + token] = size  # of the mean
            own = width + (size - 1) * VOCABULARY
            first.weight[unit, own : own + VOCABULARY] = size  # of the token itself: where it stands
            first.bias[unit] = 1 - 2 * size
            second.weight[:, unit] = answers[prefix]
    return nn.Sequential(first, nn.ReLU(), second)


def test_one_causal_head_and_one_hidden_layer_give_any_prefix_function() -> None:
    """Random answers for each of the 363 prefixes of up to 5 of 3 tokens, and all 243 sequences at all places."""
    answers = {prefix: torch.randn(2, dtype=F64) for prefix in prefixes()}
    assert len(answers) == sum(VOCABULARY**size for size in range(1, LENGTH + 1)) == 363
    layer, mlp = averaging_layer(), lookup(answers)
    sequences = torch.tensor(list(product(range(VOCABULARY), repeat=LENGTH)))
    tokens = encoded(sequences)
    mean = layer(tokens, causal=True).output
    output = mlp(torch.cat([mean, tokens], -1))
    checked = 0
    for sequence, told in zip(sequences.tolist(), output, strict=True):
        for place in range(LENGTH):
            assert torch.allclose(told[place], answers[tuple(sequence[: place + 1])], atol=1e-9)
            checked += 1
    assert checked == 243 * 5


def test_means_of_tagged_tokens_tell_all_prefixes_apart() -> None:
    """And without the places they don't: 01 and 10 have the same mean."""
    sequences = torch.tensor(list(product(range(VOCABULARY), repeat=LENGTH)))
    mean = averaging_layer()(encoded(sequences), causal=True).output.flatten(0, 1)
    assert len({tuple(each) for each in mean.round(decimals=9).tolist()}) == len(prefixes())
    bags = mean.unflatten(-1, (LENGTH, VOCABULARY)).sum(1)
    assert len({tuple(each) for each in bags.round(decimals=9).tolist()}) < len(prefixes())


def test_the_lower_triangle_of_full_attention_is_not_the_answer() -> None:
    """A = L + U holds, but A V = L V + U V, and what U V adds cannot be had from L in any way."""
    query, key, value = (torch.randn(1, 1, 7, 5, dtype=F64) for _ in range(3))
    full = attention_weights(query, key)[0, 0]
    lower, upper = full.tril(), full.triu(1)
    assert torch.equal(lower + upper, full)
    wanted, kept = attention(query, key, value)[0, 0], lower @ value[0, 0]
    assert torch.allclose(wanted - kept, upper @ value[0, 0], atol=1e-12)
    assert (wanted - kept)[:-1].abs().amax(-1).min() > 1e-3
    assert torch.allclose(wanted[-1], kept[-1], atol=1e-12)  # the last query loses nothing
    # Nor is L what a causal softmax computes: its rows have to be divided by what is left of them.
    causal = attention_weights(query, key, causal=True)[0, 0]
    assert (causal - lower)[:-1].abs().amax(-1).min() > 1e-3
    assert torch.allclose(causal, lower / lower.sum(-1, keepdim=True), atol=1e-12)


def test_whatever_its_scores_the_first_output_of_a_causal_head_is_the_first_value() -> None:
    value = torch.randn(1, 1, 7, 5, dtype=F64)
    for _ in range(17):
        query, key = torch.randn(2, 1, 1, 7, 5, dtype=F64).unbind(0)
        assert torch.equal(attention(query, key, value, causal=True)[0, 0, 0], value[0, 0, 0])
        assert (attention(query, key, value)[0, 0, 0] - value[0, 0, 0]).abs().max() > 1e-3


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (6, 3), (6, 2), (6, 1), (5, 1)])
def test_on_a_single_token_a_layer_has_the_rank_of_its_values(heads: int, kv_heads: int) -> None:
    """One token attends to itself, so the layer is the linear map W_O (repeated W_V): rank G d_h, whatever the rest."""
    width = heads * 3
    layer = GroupedQueryAttention(width, heads, kv_heads, dtype=F64)
    outputs = layer(torch.eye(width, dtype=F64)[:, None]).output[:, 0]
    assert torch.linalg.matrix_rank(outputs) == kv_heads * 3


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_what_shared_heads_compute_all_heads_can(kv_heads: int) -> None:
    shared = GroupedQueryAttention(18, 6, kv_heads, dtype=F64)
    own = GroupedQueryAttention(18, 6, dtype=F64)
    state = shared.state_dict()
    for name in ("k_proj.weight", "v_proj.weight"):
        state[name] = state[name].unflatten(0, (kv_heads, 3)).repeat_interleave(6 // kv_heads, 0).flatten(0, 1)
    own.load_state_dict(state)
    inputs = torch.randn(2, 7, 18, dtype=F64)
    assert torch.allclose(own(inputs, causal=True).output, shared(inputs, causal=True).output, atol=1e-12)
