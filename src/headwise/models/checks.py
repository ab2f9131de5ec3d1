"""What is verified when a checkpoint is loaded: that the heads we read are the heads the model runs.

Three short forward passes, as few as do. A check that fails raises, since every number after it would be wrong.

Symbols: B batch, L query length, H query heads, Dv value head dim, E model width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.attention import head_statistics
from headwise.errors import UserError
from headwise.models.checkpoint import Check, Checkpoint
from headwise.models.interface import NAME
from headwise.models.probes import HeadCall, body_of

__all__ = ["verify_attention"]

_LENGTH = 7
_HALF = 3
_PADDING = 2


def verify_attention(checkpoint: Checkpoint) -> tuple[Check, ...]:
    """Run all checks that apply to the model.

    Returns:
        The checks, all passed.

    Raises:
        UserError: the first one that failed, with how far off it was. The more specific ones come first, so that the
            one that is named says most about what is wrong.
    """
    tokens = _probe_tokens(checkpoint)
    with torch.no_grad():
        stock = _on_stock(checkpoint, _states, tokens)
        own = _watched(checkpoint, tokens)
        padded = _padded_states(checkpoint, tokens)
        checks = _judge(checkpoint, own, padded, stock, _rounding(checkpoint, stock))
        if not all(check.passed for check in checks):
            # Perhaps a model that rounding shakes more than others, or that padding reaches on other ways (MobileBERT
            # looks at neighbours, RecurrentGemma goes through it): then these do so with stock attention too.
            by_padding = _on_stock(checkpoint, _padded_states, tokens) - stock
            spread = max(
                4 * _stock_spread(checkpoint, tokens, stock),
                4 * (_shaken_states(checkpoint, tokens) - own.states).abs().max().item(),
                _rounding(checkpoint, stock),
            )
            checks = _judge(checkpoint, own, padded - by_padding, stock, spread)
    for check in checks:
        if not check.passed:
            raise UserError(
                f"{checkpoint.name}: check failed on loading: {check.name}: {check.detail}; this architecture "
                f"({checkpoint.model.config.model_type}) does not run on headwise attention"
            )
    return checks


@dataclass(frozen=True)
class _Watched:
    """One forward pass on headwise.

    Attributes:
        states: the last hidden state ``[2, L, E]``.
        zeroed: the same with all heads of the first layer zeroed in row 0, and of the last layer in row 1.
        layers: the layers that were seen, in their order.
        deviation: how far the weights of a row were from their due sum at worst.
    """

    states: Tensor
    zeroed: Tensor
    layers: list[int]
    deviation: float


def _judge(checkpoint: Checkpoint, own: _Watched, padded: Tensor, stock: Tensor, tolerance: float) -> tuple[Check, ...]:
    count = checkpoint.num_layers
    in_order = own.layers == list(range(count))
    seen = f"{count} layers" if in_order else f"expected layers 0 to {count - 1}, got {own.layers}"
    change = (own.zeroed - own.states).abs().amax(dim=(1, 2)).min().item()
    side = "left" if checkpoint.causal else "right"
    checks = [
        Check("every layer is seen once, in order", in_order, seen),
        Check("weights of a row sum to one", own.deviation <= 1e-4, f"largest deviation {own.deviation:.2g}"),
        _compared("nothing attends ahead", own.states[1, :_HALF], own.states[0, :_HALF], tolerance),
        _compared(f"{side} padding changes nothing", padded, own.states, tolerance),
        Check("zeroing heads changes the output", change > tolerance, f"smallest change {change:.2g}"),
        _compared("equal to stock attention", own.states, stock, tolerance),
    ]
    return tuple(check for check in checks if checkpoint.causal or check.name != "nothing attends ahead")


def _compared(name: str, own: Tensor, expected: Tensor, tolerance: float) -> Check:
    difference = (own - expected).abs().max().item()
    # Written so that NaN fails.
    return Check(name, difference <= tolerance, f"largest difference {difference:.2g}, allowed {tolerance:.2g}")


def _probe_tokens(checkpoint: Checkpoint) -> Tensor:
    """Two rows of random tokens ``[2, L]``, the same every time, that begin alike and go on differently."""
    vocabulary = checkpoint.model.config.get_text_config().vocab_size
    tokens = torch.randint(0, vocabulary, (2, _LENGTH), generator=torch.Generator().manual_seed(20))
    tokens[1, :_HALF] = tokens[0, :_HALF]
    return tokens


def _states(checkpoint: Checkpoint, tokens: Tensor, **options: Any) -> Tensor:
    """The logits ``[B, L, vocabulary]``, or the last hidden state ``[B, L, E]`` of a model without a language head."""
    if checkpoint.objective is None:
        return checkpoint.body(tokens, **options).double()
    return checkpoint.forward(tokens, **options).logits.double()


@contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    try:
        model.set_attn_implementation(name)
        yield
    finally:
        model.set_attn_implementation(NAME)


def _on_stock(checkpoint: Checkpoint, run: Callable[[Checkpoint, Tensor], Tensor], tokens: Tensor) -> Tensor:
    """What ``run`` gives with stock attention: SDPA, or eager where that refuses (soft-cap, sinks)."""
    try:
        with _implementation(checkpoint.model, "sdpa"):
            return run(checkpoint, tokens)
    except (ValueError, ImportError):
        with _implementation(checkpoint.model, "eager"):
            return run(checkpoint, tokens)


def _rounding(checkpoint: Checkpoint, stock: Tensor) -> float:
    """How far headwise may be from stock: 64 units of rounding of the largest value, at most a twentieth of it."""
    return min(64 * torch.finfo(checkpoint.model.dtype).eps, 0.05) * stock.abs().max().item()


def _stock_spread(checkpoint: Checkpoint, tokens: Tensor, stock: Tensor) -> float:
    """The distance of eager from SDPA, which compute the same function."""
    with _implementation(checkpoint.model, "eager"):
        eager = _states(checkpoint, tokens)
    return (stock - eager).abs().max().item()


def _shaken_states(checkpoint: Checkpoint, tokens: Tensor) -> Tensor:
    """The states of headwise with every number that a head writes moved by one rounding, up or down.

    Eager and SDPA may agree by luck: layer after layer a model can turn a rounding of 1e-7 into 0.04 of a logit on one
    processor and into 0.0003 on another, and this says how much it can.
    """
    generator = torch.Generator().manual_seed(20)

    def shake(call: HeadCall) -> Tensor:
        up = torch.randint(0, 2, call.output.shape, generator=generator).to(call.output) * 2 - 1
        return call.output + up * call.output.abs() * (torch.finfo(call.output.dtype).eps / 2)

    with checkpoint.observe(shake):
        return _states(checkpoint, tokens)


class _Everything:
    """The relation that holds every key."""

    name = "everything"

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        return torch.ones(1, queries.shape[-1], key_length, dtype=torch.bool, device=queries.device)


def _watched(checkpoint: Checkpoint, tokens: Tensor) -> _Watched:
    """Run the tokens twice side by side, as they are and with heads zeroed, and look at every layer."""
    layers: list[int] = []
    deviations = [0.0]

    def look(call: HeadCall) -> Tensor:
        layers.append(call.layer)
        deviations.append(_deviation(call))
        output = call.output.clone()  # [4, H, L, Dv]
        if call.layer == 0:
            output[2] = 0
        if call.layer == checkpoint.num_layers - 1:
            output[3] = 0
        return output

    with checkpoint.observe(look):
        states = _states(checkpoint, tokens.repeat(2, 1))
    return _Watched(states[:2], states[2:], layers, max(deviations))


def _deviation(call: HeadCall) -> float:
    """How far the weights of a row are from their due sum: one, less what an attention sink takes."""
    statistics = head_statistics(call.query, call.key, [_Everything()], **call.arguments)
    expected = torch.ones_like(statistics.lse)
    if (sinks := call.arguments.get("sinks")) is not None:
        expected = 1 - (sinks.to(statistics.lse)[None, :, None] - statistics.lse).exp()
    return (statistics.mass[0] - expected).abs().max().item()


def _padded_states(checkpoint: Checkpoint, tokens: Tensor) -> Tensor:
    """The states of ``tokens`` beside padding: on the left of decoders, on the right of encoders, whose positions count
    from the left."""
    left = checkpoint.causal
    filler = tokens.new_zeros(tokens.shape[0], _PADDING)
    ones = torch.ones_like(tokens)
    padded = torch.cat([filler, tokens] if left else [tokens, filler], dim=1)
    mask = torch.cat([filler, ones] if left else [ones, filler], dim=1).to(checkpoint.device)
    options: dict[str, Any] = {"attention_mask": mask}
    if left and "position_ids" in inspect.signature(body_of(checkpoint.model).forward).parameters:
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    states = _states(checkpoint, padded, **options)
    return states[:, _PADDING:] if left else states[:, :_LENGTH]
