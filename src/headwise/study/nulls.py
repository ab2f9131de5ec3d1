"""What chance gives: random weights, and how far a head stands out from them.

Symbols: H heads of one layer, D documents.

A head counts as a finding only if it beats every null that applies to its score:

* uniform attention over the keys it may see (closed form, from the relation);
* the same architecture with random weights: every weight drawn anew, with replacement, from the model's own weights of
  the same tensor, so that their scale and spread stay and everything learnt goes;
* for scores that depend on content, shuffled tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from headwise.models import Checkpoint

# Nine slices of 1,111 sign patterns: 9,999 in all, with memory small however many heads there are.
SLICES, FLIPS_PER_SLICE = 9, 1_111
FLIPS = SLICES * FLIPS_PER_SLICE


@contextmanager
def random_weights(checkpoint: Checkpoint) -> Iterator[RandomWeights]:
    """A copy of the checkpoint whose weights can be drawn again and again; the original stays as it is."""
    twin = copy.deepcopy(checkpoint.model)
    try:
        yield RandomWeights(checkpoint, twin)
    finally:
        del twin


class RandomWeights:
    """Draws models with random weights from one checkpoint."""

    def __init__(self, checkpoint: Checkpoint, twin: torch.nn.Module) -> None:
        self._original = checkpoint
        self._twin = Checkpoint(
            twin,
            checkpoint.tokenizer,
            name=f"{checkpoint.name} with random weights",
            source=checkpoint.source,
            objective=checkpoint.objective,
        )

    def draw(self, seed: int) -> Checkpoint:
        """The twin with weights drawn by ``seed``. Valid until the next draw."""
        generator = torch.Generator().manual_seed(seed)
        originals = dict(self._original.model.named_parameters())
        with torch.no_grad():
            for name, parameter in self._twin.model.named_parameters():
                source = originals[name].detach().cpu().reshape(-1)
                chosen = torch.randint(source.numel(), (source.numel(),), generator=generator)
                parameter.copy_(source.index_select(0, chosen).view_as(parameter))
        return self._twin


def paired_p_values(values: np.ndarray, nulls: np.ndarray, seed: int) -> np.ndarray:
    """One-sided sign-flip test that values exceed their paired nulls.

    Args:
        values: ``[D, ...]`` one value per document.
        nulls: ``[D, ...]`` the null of the same document.
        seed: seed of the flips.

    Returns:
        ``[...]`` p = (c + 1) / (n + 1) with n random sign patterns, c of them with a mean at least as large; NaN where
        no document has a value. Documents without a value are left out.
    """
    differences = values - nulls
    counted = np.isfinite(differences)
    differences = np.where(counted, differences, 0.0)
    flat = differences.reshape(len(differences), -1).astype(np.float64)
    observed = flat.sum(0)
    generator = np.random.default_rng(seed)
    as_large = np.zeros(flat.shape[1])
    rounding = 1e-12 * np.abs(flat).sum(0)  # the same sum in another order must count as a tie
    for _ in range(SLICES):
        signs = generator.choice((-1.0, 1.0), size=(FLIPS_PER_SLICE, len(flat)))
        as_large += (signs @ flat >= observed - rounding).sum(0)
    p = (as_large + 1) / (FLIPS + 1)
    return np.where(counted.any(0).reshape(-1), p, np.nan).reshape(values.shape[1:])


def population_p_values(values: np.ndarray, null_heads: np.ndarray) -> np.ndarray:
    """Where heads stand among heads with random weights: p = (c + 1) / (n + 1), one-sided.

    Args:
        values: any shape, one value per head.
        null_heads: values of heads with random weights, any shape; NaN is left out.
    """
    pool = np.sort(null_heads[np.isfinite(null_heads)].astype(np.float64).reshape(-1))
    as_large = len(pool) - np.searchsorted(pool, values.astype(np.float64), side="left")
    return np.where(np.isfinite(values), (as_large + 1) / (len(pool) + 1), np.nan)


def benjamini_hochberg(p_values: np.ndarray) -> np.ndarray:
    """False-discovery-rate adjusted p-values (Benjamini and Hochberg 1995), any shape; NaN stays and is not counted."""
    q_values = np.full(p_values.shape, np.nan)
    tested = np.isfinite(p_values)
    p = p_values[tested]
    if p.size:
        order = np.argsort(p)
        scaled = p[order] * p.size / np.arange(1, p.size + 1)
        adjusted = np.minimum.accumulate(scaled[::-1])[::-1].clip(max=1.0)
        back = np.empty_like(adjusted)
        back[order] = adjusted
        q_values[tested] = back
    return q_values
