"""Watching, ablating and gating heads: what is seen, what it does to the output, and that it is undone."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.attention import HeadStatistics, attention, head_statistics
from headwise.models import Checkpoint, HeadCall, probes
from headwise.models.interface import NAME, register
from headwise.models.probes import active_probes
from headwise.study import Keys, Offset
from tests.models import tiny

register()
BATCH, LENGTH = 2, 7
TOKENS = tiny.tokens(BATCH, LENGTH)
FAMILIES = {"llama": tiny.DECODERS["llama"], "gpt-oss": tiny.DECODERS["gpt-oss"], **tiny.ENCODERS}


def open_tiny(name: str) -> Checkpoint:
    model = tiny.build(FAMILIES[name])
    model.set_attn_implementation(NAME)
    return Checkpoint(model, None, name=name, source=name, objective="masked" if name in tiny.ENCODERS else "next")


@pytest.fixture(scope="module")
def checkpoints() -> dict[str, Checkpoint]:
    return {name: open_tiny(name) for name in FAMILIES}


@pytest.fixture(params=FAMILIES)
def checkpoint(request, checkpoints) -> Checkpoint:
    return checkpoints[request.param]


@pytest.fixture
def llama(checkpoints) -> Checkpoint:
    return checkpoints["llama"]


def logits(checkpoint: Checkpoint) -> Tensor:
    with torch.no_grad():
        return checkpoint.forward(TOKENS).logits


def output_projection(model: Any, layer: int) -> Tensor:
    """The weight ``[E, H * Dv]`` behind the heads of one layer."""
    if model.config.model_type == "bert":
        return model.bert.encoder.layer[layer].attention.output.dense.weight
    return model.model.layers[layer].self_attn.o_proj.weight


def test_every_layer_is_seen_once_per_forward_in_order(checkpoint):
    layers: list[int] = []
    with checkpoint.observe(lambda call: layers.append(call.layer)):
        for _ in range(3):
            logits(checkpoint)
        checkpoint.body(TOKENS)
    assert layers == list(range(tiny.LAYERS)) * 4
    logits(checkpoint)
    assert len(layers) == 4 * tiny.LAYERS


def test_layers_are_counted_anew_after_an_exception(checkpoint):
    layers: list[int] = []

    def stop_in_the_second_layer(call: HeadCall) -> None:
        layers.append(call.layer)
        if len(layers) == 2:
            raise KeyboardInterrupt

    with checkpoint.observe(stop_in_the_second_layer):
        with pytest.raises(KeyboardInterrupt):
            logits(checkpoint)
        logits(checkpoint)
    assert layers == [0, 1, *range(tiny.LAYERS)]


def test_layers_are_counted_anew_in_every_step_of_decoding(llama):
    calls: list[tuple[int, int, int]] = []
    with llama.observe(lambda call: calls.append((call.layer, call.query.shape[2], call.key.shape[2]))):
        llama.model.generate(TOKENS[:1], max_new_tokens=3, do_sample=False)
    steps = [(LENGTH, LENGTH), (1, LENGTH + 1), (1, LENGTH + 2)]
    assert calls == [(layer, *step) for step in steps for layer in range(tiny.LAYERS)]


def test_what_is_seen_is_what_was_computed(checkpoint):
    layouts = checkpoint.layouts

    def look(call: HeadCall) -> None:
        layout = layouts[call.layer]
        assert call.query.shape == (BATCH, layout.num_heads, LENGTH, layout.head_dim)
        assert call.key.shape == (BATCH, layout.num_kv_heads, LENGTH, layout.head_dim)
        assert torch.equal(call.output, attention(call.query, call.key, call.value, **call.arguments))

    with checkpoint.observe(look):
        logits(checkpoint)


def test_heads_are_read_as_they_attend_and_the_output_stays_to_the_bit(checkpoint):
    relations = [Offset(1), Keys(torch.arange(LENGTH) == 0)]
    expected = logits(checkpoint)
    told: list[tuple[HeadStatistics, HeadStatistics]] = []

    def read(call: HeadCall) -> None:
        told.append((call.read(relations), head_statistics(call.query, call.key, relations, **call.arguments)))
        told.append((call.read(relations), told[-1][1]))  # now the output is there

    with checkpoint.observe(read):
        assert torch.equal(logits(checkpoint), expected)
    assert len(told) == 2 * checkpoint.num_layers
    for one, other in told:
        assert all(torch.equal(one.score(name), other.score(name)) for name in one.names)
        assert torch.equal(one.entropy, other.entropy)


def test_reading_first_gives_the_output_too(llama, monkeypatch):
    def refused(*given: Any, **options: Any) -> None:
        raise AssertionError("attention was computed a second time")

    monkeypatch.setattr(probes, "attention", refused)
    with llama.observe(lambda call: call.read([Offset(1)]) and None):
        logits(llama)
    with pytest.raises(AssertionError, match="a second time"):
        logits(llama)


def test_reading_does_not_undo_what_another_probe_has_replaced(llama):
    with llama.ablate([(0, 1), (1, 2)]):
        expected = logits(llama)
        with llama.observe(lambda call: call.read([Offset(1)]) and None):
            assert torch.equal(logits(llama), expected)


def test_another_model_is_not_seen(llama, checkpoints):
    seen: list[HeadCall] = []
    with llama.observe(seen.append):
        logits(checkpoints["bert"])
    assert not seen


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "bert"])
@pytest.mark.parametrize("heads", [[(0, 0)], [(2, 1), (1, 4), (1, 0)]])
def test_zero_ablation_equals_zeroing_columns_of_the_output_projection(checkpoints, name, heads):
    checkpoint = checkpoints[name]
    by_hand = copy.deepcopy(checkpoint.model)
    for layer, head in heads:
        width = checkpoint.layouts[layer].value_dim
        output_projection(by_hand, layer)[:, head * width : (head + 1) * width] = 0
    with torch.no_grad():
        expected = by_hand(input_ids=TOKENS).logits
    with checkpoint.ablate(heads):
        got = logits(checkpoint)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert (logits(checkpoint) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_mean_ablation_equals_replacing_by_hand(checkpoints, name):
    """A head's constant output is a constant behind the projection, so a bias there does the same."""
    checkpoint = checkpoints[name]
    layer, head = 1, 4
    width = checkpoint.layouts[layer].value_dim
    means = torch.randn(tiny.LAYERS, checkpoint.max_heads, width + 3)  # tables are as wide as the widest layer
    by_hand = copy.deepcopy(checkpoint.model)
    weight = output_projection(by_hand, layer)
    columns = slice(head * width, (head + 1) * width)
    constant = weight[:, columns] @ means[layer, head, :width]
    weight[:, columns] = 0
    owner = next(module for module in by_hand.modules() if getattr(module, "weight", None) is weight)
    owner.register_forward_hook(lambda _module, _inputs, output: output + constant)
    with torch.no_grad():
        expected = by_hand(input_ids=TOKENS).logits
    with checkpoint.ablate([(layer, head)], "mean", means):
        torch.testing.assert_close(logits(checkpoint), expected, rtol=0, atol=1e-5)


