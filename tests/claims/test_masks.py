"""Claims of docs/claims/masks.md: who sees whom, what a wrong mask lets through, and how much of it."""

from __future__ import annotations

from fractions import Fraction
from math import exp, log

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from headwise.attention import attention, attention_weights
from headwise.cache import DenseCache
from headwise.nn import GroupedQueryAttention, masks_from_torch
from tests.attention.test_worked_example import SCORES, WEIGHTS

F64 = torch.float64
BATCH, LENGTH, HEADS, DIM = 2, 7, 3, 5
WIDTH = HEADS * DIM


def made(kv_heads: int = HEADS) -> GroupedQueryAttention:
    return GroupedQueryAttention(WIDTH, HEADS, kv_heads, dtype=F64)


def hidden(length: int = LENGTH) -> Tensor:
    return torch.randn(BATCH, length, WIDTH, dtype=F64)


def above(length: int) -> Tensor:
    """True where a key is later than the query."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def weights_of(scores: Tensor, **options: object) -> Tensor:
    unit = torch.eye(scores.shape[1], dtype=F64)[None, None]
    return attention_weights(scores[None, None], unit, scale=1.0, **options)[0, 0]  # type: ignore[arg-type]


def test_minus_infinity_strictly_above_the_diagonal_is_causal_attention() -> None:
    scores = torch.randn(LENGTH, LENGTH, dtype=F64)
    filled = scores.masked_fill(above(LENGTH), -torch.inf).softmax(-1)
    assert torch.allclose(weights_of(scores, causal=True), filled, atol=1e-14)
    with_diagonal = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(0), -torch.inf)
    assert with_diagonal.softmax(-1)[0].isnan().all()  # the diagonal has to stay: the first token sees itself alone


def test_weights_are_lower_triangular_and_rows_still_sum_to_one() -> None:
    weights = attention_weights(torch.randn(2, 6, 11, 5), torch.randn(2, 3, 11, 5), causal=True)
    assert torch.equal(weights, weights.tril())
    assert torch.allclose(weights.sum(-1), torch.ones(2, 6, 11))
    assert (weights[..., 0, 0] == 1).all()
    printed = torch.tensor([[1, 0, 0, 0], [0.35, 0.65, 0, 0], [0.2, 0.3, 0.5, 0], [0.15, 0.25, 0.2, 0.4]], dtype=F64)
    assert torch.allclose(weights_of(printed.log().nan_to_num(neginf=0.0), causal=True), printed, atol=1e-12)


@pytest.mark.parametrize("length", [4, 7, 13])
def test_zero_instead_of_minus_infinity_leaks_half_where_scores_are_zero(length: int) -> None:
    """Row i of T gives (T - 1 - i) / T to what it must not see: on the average (T - 1) / 2T."""
    leaked = weights_of(torch.zeros(length, length, dtype=F64)).masked_fill(~above(length), 0).sum(-1)
    for row in range(length):
        assert leaked[row] == pytest.approx(float(Fraction(length - 1 - row, length)), abs=1e-14)
    assert leaked.mean() == pytest.approx(float(Fraction(length - 1, 2 * length)), abs=1e-14)


def test_what_zeros_leak_in_the_printed_example() -> None:
    """m / (m + sum of exp of the visible scores) for m masked keys: 30.4, 46.9, 13.6 and 0 %."""
    leaked = weights_of(SCORES.masked_fill(above(4), 0.0)).masked_fill(~above(4), 0).sum(-1)
    for row, masked in enumerate((3, 2, 1, 0)):
        seen = sum(exp(float(score)) for score in SCORES[row, : row + 1])
        assert leaked[row] == pytest.approx(masked / (masked + seen), abs=1e-12)
    assert [round(100 * float(each), 1) for each in leaked] == [30.4, 46.9, 13.6, 0.0]


def test_zeroing_weights_after_the_softmax_still_tells_of_the_future() -> None:
    """Through the denominator: the visible weights move with scores that are masked afterwards."""
    scores = torch.randn(LENGTH, LENGTH, dtype=F64)
    changed = scores.clone()
    changed[0, LENGTH - 1] += 3
    before, after = (each.softmax(-1).tril() for each in (scores, changed))
    assert (before[0, 0] - after[0, 0]).abs() > 1e-3
    assert before[0].sum() < 1
    assert torch.equal(weights_of(scores, causal=True)[0], weights_of(changed, causal=True)[0])


def test_the_printed_weights_are_those_of_the_printed_scores() -> None:
    """By plain exponentials, to the four decimals that rounded scores allow."""
    for row in range(4):
        terms = [exp(float(score)) for score in SCORES[row, : row + 1]]
        for place, term in enumerate(terms):
            assert term / sum(terms) == pytest.approx(float(WEIGHTS[row, place]), abs=1.1e-4)


@pytest.mark.parametrize("window", [None, 3])
def test_later_queries_see_more_until_a_window_is_full(window: int | None) -> None:
    query = torch.randn(1, 1, 11, 5)
    seen = (attention_weights(query, query, causal=True, window=window and (window - 1, 0))[0, 0] > 0).sum(-1)
    assert seen.tolist() == [min(place + 1, window or 11) for place in range(11)]


def test_packed_documents_begin_anew() -> None:
    query = torch.randn(1, 1, 8, 5)
    seen = (attention_weights(query, query, causal=True, cu_seqlens=[0, 5, 8])[0, 0] > 0).sum(-1)
    assert seen.tolist() == [1, 2, 3, 4, 5, 1, 2, 3]


def test_one_token_too_many_is_the_whole_answer() -> None:
    """Random tokens can't be foretold below log V; a head that may see one place ahead copies them."""
    kinds, length = 11, 101
    tokens = torch.randint(kinds, (length,))
    places, values = torch.eye(length, dtype=F64), torch.eye(kinds, dtype=F64)[tokens]
    query = torch.roll(places, 1, 1) * 50  # place i asks for place i + 1
    ahead = attention(query[None, None], places[None, None], values[None, None], scale=1.0, window=(None, 1))[0, 0]
    honest = attention(query[None, None], places[None, None], values[None, None], scale=1.0, causal=True)[0, 0]
    assert torch.equal(ahead[:-1].argmax(-1), tokens[1:])
    assert cross_entropy(ahead[:-1] * 50, tokens[1:]) < 1e-9
    assert cross_entropy((honest[:-1] + 1e-9).log(), tokens[1:]) > log(kinds) - 0.2


