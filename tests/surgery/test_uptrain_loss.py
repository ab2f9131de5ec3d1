"""The losses of re-training and their gradients, against formulas written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.surgery.training.head import LanguageHead
from headwise.surgery.training.loss import Target, head_losses, judge
from headwise.surgery.training.schedule import learning_rate
from tests.helpers.compare import assert_same
from tests.models import tiny
from tests.surgery.uptrain_models import built

POSITIONS, WIDTH, TEACHER_WIDTH, VOCABULARY = 7, 5, 3, 11


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def probabilities(logits: list[float], temperature: float) -> list[float]:
    powers = [math.exp(logit / temperature) for logit in logits]
    return [power / sum(powers) for power in powers]


def by_hand(
    logits: Tensor, labels: Tensor, teacher: Tensor, loss: str, temperature: float
) -> tuple[list[float], list[float], list[list[float]]]:
    """Cross entropy, T² KL(teacher, student), and the derivative of one of them, number by number."""
    entropies, divergences, slopes = [], [], []
    for own, label, other in zip(logits.tolist(), labels.tolist(), teacher.tolist(), strict=True):
        plain, student, target = (
            probabilities(own, 1.0), probabilities(own, temperature), probabilities(other, temperature)
        )  # fmt: skip
        entropies.append(-math.log(plain[label]))
        pairs = list(zip(target, student, strict=True))
        divergences.append(temperature**2 * sum(t * math.log(t / s) for t, s in pairs))
        if loss == "kl":
            slopes.append([temperature * (s - t) for t, s in pairs])
        else:
            slopes.append([p - (word == label) for word, p in enumerate(plain)])
    return entropies, divergences, slopes


@pytest.mark.parametrize("loss", ["kl", "ce"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_losses_and_their_gradient_are_those_of_the_formulas(loss, temperature):
    logits, teacher = numbers(POSITIONS, VOCABULARY), numbers(POSITIONS, VOCABULARY)
    labels = torch.randint(VOCABULARY, (POSITIONS,))
    found = judge(logits, labels, teacher, loss, temperature)
    expected = by_hand(logits, labels, teacher, loss, temperature)
    for got, wanted, what in zip(found, expected, ("cross entropy", "divergence", "gradient"), strict=True):
        assert_same(got, torch.tensor(wanted, dtype=torch.float64), what=what)


def heads() -> tuple[LanguageHead, LanguageHead]:
    student, teacher = nn.Linear(WIDTH, VOCABULARY).double(), nn.Linear(TEACHER_WIDTH, VOCABULARY).double()
    return LanguageHead(student, 3.0), LanguageHead(teacher.requires_grad_(False), None)


@pytest.mark.parametrize("loss", ["kl", "ce"])
@pytest.mark.parametrize("chunk", [1, 3, POSITIONS, None])
def test_chunks_change_nothing_and_gradients_are_those_of_the_whole(loss, chunk):
    """The whole at once, by PyTorch's own functions, with a soft-cap between states and losses."""
    head, teacher_head = heads()
    states, teacher_states = numbers(POSITIONS, WIDTH).requires_grad_(), numbers(POSITIONS, TEACHER_WIDTH)
    labels = torch.randint(VOCABULARY, (POSITIONS,))
    wanted = [states, *head.module.parameters()]
    logits = head(states)
    cross_entropy = nn.functional.cross_entropy(logits, labels, reduction="none")
    told = teacher_head(teacher_states).log_softmax(-1)
    divergence = nn.functional.kl_div(logits.log_softmax(-1), told, log_target=True, reduction="none").sum(-1)
    total = (divergence if loss == "kl" else cross_entropy).sum() * 3.0
    expected = torch.autograd.grad(total, wanted)
    target = Target(labels, teacher_states, teacher_head, loss)
    found = head_losses(states, head, target, chunk=chunk)
    assert found.divergence is not None
    assert_same(found.cross_entropy, cross_entropy, what="cross entropy")
    assert_same(found.divergence, divergence, what="divergence")
    assert_same(found.total * 3.0, total, what="total")
    for got, one in zip(torch.autograd.grad(found.total * 3.0, wanted), expected, strict=True):
        assert_same(got, one, what="gradient")


def test_a_frozen_head_gets_no_gradient_and_a_measurement_keeps_no_graph():
    head, teacher_head = heads()
    head.module.requires_grad_(False)
    states, labels = numbers(POSITIONS, WIDTH).requires_grad_(), torch.zeros(POSITIONS, dtype=torch.long)
    head_losses(states, head, Target(labels, numbers(POSITIONS, TEACHER_WIDTH), teacher_head)).total.backward()
    assert states.grad is not None
    assert all(parameter.grad is None for parameter in head.module.parameters())
    with torch.no_grad():
        assert not head_losses(states, head, Target(labels, loss="ce")).total.requires_grad


def test_without_a_teacher_there_is_no_divergence():
    head, _ = heads()
    labels = torch.zeros(POSITIONS, dtype=torch.long)
    found = head_losses(numbers(POSITIONS, WIDTH), head, Target(labels, loss="ce"))
    assert found.divergence is None
    assert_same(found.total, found.cross_entropy.sum())


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "gpt-neox", "phi3", "bert"])
def test_the_head_gives_the_logits_of_the_model(name):
    checkpoint, tokens = built(name), tiny.tokens(2, 13)
    with torch.no_grad():
        torch.testing.assert_close(
            LanguageHead.of(checkpoint)(checkpoint.body(tokens)), checkpoint.forward(tokens).logits
        )


def test_a_model_that_does_more_with_its_logits_is_refused():
    with pytest.raises(UserError, match=r"^cohere: expected logits straight from the last states, got others in Coh"):
        LanguageHead.of(built("cohere"))  # scales them


def test_the_rate_rises_straight_and_falls_by_a_cosine():
    rates = [learning_rate(step, 10, 2.0, 0.15) for step in range(10)]
    assert rates[:3] == [1.0, 2.0, 2.0]  # 15 % of ten steps are two whole ones
    assert rates[6] == pytest.approx(1.0)  # halfway down
    assert rates[9] == pytest.approx(2.0 * 0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert min(rates) > 0
    assert learning_rate(0, 1, 2.0, 0.0) == 2.0
