"""Calls of the native statistics in the words of `attention`, and what the whole map of weights says instead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.attention.forms import EqualIds, Members, RelationForm, SingleKey
from headwise.attention.reference import reference_attention, reference_visible
from headwise.native_statistics import EQUAL, MEMBERS, SINGLE, Results, head_statistics
from tests.attention.cases import Case
from tests.native.decoding import window_sides
from tests.native.prefill_calls import ROUNDING, error_of_sums, positions_of, scale_of

UNWRITTEN = -7


@dataclass(frozen=True)
class Found:
    """What a call wrote, or should have."""

    output: Tensor
    lse: Tensor
    mass: Tensor
    entropy: Tensor
    largest: Tensor
    distance: Tensor
    hits: Tensor
    seen: Tensor


def random_forms(batch: int, queries: int, keys: int, seed: int) -> list[RelationForm]:
    """One of each form for every sequence, and one for all of them; single keys lie outside too, at any distance."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    far = drawn(-3, keys + 3, batch, queries)
    far[:, :1], far[:, -1:] = -(2**63), 2**63 - 1
    ids = drawn(-2, 5, batch, keys) * 2**40  # a few ids, the negative ones equal to nothing
    return [
        SingleKey(far),
        EqualIds(drawn(-2, 5, batch, queries) * 2**40, ids, drawn(-3, keys + 3, batch, queries)),
        EqualIds(drawn(-1, 3, 1, queries), drawn(-1, 3, 1, keys)),
        Members(drawn(0, 2, batch, keys).bool(), queries),
        SingleKey(drawn(0, max(keys, 1), 1, queries)),
        EqualIds(drawn(0, 2, batch, queries), drawn(0, 2, 1, keys), torch.full((1, queries), keys // 2)),
        Members(torch.ones(1, keys, dtype=torch.bool), queries),
        Members(torch.zeros(1, keys, dtype=torch.bool), queries),
    ]


def told(form: RelationForm) -> tuple[Any, ...]:
    """A form as the kernels number it."""
    if isinstance(form, SingleKey):
        return SINGLE, form.index
    if isinstance(form, EqualIds):
        return EQUAL, form.query_ids, form.key_ids, form.excluded
    return MEMBERS, form.members


def alike(case: Case) -> bool:
    """Whether all heads see the same keys."""
    left, right = window_sides(case.options, case.query.shape[1])
    mask = case.options.get("mask")
    shared_mask = mask is None or mask.dim() < 3 or mask.shape[-3] == 1
    return len(set(left)) == len(set(right)) == 1 and shared_mask


def unwritten(case: Case, relations: int) -> tuple[Results, Tensor, Tensor]:
    """Results, output and LSE with what no call writes."""
    rows, batch, queries = case.query.shape[:3], case.query.shape[0], case.query.shape[2]
    seeing = (batch, 1 if alike(case) else rows[1], queries)
    results = Results(
        torch.full((relations, *rows), torch.nan),
        *(torch.full(rows, torch.nan) for _ in range(3)),
        torch.full((relations, *seeing), UNWRITTEN),
        torch.full(seeing, UNWRITTEN),
    )
    output = case.query.new_full((*rows, case.value.shape[3]), torch.nan)
    return results, output, torch.full(rows, torch.nan)


def run_statistics(case: Case, forms: list[RelationForm], isa: str, threads: int = 1, **changed: Any) -> Found:
    """Everything that the kernels write."""
    results, output, lse = unwritten(case, len(forms))
    options = case.options
    left, right = window_sides(options, case.query.shape[1])
    lengths = options.get("key_lengths")
    relations = changed.pop("relations", None) or [told(form) for form in forms]
    head_statistics(
        case.query,
        case.key,
        case.value,
        output,
        relations,
        results,
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
    return Found(output, lse, *results)


def from_the_map(case: Case, forms: list[RelationForm]) -> Found:
    """The same from every single weight, in float64."""
    exact = reference_attention(case.query, case.key, case.value, **case.options)
    visible = reference_visible(case.query, case.key, **case.options)
    (batch, heads, queries), keys = case.query.shape[:3], case.key.shape[2]
    sets = [form.keys(keys).expand(batch, queries, keys)[:, None] for form in forms]  # [B, 1, L, S]
    places = torch.tensor(positions_of(case))[:, None] + torch.arange(queries)  # [B, L]
    distance = (places[:, None, :, None] - torch.arange(keys)).abs()
    weights = exact.weights.reshape(batch, heads, queries, keys)
    seen = visible[:, : 1 if alike(case) else heads]
    return Found(
        output=exact.output,
        lse=exact.lse,
        mass=torch.stack([(weights * one).sum(-1) for one in sets]),
        entropy=torch.special.entr(weights).sum(-1),
        largest=weights.amax(-1) if keys else weights.new_zeros(batch, heads, queries),
        distance=(weights * distance).sum(-1),
        hits=torch.stack([(seen & one).sum(-1) for one in sets]),
        seen=seen.sum(-1),
    )


def assert_statistics(case: Case, found: Found, expected: Found) -> None:
    """Counts are exact, and the rest lies as near to what the map says as roundings allow.

    With relative errors e of numerator and denominator a share of the weights is off by 2 e of itself, an entropy of
    terms p ln p by 2 e of p (1 + |ln p|).
    """
    assert torch.equal(found.hits, expected.hits)
    assert torch.equal(found.seen, expected.seen)
    error = 2 * error_of_sums(case) + 4 * ROUNDING[torch.float32]
    for name in ("mass", "largest", "distance", "entropy"):
        actual, right = getattr(found, name).double(), getattr(expected, name)
        assert actual.shape == right.shape, name
        assert not actual.isnan().any(), f"{name} holds NaN"
        allowed = error * (right + (expected.entropy if name == "entropy" else 0) + 1) + 1e-30
        if name in ("mass", "largest"):
            allowed = error * right.clamp(min=1e-30) + 1e-30
        if name == "distance":
            allowed = error * right + 1e-30
        off = (actual - right).abs()
        assert (off <= allowed).all(), f"{name}: off by {float((off - allowed).max()):.3g} more than allowed"


def without_values(case: Case) -> Case:
    """The same call with nothing to mix."""
    return replace(case, value=case.value[..., :0])