def test_hiding_the_next_token_alone_leaks_it_in_two_layers() -> None:
    """Query i doesn't see i + 1 and sees all else: i - 1 sees i + 1, and i sees i - 1. Causal masks don't compound."""
    length = 7
    allowed = ~torch.diag(torch.ones(length - 1, dtype=torch.bool), 1)
    layers = [made(), made()]

    def moved(mask: Tensor, depth: int) -> bool:
        first = hidden(length)
        second = first.clone()
        second[:, 4] += 1  # token 4, which query 3 must not know
        for layer in layers[:depth]:
            first, second = (layer(each, mask=mask).output for each in (first, second))
        return bool((first[:, 3] - second[:, 3]).abs().max() > 1e-9)

    assert not moved(allowed, 1)
    assert moved(allowed, 2)
    assert not moved(~above(length), 1)
    assert not moved(~above(length), 2)


def test_two_cached_tokens_then_five_need_the_lower_right_mask() -> None:
    layer, inputs = made(1), hidden()
    cache = DenseCache(BATCH, 1, LENGTH, DIM, dtype=F64)
    with torch.no_grad():
        whole = layer(inputs, causal=True).output
        parts = [layer(inputs[:, cut], causal=True, cache=cache).output for cut in (slice(0, 2), slice(2, None))]
        assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-12)
        upper_left = torch.ones(LENGTH - 2, LENGTH, dtype=torch.bool).tril()
        wrong = layer(inputs[:, 2:], inputs, mask=upper_left).output
        right = layer(inputs[:, 2:], inputs, mask=torch.ones_like(upper_left).tril(2)).output
    assert torch.allclose(right, whole[:, 2:], atol=1e-12)
    assert ((wrong - right).abs().amax((0, 2)) > 1e-3).all()


