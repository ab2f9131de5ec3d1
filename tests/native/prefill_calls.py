"""Calls of the prefill kernel in the words of `attention`, and how far its results may lie from the oracle's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.native import prefill_attention
from tests.attention.cases import Case
from tests.native.decoding import positions, window_sides

# Half the distance of neighbouring numbers, relative: what one rounding to the type may cost.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def held_in(case: Case, dtype: torch.dtype) -> Case:
    """The case with tensors as the kernel takes them: query, key, value and bias in ``dtype``, the rest in float32."""
    options = dict(case.options)
    for name in ("sinks", "alibi_slopes"):
        if name in options:
            options[name] = options[name].float().contiguous()
    if "bias" in options:
        options["bias"] = options["bias"].to(dtype)
    return Case(case.query.to(dtype), case.key.to(dtype), case.value.to(dtype), options)


def run_prefill(case: Case, isa: str, threads: int = 1) -> tuple[Tensor, Tensor]:
    """Output ``[B, H, L, Dv]`` and LSE ``[B, H, L]``; both hold NaN where nothing was written."""
    query, key, value, options = case.query, case.key, case.value, case.options
    output = query.new_full((*query.shape[:3], value.shape[3]), torch.nan)
    lse = torch.full(query.shape[:3], torch.nan, dtype=torch.float32)
    left, right = window_sides(options, query.shape[1])
    lengths = options.get("key_lengths")
    prefill_attention(
        query,
        key,
        value,
        output,
        lse=lse,
        offsets=positions_of(case),
        key_lengths=None if lengths is None else lengths.tolist(),
        left=left,
        right=right,
        mask=options.get("mask"),
        bias=options.get("bias"),
        sinks=options.get("sinks"),
        slopes=options.get("alibi_slopes"),
        scale=scale_of(case),
        softcap=options.get("softcap", 0.0),
        threads=threads,
        isa=isa,
    )
    return output, lse


def positions_of(case: Case) -> list[int]:
    """Where the first query of each sequence stands."""
    batch, _, queries, _ = case.query.shape
    return positions(case.options, batch, queries, case.key.shape[2])


def scale_of(case: Case) -> float:
    """The factor of the scores."""
    scale = case.options.get("scale")
    return float(case.query.shape[3] ** -0.5 if scale is None else scale)


@dataclass(frozen=True)
class Allowed:
    """How far each output and each LSE may lie from the truth."""

    output: float
    lse: float


def allowed(case: Case, lse: Tensor) -> Allowed:
    """The distance that roundings can explain, step by step.

    A score is a sum of D products of float32 and a few more steps; its error, relative to the sum of the sizes, is at
    most one rounding per step. An error of e in the scores changes each weight by a factor of e^(2 e) at most. The sums
    over S keys add one rounding per key; weights may be rounded to bfloat16, as the output is to its type.
    """
    unit, dtype = ROUNDING[torch.float32], case.query.dtype
    sums = error_of_sums(case)
    weights = ROUNDING[dtype] if dtype == torch.bfloat16 else 0.0
    finite = lse[lse.isfinite()]
    values = _largest(case.value.double().abs())
    return Allowed(values * (2 * sums + 2 * weights + ROUNDING[dtype]), sums + 2 * unit * _largest(finite.abs()))


def error_of_sums(case: Case) -> float:
    """How far a sum over exponentials of scores may lie from the truth, relative to its size."""
    unit = ROUNDING[torch.float32]
    keys, width = case.key.shape[2], case.query.shape[3]
    grouped = case.query.double().abs().unflatten(1, (case.key.shape[1], -1)).flatten(2, 3)  # [B, G, R L, D]
    size = _largest(grouped @ case.key.double().abs().mT) * abs(scale_of(case)) + _largest_addend(case)
    return 2 * (width + 16) * unit * size + (keys + 32) * unit


def _largest(tensor: Tensor) -> float:
    return float(tensor.max()) if tensor.numel() else 0.0


def _largest_addend(case: Case) -> float:
    total = 0.0
    bias, slopes = case.options.get("bias"), case.options.get("alibi_slopes")
    if bias is not None:
        total += _largest(bias.double().abs())
    if slopes is not None:
        far = (
            max((abs(position) for position in positions_of(case)), default=0) + case.query.shape[2] + case.key.shape[2]
        )
        total += _largest(slopes.abs()) * far
    return total


def assert_near(case: Case, found: tuple[Tensor, Tensor], output: Tensor, lse: Tensor) -> None:
    """What the kernel found lies as near to the oracle's output and LSE as roundings allow."""
    limits = allowed(case, lse)
    for name, actual, expected, limit in (
        ("output", found[0], output, limits.output),
        ("LSE", found[1], lse, limits.lse),
    ):
        assert actual.shape == expected.shape
        assert not actual.isnan().any(), f"{name} holds NaN"
        infinite = expected.isinf()
        assert torch.equal(actual.double()[infinite], expected[infinite]), f"{name}: infinities lie elsewhere"
        distance = _largest((actual.double() - expected)[~infinite].abs())
        assert distance <= limit, f"{name}: off by {distance:.3g}, allowed {limit:.3g}"