def test_ablating_every_layer_of_a_shared_module_by_itself(checkpoints):
    """ALBERT runs one module three times; each pass has heads of its own."""
    albert = checkpoints["albert"]
    results = []
    for layer in range(tiny.LAYERS):
        seen: list[tuple[int, bool]] = []

        def look(call: HeadCall, seen: list[tuple[int, bool]] = seen) -> None:
            seen.append((call.layer, bool((call.output[:, 2] == 0).all())))

        with albert.ablate([(layer, 2)]), albert.observe(look):
            results.append(logits(albert))
        assert seen == [(index, index == layer) for index in range(tiny.LAYERS)]
    assert (results[0] - results[1]).abs().max() > 1e-3
    assert (results[1] - results[2]).abs().max() > 1e-3


def test_gate_gradients_equal_finite_differences():
    # GPT-2, since nothing in it is rounded to float32 on the way.
    model = tiny.build(tiny.DECODERS["gpt2"]).double()
    model.set_attn_implementation(NAME)
    double = Checkpoint(model, None, name="double", source="double", objective="next")
    weighting = torch.randn(BATCH, LENGTH, tiny.VOCABULARY, dtype=torch.float64)

    def loss(gates: Tensor) -> Tensor:
        with double.gate(gates):
            return (double.forward(TOKENS).logits * weighting).sum()

    gates = torch.ones(tiny.LAYERS, BATCH, double.max_heads, dtype=torch.float64, requires_grad=True)
    loss(gates).backward()
    assert gates.grad is not None
    step = 1e-5
    for place in [(0, 0, 0), (1, 1, 4), (2, 0, 3)]:
        moved = torch.zeros_like(gates)
        moved[place] = step
        with torch.no_grad():
            slope = (loss(gates + moved) - loss(gates - moved)) / (2 * step)
        # Central differences err by step² times a third derivative, and by rounding of a loss of a few hundred over
        # the step: about 1e-8 each.
        torch.testing.assert_close(gates.grad[place], slope, rtol=0, atol=1e-6)


