"""KL, agreement, losses and changes of logits against loops over single numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headwise.bench.verification import compare as module
from headwise.bench.verification.compare import compare, distances
from headwise.errors import UserError
from headwise.models.losses import IGNORED, Question
from headwise.models.weights import copy_of


def by_hand(first: np.ndarray, second: np.ndarray, label: int) -> list[float]:
    """One position in float64: losses, right or not, KL, agreement, mean change."""
    shares = [[math.exp(x - max(row)) for x in row] for row in (first.tolist(), second.tolist())]
    p, q = ([x / math.fsum(row) for x in row] for row in shares)
    best = [row.index(max(row)) for row in (p, q)]
    kl = math.fsum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))
    change = math.fsum(abs(b - a) for a, b in zip(first.tolist(), second.tolist(), strict=True)) / len(p)
    right = [float(each == label) for each in best]
    return [-math.log(p[label]), -math.log(q[label]), *right, kl, float(best[0] == best[1]), change]


@pytest.mark.parametrize("chunk", [1, 40, 1 << 22])
def test_positions_against_loops(monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    generator = torch.Generator().manual_seed(3)
    first, second = (3 * torch.randn(11, 13, generator=generator) for _ in range(2))
    second[:4] = first[:4] + 0.1 * second[:4]  # some agree
    labels = torch.randint(0, 13, (11,), generator=generator)
    labels[5] = first[5].argmax()
    measured, largest = distances(first, second, labels)
    rows = zip(first.double().numpy(), second.double().numpy(), labels.tolist(), strict=True)
    wanted = np.array([by_hand(*row) for row in rows])
    # float64 sums of 13 numbers of size 10 in another order
    np.testing.assert_allclose(measured.numpy(), wanted, rtol=0, atol=1e-13)
    assert largest == (second.double() - first.double()).abs().max().item()
    assert 0 < wanted[:, 5].mean() < 1
    assert wanted[:, 2].sum() >= 1


@pytest.mark.parametrize("logits", [1, 1 << 25])
def test_means_over_the_asked_positions_of_each_document(monkeypatch, llama, pooled, logits):
    """Two rows of one document and one of another, with other numbers of asked positions."""
    monkeypatch.setattr(module, "_LOGITS", logits)
    tokens = torch.randint(5, 216, (3, 17), generator=torch.Generator().manual_seed(1))
    labels = tokens.roll(-1, 1)
    labels[:, -1] = IGNORED
    labels[1, 3:9] = IGNORED
    found = compare(llama, pooled, [Question(tokens[:2], labels[:2], (1, 0)), Question(tokens[2:], labels[2:], (1,))])
    with torch.inference_mode():
        rows = [[each.forward(row[None]).logits[0].double().numpy() for row in tokens] for each in (llama, pooled)]
    values: dict[int, list[list[float]]] = {0: [], 1: []}
    for number, unit in enumerate((1, 0, 1)):
        for place in range(17):
            if labels[number, place] != IGNORED:
                values[unit].append(by_hand(rows[0][number][place], rows[1][number][place], int(labels[number, place])))
    wanted = np.array([np.mean(values[unit], axis=0) for unit in (0, 1)])
    got = np.stack([getattr(found, name) for name in module._MEANS], axis=1)
    # The models run in float32, and their rows side by side round otherwise than alone.
    alone = torch.finfo(torch.float32).eps * 64 * max(abs(logits).max() for side in rows for logits in side)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=alone)
    assert found.positions == sum(map(len, values.values())) == 42
    asked = (labels != IGNORED).numpy()
    changes = [abs(rows[1][number] - rows[0][number])[asked[number]].max() for number in range(3)]
    assert found.largest_change == pytest.approx(max(changes), abs=2 * alone)


def test_a_model_beside_itself_differs_in_nothing(llama):
    tokens = torch.randint(5, 216, (2, 19), generator=torch.Generator().manual_seed(1))
    found = compare(llama, copy_of(llama), [Question(tokens, tokens, (0, 1))])
    assert found.largest_change == 0
    assert found.kl.tolist() == found.change.tolist() == [0, 0]
    assert found.agreement.tolist() == [1, 1]
    assert found.loss_a.tolist() == found.loss_b.tolist()


def test_logits_that_are_not_finite_are_refused(llama):
    spoilt = copy_of(llama)
    spoilt.name = "spoilt"
    spoilt.model.model.norm.weight[3] = torch.nan
    tokens = torch.ones(1, 7, dtype=torch.int64)
    with pytest.raises(UserError, match="verify: spoilt: expected finite logits, got NaN or infinity"):
        compare(llama, spoilt, [Question(tokens, tokens, (0,))])