def test_true_means_blocked_in_torchs_module_and_allowed_here() -> None:
    layer, inputs = made(), hidden()
    blocked = above(LENGTH)
    theirs = layer.to_torch()(inputs, inputs, inputs, attn_mask=blocked)[0]
    assert torch.allclose(layer(inputs, mask=~blocked).output, theirs, atol=1e-12)
    assert torch.allclose(
        layer(inputs, mask=masks_from_torch(attn_mask=blocked, num_heads=HEADS).mask).output, theirs, atol=1e-12
    )
    assert (layer(inputs, mask=blocked | torch.eye(LENGTH, dtype=torch.bool)).output - theirs).abs().max() > 1e-3


def test_padding_is_masked_over_cached_and_new_tokens() -> None:
    layer, inputs = made(), hidden()
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    real[1, 0] = False  # padding on the left of the second sequence
    cache = DenseCache(BATCH, HEADS, LENGTH, DIM, dtype=F64)
    with torch.no_grad():
        layer(inputs[:, :3], causal=True, cache=cache, key_mask=real[:, :3])
        step = layer(inputs[:, 3:], causal=True, cache=cache, key_mask=real).output
        alone = layer(inputs[1:, 1:], causal=True).output[:, 2:]
        assert torch.allclose(step[1:], alone, atol=1e-12)
        short = DenseCache(BATCH, HEADS, LENGTH, DIM, dtype=F64)
        layer(inputs[:, :3], causal=True, cache=short, key_mask=real[:, :3])
        with pytest.raises(ValueError, match="key_mask"):
            layer(inputs[:, 3:], causal=True, cache=short, key_mask=real[:, 3:])


def test_padded_queries_have_outputs_that_a_loss_must_leave_out() -> None:
    layer, inputs, head = made(), hidden(), nn.Linear(WIDTH, 11, dtype=F64)
    real = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    real[1, 4:] = False
    other = inputs.clone()
    other[1, 4:] += 1  # what stands in padding means nothing
    targets = torch.randint(11, (BATCH, LENGTH))

    def losses(given: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(layer(given, causal=True, key_mask=real).output)
        each = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").unflatten(0, (BATCH, LENGTH))
        return each.mean(), each[real].mean()

    (all_one, real_one), (all_other, real_other) = losses(inputs), losses(other)
    assert (all_one - all_other).abs() > 1e-3
    assert torch.allclose(real_one, real_other, atol=1e-12)


def test_attention_without_a_mask_is_not_causal() -> None:
    """The call of the chapter's shared layers, PyTorch's operation with nothing but Q, K and V."""
    query, key = torch.randn(1, 8, 5, 7, dtype=F64), torch.randn(1, 1, 5, 7, dtype=F64)
    later = key.clone()
    later[:, :, -1] += 1
    plain, moved = (scaled_dot_product_attention(query, each, each) for each in (key, later))
    assert torch.allclose(plain, attention(query, key, key), atol=1e-12)
    assert (plain[:, :, 0] - moved[:, :, 0]).abs().max() > 1e-3
    causal, unmoved = (scaled_dot_product_attention(query, each, each, is_causal=True) for each in (key, later))
    assert torch.allclose(causal, attention(query, key, key, causal=True), atol=1e-12)
    assert torch.equal(causal[:, :, 0], unmoved[:, :, 0])


def test_all_mass_on_key_zero_has_several_causes() -> None:
    """A mask aligned at the wrong corner, a learned sink, and scores too large for float16: the same row."""
    query, key = torch.randn(1, 1, 1, 5, dtype=F64), torch.randn(1, 1, 7, 5, dtype=F64)
    wrong_mask = attention_weights(query, key, causal=True, offset=0)[0, 0, 0]
    learned = attention_weights(query, key, bias=torch.tensor([60.0] + [0.0] * 6, dtype=F64), causal=True)[0, 0, 0]
    large = torch.full((1, 1, 7, 5), 1.0, dtype=torch.float16)
    large[:, :, 0] = 300
    too_large = attention_weights(torch.full((1, 1, 1, 5), 300.0, dtype=torch.float16), large)[0, 0, 0]
    assert (torch.full((5,), 300.0).half() @ torch.full((5,), 300.0).half()).isinf()
    for weights in (wrong_mask, learned, too_large):
        assert weights[0] == pytest.approx(1, abs=1e-12)
    assert attention_weights(query, key, causal=True)[0, 0, 0, 0] < 1  # with the right mask it was none of its own


def test_an_encoder_sees_all_and_a_decoder_its_past_but_all_of_the_encoder() -> None:
    """The layout of 2017, as transformers' T5 has it."""
    from transformers import T5Config, T5Model

    config = T5Config(d_model=12, d_kv=5, d_ff=7, num_heads=2, num_layers=1, vocab_size=11, decoder_start_token_id=0)
    model, one, other = T5Model(config).eval(), torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 5]])

    def moved(first: Tensor, second: Tensor) -> list[bool]:
        return ((first - second).abs().amax((0, 2)) > 1e-6).tolist()

    with torch.no_grad():
        decoded = {
            (a, b): model(input_ids=x, decoder_input_ids=y).last_hidden_state
            for a, x in enumerate((one, other))
            for b, y in enumerate((one, other))
        }
        encoded = [model.encoder(each).last_hidden_state for each in (one, other)]
    assert moved(*encoded) == [True] * 4
    assert moved(decoded[0, 0], decoded[0, 1]) == [False, False, False, True]
    assert moved(decoded[0, 0], decoded[1, 0]) == [True] * 4


