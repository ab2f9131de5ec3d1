"""A causal mask over random 4 by 4 scores: the printed scores and weights, to four decimals.

The scores are those of ``torch.manual_seed(42); torch.randn(4, 4)``; the weights were printed for the numbers before
rounding (rounded scores would give 0.8713 where 0.8714 is printed).
"""

from __future__ import annotations

import pytest
import torch

from headwise.attention import attention, attention_weights
from headwise.attention.problem import Problem
from headwise.attention.reference import reference_attention

SCORES = torch.tensor(
    [
        [1.9269, 1.4873, 0.9007, -2.1055],
        [0.6784, -1.2345, -0.0431, -1.6047],
        [-0.7521, 1.6487, -0.3925, -1.4036],
        [-0.7279, -0.5594, -0.7688, 0.7624],
    ],
    dtype=torch.float64,
)
WEIGHTS = torch.tensor(
    [
        [1.0000, 0.0000, 0.0000, 0.0000],
        [0.8714, 0.1286, 0.0000, 0.0000],
        [0.0743, 0.8193, 0.1064, 0.0000],
        [0.1319, 0.1561, 0.1266, 0.5854],
    ],
    dtype=torch.float64,
)


@pytest.fixture
def scores() -> torch.Tensor:
    """The numbers behind the printed ones."""
    torch.manual_seed(42)
    return torch.randn(4, 4).double()


def to_four_decimals(numbers: torch.Tensor) -> torch.Tensor:
    return (numbers * 1e4).round()


@pytest.mark.parametrize("backend", ["math", "sdpa"])
def test_masked_scores_give_the_printed_weights(scores: torch.Tensor, backend: str) -> None:
    assert torch.equal(to_four_decimals(scores), to_four_decimals(SCORES))
    # Keys that are unit vectors and a scale of 1 make the query's entries the scores; unit values show the weights.
    query, unit = scores[None, None], torch.eye(4, dtype=torch.float64)[None, None]
    masked = Problem.of(query, unit, causal=True, scale=1.0).scores(0, 4)[0, 0]
    above = torch.ones(4, 4, dtype=torch.bool).triu(1)
    assert torch.equal(masked, scores.masked_fill(above, -torch.inf))
    results = [
        attention(query, unit, unit, causal=True, scale=1.0, backend=backend),
        attention_weights(query, unit, causal=True, scale=1.0),
        reference_attention(query, unit, unit, causal=True, scale=1.0).weights,
    ]
    for weights in results:
        assert torch.equal(to_four_decimals(weights[0, 0]), to_four_decimals(WEIGHTS))
        assert weights[0, 0][above].eq(0).all()