def test_gates_of_one_change_nothing_and_gates_of_zero_ablate(llama):
    gates = torch.ones(tiny.LAYERS, BATCH, llama.max_heads)
    with llama.gate(gates):
        assert torch.equal(logits(llama), logits_without_probes := logits(llama))
    assert torch.equal(logits_without_probes, logits(llama))
    gates[1, 0, 3] = 0
    with llama.gate(gates):
        gated = logits(llama)
    with llama.ablate([(1, 3)]):
        ablated = logits(llama)
    assert torch.equal(gated[0], ablated[0])
    assert torch.equal(gated[1], logits_without_probes[1])  # every example has gates of its own


def test_nested_probes_run_outermost_first(llama):
    def add(number: float) -> Any:
        return lambda call: call.output + number if call.layer == 0 else None

    outputs: list[Tensor] = []

    def keep(call: HeadCall) -> None:
        if call.layer == 0:
            outputs.append(call.output)

    with llama.observe(keep), llama.ablate([(0, 1)]), llama.observe(keep), llama.observe(add(2.0)), llama.observe(keep):
        logits(llama)
    before, zeroed, last = outputs
    assert before[:, 1].abs().max() > 0
    assert torch.equal(zeroed[:, 1], torch.zeros_like(zeroed[:, 1]))
    assert torch.equal(zeroed[:, 0], before[:, 0])
    assert torch.equal(last, zeroed + 2.0)


def interrupted(active: int) -> None:
    assert active == 2
    raise KeyboardInterrupt


def test_everything_is_undone_after_exceptions(checkpoint):
    module = next(iter(checkpoint.attention_layers))
    before = logits(checkpoint)
    hooks = len(checkpoint.model.base_model._forward_pre_hooks)
    gates = torch.zeros(tiny.LAYERS, BATCH, checkpoint.max_heads)
    with pytest.raises(KeyboardInterrupt), checkpoint.ablate([(0, 0)]), checkpoint.gate(gates):
        interrupted(len(list(active_probes(module))))
    assert not list(active_probes(module))
    assert len(checkpoint.model.base_model._forward_pre_hooks) == hooks
    assert torch.equal(logits(checkpoint), before)


WRONG = {
    "layer": ([(3, 0)], "zero", None, "ablate: expected a layer from 0 to 2, got 3"),
    "negative layer": ([(-1, 0)], "zero", None, "ablate: expected a layer from 0 to 2, got -1"),
    "head": ([(1, 6)], "zero", None, "ablate: expected heads 0 to 5 in layer 1, got [6]"),
    "negative head": ([(1, -1), (1, 2)], "zero", None, "ablate: expected heads 0 to 5 in layer 1, got [-1, 2]"),
    "mode": ([(0, 0)], "resample", None, "ablate: expected mode 'zero' or 'mean', got 'resample'"),
    "no means": (
        [(0, 0)],
        "mean",
        None,
        "ablate: mode 'mean' needs means, the average outputs of all heads [layers, H, Dv], got None",
    ),
}


@pytest.mark.parametrize(("heads", "mode", "means", "text"), WRONG.values(), ids=WRONG)
def test_what_is_not_there_cannot_be_ablated(llama, heads, mode, means, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"), llama.ablate(heads, mode, means):
        logits(llama)


def test_gates_of_another_shape_are_refused(llama):
    text = "gate: expected gates [layers, B, H] with 3 layers, got shape [2, 2, 6]"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"), llama.gate(torch.ones(2, 2, 6)):
        logits(llama)
