"""Tiny models in three copies, and the measure by which headwise is compared with transformers' eager attention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwise.models.interface import NAME, register
from tests.models import tiny

register()
BATCH, LENGTH, PADDING, ANSWER = 2, 13, 3, 5
# Two ways to add up the same numbers differ from each other by the sum of their roundings at most; the second two is
# for the luck of eager, whose own rounding is seen once.
SLACK = 4
ALL = tiny.DECODERS | tiny.ENCODERS | tiny.ENCODER_DECODERS


@cache
def family(name: str) -> tuple[Any, Any, Any]:
    """Three copies of one tiny model: headwise, eager, and eager in float64."""
    return copies_of(tiny.build(ALL[name]))


def copies_of(model: Any) -> tuple[Any, Any, Any]:
    """headwise, eager, and eager in float64."""
    copies = [copy.deepcopy(model) for _ in range(3)]
    for one, implementation in zip(copies, (NAME, "eager", "eager"), strict=True):
        one.set_attn_implementation(implementation)
    return copies[0], copies[1], copies[2].double()


def assert_as_good_as_eager(
    name: str,
    run: Callable[[Any], Tensor],
    exactly: Callable[[Any], Tensor] | None = None,
    models: tuple[Any, Any, Any] | None = None,
) -> None:
    """headwise is no further from eager in float64 than four times as far as eager in the same dtype is.

    ``exactly`` is what to run in float64, if that is something else (eager has NaN there for rows that see nothing).
    """
    models = models or family(name)
    own, eager, exact = run(models[0]), run(models[1]), (exactly or run)(models[2])
    assert own.shape == eager.shape
    assert own.dtype == eager.dtype
    budget = SLACK * (eager.double() - exact.double()).abs().max()
    assert budget < 1e-3 * max(1.0, float(exact.abs().max())), f"{name}: eager alone is off by {budget:.2g}"
    assert (own.double() - exact.double()).abs().max() <= budget


def padded(left: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Two sequences of different lengths, padded to the same one."""
    tokens = tiny.tokens(BATCH, LENGTH + PADDING)
    mask = torch.ones_like(tokens)
    hidden = slice(None, PADDING) if left else slice(-PADDING, None)
    tokens[0, hidden] = 0
    mask[0, hidden] = 0
    return tokens, {"attention_mask": mask}


def source_of(name: str, model: Any, pad: bool = False) -> dict[str, Tensor]:
    """What the encoder of an encoder-decoder reads, on request padded on the right."""
    if name == "whisper":  # sound of a fixed length, which is never padded
        features = torch.randn(BATCH, tiny.BINS, 2 * tiny.FRAMES, generator=torch.Generator().manual_seed(4))
        return {"input_features": features.to(model.dtype)}
    tokens, mask = padded(left=False)
    return {"input_ids": tokens, **mask} if pad else {"input_ids": tokens}


def inputs_of(name: str, model: Any) -> dict[str, Tensor]:
    """Inputs of any family, without padding."""
    if name not in tiny.ENCODER_DECODERS:
        return {"input_ids": tiny.tokens(BATCH, LENGTH)}
    return source_of(name, model) | {"decoder_input_ids": tiny.tokens(BATCH, ANSWER, seed=2)}
