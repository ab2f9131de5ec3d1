"""Every check on loading can fail: the attention is broken in one way, and the check for that way is named."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.errors import UserError
from headwise.models import Checkpoint, load
from headwise.models.checks import verify_attention
from headwise.models.interface import NAME

interface = sys.modules["headwise.models.interface"]
checks = sys.modules["headwise.models.checks"]
probes = sys.modules["headwise.models.probes"]
arguments, through_probes, statistics = interface._arguments, interface._through_probes, checks.head_statistics


@pytest.fixture
def folders(llama_folder, bert_folder) -> dict[str, Path]:
    return {"llama": llama_folder, "bert": bert_folder}


def wrong_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        interface, "_arguments", lambda *given: (made := arguments(*given)) | {"scale": made["scale"] * 1.01}
    )


def mask_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, NAME, lambda **_: None)


def attends_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_order(*given: Any) -> dict[str, Any]:
        return {name: value for name, value in arguments(*given).items() if name != "causal"}

    monkeypatch.setattr(interface, "_arguments", without_order)


def probes_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_through_probes", lambda call: call.output)


def probes_seen_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "_through_probes", lambda call: (through_probes(call), through_probes(call))[0])


def replacements_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(call: Any) -> torch.Tensor:
        output = call.output
        through_probes(call)
        return output

    monkeypatch.setattr(interface, "_through_probes", ignore)


def weights_read_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_sink(query: torch.Tensor, *given: Any, **options: Any) -> Any:
        options["sinks"] = torch.zeros(query.shape[1])
        return statistics(query, *given, **options)

    monkeypatch.setattr(checks, "head_statistics", with_a_sink)


def not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "attention", lambda _query, _key, value, **_: value.repeat(1, 3, 1, 1) * torch.nan)


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {
    "wrong scale": (wrong_scale, "llama", "equal to stock attention: largest difference "),
    "wrong scale in an encoder": (wrong_scale, "bert", "equal to stock attention: largest difference "),
    "mask dropped": (mask_dropped, "llama", "left padding changes nothing: largest difference "),
    "mask dropped in an encoder": (mask_dropped, "bert", "right padding changes nothing: largest difference "),
    "attends ahead": (attends_ahead, "llama", "nothing attends ahead: largest difference "),
    "probes cut off": (probes_cut_off, "llama", "every layer is seen once, in order: expected layers 0 to 2, got []"),
    "probes seen twice": (
        probes_seen_twice,
        "llama",
        "every layer is seen once, in order: expected layers 0 to 2, got [0, 0, 1, 1, 2, 2]",
    ),
    "replacements ignored": (replacements_ignored, "llama", "zeroing heads changes the output: smallest change 0"),
    "weights read wrongly": (weights_read_wrongly, "llama", "weights of a row sum to one: largest deviation "),
    "not a number": (not_a_number, "llama", "nothing attends ahead: largest difference nan"),
}


@pytest.mark.parametrize(("breaking", "name", "told"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_named(breaking, name, told, folders, monkeypatch):
    checkpoint = load(folders[name])
    breaking(monkeypatch)
    with pytest.raises(UserError, match=f"^{name}: check failed on loading: {re.escape(told)}") as raised:
        verify_attention(checkpoint)
    assert str(raised.value).endswith(f"; this architecture ({name}) does not run on headwise attention")
    assert checkpoint.model.config._attn_implementation == NAME


def test_loading_fails_with_its_check(folders, monkeypatch):
    wrong_scale(monkeypatch)
    with pytest.raises(UserError, match=r"^llama: check failed on loading: equal to stock attention: "):
        load(folders["llama"])
    assert load(folders["llama"], check=False).checks == ()


def test_a_model_of_one_layer_is_checked_too(folders):
    checkpoint = load(folders["llama"], check=False)
    del checkpoint.model.model.layers[1:]
    one = Checkpoint(checkpoint.model, None, name="one", source="one", objective="next")
    assert one.num_layers == 1
    assert all(check.passed for check in verify_attention(one))


def test_checks_ask_little_of_rounding_and_much_of_mistakes(folders):
    """A scale that is off by 1 % is far beyond what is allowed."""
    compared = {check.name: check.detail for check in load(folders["llama"]).checks}
    difference, allowed = re.findall(r"\d[\d.e-]*", compared["equal to stock attention"])
    assert float(difference) <= float(allowed) < 1e-4


def test_a_model_that_rounding_shakes_is_held_against_the_spread_of_stock_attention(folders, monkeypatch):
    checkpoint = load(folders["llama"], check=False)
    monkeypatch.setattr(checks, "_rounding", lambda *_: 1e-12)
    monkeypatch.setattr(checks, "_stock_spread", lambda *_: 1e-3)
    compared = {check.name: check.detail for check in verify_attention(checkpoint)}
    assert compared["left padding changes nothing"].endswith("allowed 0.004")


def test_a_model_that_rounding_shakes_is_held_against_what_one_rounding_moves(folders, monkeypatch):
    """Also where eager and SDPA happen to give the same to the bit."""
    checkpoint = load(folders["llama"], check=False)
    monkeypatch.setattr(checks, "_rounding", lambda *_: 1e-12)
    monkeypatch.setattr(checks, "_stock_spread", lambda *_: 0.0)
    compared = {check.name: check.detail for check in verify_attention(checkpoint)}
    tokens = checks._probe_tokens(checkpoint)
    moved = (checks._shaken_states(checkpoint, tokens) - checks._states(checkpoint, tokens)).abs().max().item()
    assert 1e-12 < moved < 1e-5
    allowed = float(compared["left padding changes nothing"].rpartition("allowed ")[2])
    assert allowed == pytest.approx(4 * moved, rel=0.05)


def test_one_rounding_moves_the_more_the_more_a_model_amplifies_it(folders):
    checkpoint = load(folders["llama"], check=False)
    tokens = checks._probe_tokens(checkpoint)

    def moved():
        return (checks._shaken_states(checkpoint, tokens) - checks._states(checkpoint, tokens)).abs().max().item()

    before = moved()
    with torch.no_grad():
        checkpoint.model.lm_head.weight.mul_(1000)
    assert moved() == pytest.approx(1000 * before, rel=0.5)


def test_the_spread_of_stock_is_the_distance_of_eager_from_sdpa(folders):
    checkpoint = load(folders["bert"], check=False)
    tokens = checks._probe_tokens(checkpoint)
    states = []
    for name in ("eager", "sdpa", NAME):
        checkpoint.model.set_attn_implementation(name)
        states.append(checkpoint.forward(tokens).logits.double())
    assert torch.equal(checks._on_stock(checkpoint, checks._states, tokens), states[1])
    far = states[1] + torch.eye(states[1].shape[-1])[0]  # farther from eager than any rounding
    assert checks._stock_spread(checkpoint, tokens, far) == pytest.approx((far - states[0]).abs().max().item())
