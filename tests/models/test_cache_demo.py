"""headwise caches with the demo model: the same tokens for whatever loses nothing, and what rounding costs in nats."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

from headwise.models import headwise_cache
from headwise.models.cache_layers import HeadwiseLayer
from headwise.models.documents import read_documents
from headwise.models.interface import NAME

# transformers 5.24 calls the argument `cache` as well; both names are tested.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")

PROMPT = (
    "The heads of a transformer look back at what was said before, and some of them look at nothing at all. The heads "
    "of a transformer look back at"
)
# A story may go on in many ways, so beams die and others take their places.
STORY = (
    "Once upon a time there was a little girl who lived in a small house at the edge of the forest. One day she opened "
    "the door and saw"
)
# What came before after the same words misleads the lookup.
MISLEADING = "The cat sat on the mat. The cat sat on the hat. The cat sat on the bed. The dog sat on the mat. The cat"
NEW, DRAFT, WINDOW, CAPACITY = 12, 4, 11, 128
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (PROMPT, {}),
    "beams": (STORY, {"num_beams": 4}),
    "assisted": (MISLEADING, {"prompt_lookup_num_tokens": DRAFT}),
}
TOKENS, CHUNK, RESIDUAL = 96, 24, 8


def windowed(model: Any, window: int | None) -> Any:
    """The demo model with a sliding window in every layer: as a Mistral it computes the same otherwise."""
    shared = model.config.to_dict()
    for name in ("model_type", "architectures"):
        del shared[name]
    with torch.device("meta"):
        other = MistralForCausalLM(MistralConfig(**shared | {"sliding_window": window}))
    other.load_state_dict(model.state_dict(), assign=True)  # the weights are shared
    other.model.rotary_emb = copy.deepcopy(model.model.rotary_emb)
    other.tie_weights()
    other.set_attn_implementation(NAME)
    return other.eval()


@pytest.fixture(scope="module")
def models(demo) -> dict[str, Any]:
    """In one all layers see everything, in the other all have a window."""
    return {"full": demo.model, "windowed": windowed(demo.model, WINDOW)}


@pytest.fixture(scope="module")
def answer(demo, models):
    """New tokens of a model of ``models``, drawn in one of ``WAYS``, with a cache."""

    def draw(name: str, way: str, past: Any) -> list[int]:
        prompt, options = WAYS[way]
        inputs = demo.tokenizer(prompt, return_tensors="pt")
        assert inputs.input_ids.shape[1] > 2 * WINDOW
        tokens = models[name].generate(
            **inputs, max_new_tokens=NEW, do_sample=False, pad_token_id=0, past_key_values=past, **options
        )
        return tokens[0, inputs.input_ids.shape[1] :].tolist()

    return draw


@pytest.fixture(scope="module")
def expected(answer, models):
    return cache(lambda name, way: answer(name, way, DynamicCache(config=models[name].config)))


def test_a_model_with_its_weights_is_the_demo_model(demo, models):
    tokens = demo.tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = demo.model(tokens).logits
        assert torch.equal(windowed(demo.model, None)(tokens).logits, logits)
        cut_off = models["windowed"](tokens).logits
    assert torch.equal(cut_off[:, :WINDOW], logits[:, :WINDOW])
    assert not torch.equal(cut_off[:, WINDOW:], logits[:, WINDOW:])


@pytest.fixture
def asked(monkeypatch) -> dict[str, list[Any]]:
    """What ``generate`` asks the layers for: the orders of beams, and how many tokens to take back."""
    calls: dict[str, list[Any]] = {"reorder_cache": [], "crop": []}

    def recorder(method: str) -> Any:
        carry_out = getattr(HeadwiseLayer, method)

        def record(layer: HeadwiseLayer, wish: Any) -> None:
            calls[method].append(wish.tolist() if isinstance(wish, Tensor) else -wish)
            carry_out(layer, wish)

        return record

    for method in calls:
        monkeypatch.setattr(HeadwiseLayer, method, recorder(method))
    return calls


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "options"),
    [("full", {}), ("full", {"kind": "paged", "block_size": 5}), ("windowed", {"margin": 2 * DRAFT})],
    ids=["dense", "paged", "window"],
)
def test_same_tokens_as_with_a_dynamic_cache(name, options, way, answer, expected, models, asked):
    past = headwise_cache(models[name], CAPACITY, **options)
    assert answer(name, way, past) == expected(name, way)
    assert past.is_sliding == [name == "windowed"] * len(past.layers)
    assert any(order != list(range(len(order))) for order in asked["reorder_cache"]) == (way == "beams")
    assert any(tokens > 0 for tokens in asked["crop"]) == (way == "assisted")


@pytest.mark.parametrize(("way", "method"), [("beams", "reorder_cache"), ("assisted", "crop")])
def test_the_tokens_would_be_others_without(way, method, answer, expected, models, monkeypatch):
    """The prompts are such that it shows: a layer that does nothing when it is asked is found out."""
    monkeypatch.setattr(HeadwiseLayer, method, lambda layer, wish: None)
    assert answer("full", way, headwise_cache(models["full"], CAPACITY)) != expected("full", way)


def losses(model: Any, past: Any, tokens: Tensor) -> Tensor:
    """Loss in nats of each of ``TOKENS`` tokens after the first, read in chunks through a cache."""
    with torch.no_grad():
        chunks = [model(input_ids=part, past_key_values=past).logits[0] for part in tokens[:, :-1].split(CHUNK, dim=1)]
    return torch.nn.functional.cross_entropy(torch.cat(chunks), tokens[0, 1:], reduction="none")


def test_what_rounding_costs(demo):
    """Integers change each token's loss in proportion to their steps, and less than dropping what they hold would.

    To first order a change of the loss is proportional to the error that causes it. The steps of 4 bits are 127 / 7
    times those of 8, and so the changes have to be, within a factor of two. Rounding a vector of width D errs by half a
    step per number, sqrt(D) / 2 steps in all, against a length of at least 127 or 7 steps, that of its largest number;
    dropping it errs by its whole length. What that costs is measured: every token sees only the latest ``RESIDUAL``
    others then, which quantized caches hold in full precision.
    """
    tokens = demo.tokenizer(read_documents(None)[0].text, return_tensors="pt").input_ids[:, : TOKENS + 1]
    exact = losses(demo.model, headwise_cache(demo.model, TOKENS), tokens)
    nearsighted = windowed(demo.model, RESIDUAL + 1)
    dropped = (losses(nearsighted, headwise_cache(nearsighted), tokens) - exact).abs().mean()
    limits, changed = {8: 127, 4: 7}, {}
    for bits, limit in limits.items():
        past = headwise_cache(demo.model, TOKENS, kind="quantized", bits=bits, residual=RESIDUAL)
        change = (losses(demo.model, past, tokens) - exact).abs()
        assert not change[:CHUNK].any(), "what comes in one chunk is seen as it came"
        changed[bits] = change.mean()
        assert 0 < changed[bits] < dropped * demo.layouts[0].head_dim ** 0.5 / 2 / limit
    assert 1 / 2 < changed[4] / changed[8] / (limits[8] / limits[4]) < 2
