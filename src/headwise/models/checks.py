"""What is verified when a checkpoint is loaded: that the heads we read are the heads the model runs.

Five short forward passes without the language head, as few as do. A check that fails raises, since every number after
it would be wrong.

Symbols: B batch, L query length, H query heads, Dv value head dim, E model width.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headwise.attention import head_statistics
from headwise.errors import UserError
from headwise.models.checkpoint import Check, Checkpoint
from headwise.models.interface import NAME
from headwise.models.probes import HeadCall

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
    checks: list[Check] = []
    with torch.no_grad():
        stock, tolerance = _stock_states(checkpoint, tokens)
        own, seen, deviation = _own_states(checkpoint, tokens)
        checks.append(_every_layer_is_seen(checkpoint, seen))
        checks.append(_check("weights of a row sum to one", deviation <= 1e-4, f"largest deviation {deviation:.2g}"))
        if checkpoint.causal:
            checks.append(_compared("nothing attends ahead", own[1, :_HALF], own[0, :_HALF], tolerance))
        checks.append(_padding_changes_nothing(checkpoint, tokens, own, tolerance))
        checks.append(_zeroing_changes(checkpoint, tokens, own, tolerance))
        checks.append(_compared("equal to stock attention", own, stock, tolerance))
    for check in checks:
        if not check.passed:
            raise UserError(
                f"{checkpoint.name}: check failed on loading: {check.name}: {check.detail}; this architecture "
                f"({checkpoint.model.config.model_type}) does not run on headwise attention"
            )
    return tuple(checks)


def _check(name: str, passed: bool, detail: str) -> Check:
    return Check(name, bool(passed), detail)


def _compared(name: str, own: Tensor, expected: Tensor, tolerance: float) -> Check:
    difference = (own - expected).abs().max().item()
    # Written so that NaN fails.
    return _check(name, difference <= tolerance, f"largest difference {difference:.2g}, allowed {tolerance:.2g}")


def _probe_tokens(checkpoint: Checkpoint) -> Tensor:
    """Two rows of random tokens ``[2, L]``, the same every time, that begin alike and go on differently."""
    vocabulary = checkpoint.model.config.get_text_config().vocab_size
    tokens = torch.randint(0, vocabulary, (2, _LENGTH), generator=torch.Generator().manual_seed(20))
    tokens[1, :_HALF] = tokens[0, :_HALF]
    return tokens


def _states(checkpoint: Checkpoint, tokens: Tensor, **options: Any) -> Tensor:
    """The last hidden state ``[B, L, E]``: everything that attention has a part in."""
    return checkpoint.body(tokens, **options).double()


@contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(NAME)


def _stock_states(checkpoint: Checkpoint, tokens: Tensor) -> tuple[Tensor, float]:
    """What stock attention gives, and how far headwise may be from it at this dtype.

    Eager and SDPA compute the same function; their distance is what rounding alone does in this model, and four times
    that is allowed. Where the two agree to the bit, or there is only one: 64 units of rounding of the largest value,
    and never more than a twentieth of it.
    """
    with _implementation(checkpoint.model, "eager"):
        stock = eager = _states(checkpoint, tokens)
    try:
        with _implementation(checkpoint.model, "sdpa"):
            stock = _states(checkpoint, tokens)
    except (ValueError, ImportError):  # architectures without SDPA, or with soft-cap, which it refuses
        pass
    rounding = min(64 * torch.finfo(checkpoint.model.dtype).eps, 0.05) * stock.abs().max().item()
    return stock, max(4 * (stock - eager).abs().max().item(), rounding)


class _Everything:
    """The relation that holds every key."""

    name = "everything"

    def keys(self, queries: Tensor, key_length: int) -> Tensor:
        return torch.ones(1, queries.shape[-1], key_length, dtype=torch.bool, device=queries.device)


def _own_states(checkpoint: Checkpoint, tokens: Tensor) -> tuple[Tensor, list[int], float]:
    """What headwise gives, which layers its probes saw, and how far the weights of a row are from their due sum."""
    seen: list[int] = []
    deviations = [0.0]

    def look(call: HeadCall) -> None:
        seen.append(call.layer)
        statistics = head_statistics(call.query, call.key, [_Everything()], **call.arguments)
        expected = torch.ones_like(statistics.lse)
        if (sinks := call.arguments.get("sinks")) is not None:  # what the sink takes is missing from the sum
            expected = 1 - (sinks.to(statistics.lse)[None, :, None] - statistics.lse).exp()
        deviations.append((statistics.mass[0] - expected).abs().max().item())

    with checkpoint.observe(look):
        own = _states(checkpoint, tokens)
    return own, seen, max(deviations)


def _every_layer_is_seen(checkpoint: Checkpoint, seen: list[int]) -> Check:
    expected = list(range(checkpoint.num_layers))
    return _check("every layer is seen once, in order", seen == expected, f"expected {expected}, got {seen}")


def _padding_changes_nothing(checkpoint: Checkpoint, tokens: Tensor, own: Tensor, tolerance: float) -> Check:
    """Left padding for decoders; right padding for encoders, whose positions count from the left."""
    left = checkpoint.causal
    filler = tokens.new_zeros(tokens.shape[0], _PADDING)
    ones = torch.ones_like(tokens)
    padded = torch.cat([filler, tokens] if left else [tokens, filler], dim=1)
    mask = torch.cat([filler, ones] if left else [ones, filler], dim=1).to(checkpoint.device)
    options: dict[str, Any] = {"attention_mask": mask}
    if left and "position_ids" in inspect.signature(checkpoint.model.base_model.forward).parameters:
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    states = _states(checkpoint, padded, **options)
    kept = states[:, _PADDING:] if left else states[:, :_LENGTH]
    return _compared(f"{'left' if left else 'right'} padding changes nothing", kept, own, tolerance)


def _zeroing_changes(checkpoint: Checkpoint, tokens: Tensor, own: Tensor, tolerance: float) -> Check:
    """Zeroing all heads of one layer moves the output, so the probes are in the path: the first layer in the first row,
    the last layer in the second."""
    row_of_layer = {checkpoint.num_layers - 1: 1, 0: 0}

    def zero(call: HeadCall) -> Tensor | None:
        if call.layer not in row_of_layer:
            return None
        output = call.output.clone()  # [B, H, L, Dv]
        output[row_of_layer[call.layer]] = 0
        if checkpoint.num_layers == 1:
            output[:] = 0
        return output

    with checkpoint.observe(zero):
        changes = (_states(checkpoint, tokens) - own).abs().amax(dim=(1, 2))  # [B]
    smallest = changes.min().item()
    return _check("zeroing heads changes the output", smallest > tolerance, f"smallest change {smallest:.2g}")
