"""What models are asked: the next token, or masked ones, at the places that count and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from headwise.errors import UserError
from headwise.models.losses import IGNORED
from headwise.models.questions import ask
from tests.study.tiny import tokenizer


@dataclass
class Asked:
    """All that a question needs to know of a checkpoint."""

    objective: str | None
    tokenizer: Any
    name: str = "model"


def test_the_next_token_is_asked_for_where_it_counts():
    tokens = torch.tensor([[11, 12, 13, 14], [21, 22, 23, 24]])
    counted = torch.tensor([False, True, False, True])
    question = ask(Asked("next", None), tokens, counted, (5, 7), 0)
    assert question.inputs is tokens
    assert question.units == (5, 7)
    assert question.labels.tolist() == [[12, IGNORED, 14, IGNORED], [22, IGNORED, 24, IGNORED]]


def test_a_share_of_the_counted_tokens_is_masked_and_none_that_are_special():
    words = tokenizer(wrapped=True)
    tokens = torch.randint(5, 100, (37, 53), generator=torch.Generator().manual_seed(0))
    tokens[:, 0], tokens[:, -1] = words.cls_token_id, words.sep_token_id
    counted = torch.arange(53) != 3
    question = ask(Asked("masked", words), tokens, counted, range(37), 3)
    masked = question.labels != IGNORED
    assert (question.inputs[masked] == words.mask_token_id).all()
    assert torch.equal(question.labels[masked], tokens[masked])
    assert torch.equal(question.inputs[~masked], tokens[~masked])
    assert not masked[:, [0, 3, -1]].any()
    assert 0.12 < masked.float().mean() < 0.17
    again, other = (ask(Asked("masked", words), tokens, counted, range(37), seed) for seed in (3, 4))
    assert torch.equal(again.labels, question.labels)
    assert not torch.equal(other.labels, question.labels)


def test_a_row_that_chance_spares_is_asked_for_one_token():
    words = tokenizer(wrapped=True)
    tokens = torch.full((41, 3), 17)
    question = ask(Asked("masked", words), tokens, torch.ones(3, dtype=torch.bool), range(41), 0)
    assert (question.labels != IGNORED).any(1).all()


@pytest.mark.parametrize(
    ("objective", "wrapped", "told"), [(None, True, "has no language head"), ("masked", False, "has no mask token")]
)
def test_what_cannot_be_asked_is_named(objective, wrapped, told):
    with pytest.raises(UserError, match=f"^model: .*{told}"):
        ask(Asked(objective, tokenizer(wrapped=wrapped)), torch.ones(1, 3).long(), torch.ones(3).bool(), (0,), 0)