def test_a_decoder_only_model_need_not_be_causal_everywhere() -> None:
    """PaliGemma is one stack that reads image and prompt in both directions, and only what it writes causally."""
    from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

    size = {"hidden_size": 12, "intermediate_size": 7, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = size | {"model_type": "gemma", "num_key_value_heads": 1, "head_dim": 6, "vocab_size": 23, "pad_token_id": 0}
    image = size | {"model_type": "siglip_vision_model", "image_size": 6, "patch_size": 3}
    config = PaliGemmaConfig(text_config=text, vision_config=image, image_token_id=20, projection_dim=12)
    config.image_token_index = 20
    model = PaliGemmaForConditionalGeneration(config).eval()
    pixels = torch.randn(1, 3, 6, 6)

    def logits(last: int, suffix: int) -> Tensor:
        """Four places of an image, four tokens; the last ``suffix`` of them are what the model writes."""
        kinds = torch.tensor([[0] * (8 - suffix) + [1] * suffix])
        ids = torch.tensor([[20] * 4 + [1, 3, 4, last]])
        with torch.no_grad():
            return model(input_ids=ids, pixel_values=pixels, token_type_ids=kinds, attention_mask=ids.ge(0)).logits[0]

    prompt = (logits(5, 0) - logits(9, 0)).abs().amax(-1)
    assert (prompt > 1e-6).all()  # the last token of the prompt is seen by all before it
    written = (logits(5, 1) - logits(9, 1)).abs().amax(-1)
    assert (written > 1e-6).tolist() == [False] * 7 + [True]


@pytest.mark.parametrize("text", ["window", "grouped"])
def test_a_mask_serves_shared_heads_as_it_serves_all(text: str) -> None:
    """Sharing keys and values changes nothing of who sees whom."""
    query, key = torch.randn(1, 6, 11, 5, dtype=F64), torch.randn(1, 2, 11, 5, dtype=F64)
    options = {"causal": True} | ({"window": (2, 0)} if text == "window" else {})
    shared = attention_weights(query, key, **options)
    repeated = attention_weights(query, key.repeat_interleave(3, 1), **options)
    assert torch.allclose(shared, repeated, atol=1e-14)
    assert torch.equal(shared > 0, (attention_weights(query[:, :1], key[:, :1], **options) > 0).expand(1, 6, 11, 11))
