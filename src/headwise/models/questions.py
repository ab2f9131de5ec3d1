"""What a language model is asked: its own training objective on rows of tokens.

Symbols: N rows, B batch, L length, D documents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows
from headwise.models.losses import IGNORED, Question, row_losses

__all__ = ["ask", "ask_rows", "by_document", "check_length", "check_objective", "document_losses"]

_MASKED_SHARE = 0.15


def check_objective(checkpoint: Checkpoint) -> None:
    """Refuse a model that cannot be asked.

    Raises:
        UserError: the model has no language head, or should tell masked tokens and has no mask.
    """
    if checkpoint.objective is None:
        raise UserError(f"{checkpoint.name}: has no language head, so there is no loss to measure effects on")
    if checkpoint.objective == "masked" and checkpoint.tokenizer.mask_token_id is None:
        raise UserError(f"{checkpoint.name}: a masked language model whose tokenizer has no mask token")


def check_length(checkpoint: Checkpoint, length: int) -> None:
    """Refuse rows of more tokens than the model has positions for.

    Raises:
        UserError: it has fewer.
    """
    most = getattr(checkpoint.model.config.get_text_config(), "max_position_embeddings", None)
    if most and length > most:
        raise UserError(
            f"{checkpoint.name}: expected rows of at most {most:,} tokens, for which it has positions, got {length:,}; "
            "ask for shorter rows"
        )


def ask(checkpoint: Checkpoint, tokens: Tensor, counted: Tensor, units: Sequence[int], seed: int) -> Question:
    """The model's own training objective on these tokens.

    A causal model predicts every counted token from those before it. A masked model gets 15 % of the counted tokens
    (at least one per row) replaced by its mask token and must tell them.

    Args:
        checkpoint: the model.
        tokens: int64 ``[B, L]``.
        counted: boolean ``[L]``: positions whose token is asked for.
        units: what each row belongs to.
        seed: which tokens are masked.

    Raises:
        UserError: the model has no language head, or no mask token.
    """
    check_objective(checkpoint)
    if checkpoint.objective == "next":
        return _next_token(tokens, counted, tuple(units))
    return _masked(checkpoint, tokens, counted, tuple(units), seed)


def ask_rows(checkpoint: Checkpoint, rows: Rows, *, batch: int = 4, seed: int = 0) -> tuple[Question, ...]:
    """All rows as questions whose units are the numbers of the rows, see :func:`by_document`.

    Raises:
        UserError: see :func:`ask`.
    """
    counted = torch.arange(rows.tokens.shape[1]) > 0
    starts = range(0, len(rows), batch)
    parts = [(start, rows.tokens[start : start + batch]) for start in starts]
    return tuple(
        ask(checkpoint, part, counted, range(start, start + len(part)), seed + index)
        for index, (start, part) in enumerate(parts)
    )


def by_document(values: np.ndarray, units: Sequence[int]) -> np.ndarray:
    """Means of rows ``[N, ...]`` over the rows of each document, float64 ``[D, ...]``."""
    owners = np.asarray(units)
    return np.stack([values[owners == unit].mean(0, dtype=np.float64) for unit in range(int(owners.max()) + 1)])


def document_losses(checkpoint: Checkpoint, rows: Rows, *, batch: int = 4, seed: int = 0) -> np.ndarray:
    """Mean loss of every document in nats, float64 ``[D]``.

    Raises:
        UserError: see :func:`ask`.
    """
    with torch.inference_mode():
        parts = [row_losses(checkpoint, question) for question in ask_rows(checkpoint, rows, batch=batch, seed=seed)]
    return by_document(torch.cat(parts).double().cpu().numpy(), rows.units)


def _next_token(tokens: Tensor, counted: Tensor, units: tuple[int, ...]) -> Question:
    labels = torch.full_like(tokens, IGNORED)
    labels[:, :-1] = torch.where(counted[1:], tokens[:, 1:], IGNORED)
    return Question(tokens, labels, units)


def _masked(checkpoint: Checkpoint, tokens: Tensor, counted: Tensor, units: tuple[int, ...], seed: int) -> Question:
    special = torch.isin(tokens, torch.tensor(checkpoint.tokenizer.all_special_ids))
    chances = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed))
    chances = chances.masked_fill(special | ~counted, 2.0)
    chosen = chances < _MASKED_SHARE
    chosen |= chances == chances.amin(dim=1, keepdim=True)
    labels = torch.where(chosen, tokens, IGNORED)
    return Question(torch.where(chosen, checkpoint.tokenizer.mask_token_id, tokens), labels, units)
