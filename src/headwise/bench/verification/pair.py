"""Whether two models can be compared token by token."""

from __future__ import annotations

from headwise.errors import UserError
from headwise.models import Checkpoint
from headwise.surgery.mla.model import LatentCheckpoint

__all__ = ["check_pair", "max_positions"]

_WORDS = {"next": "a causal language model", "masked": "a masked language model", None: "no language head"}


def check_pair(first: Checkpoint, second: Checkpoint) -> None:
    """Refuse models whose logits don't mean the same.

    Raises:
        UserError: a model without a language head or with latent attention, two kinds of models, or two vocabularies.
    """
    for checkpoint in (first, second):
        if isinstance(checkpoint, LatentCheckpoint):
            raise UserError(
                f"verify: {checkpoint.name}: expected attention over keys and values, got latent attention, for which "
                "transformers has no cache to decode with; headwise.models.questions.document_losses tells its loss"
            )
        if checkpoint.objective is None:
            raise UserError(
                f"verify: {checkpoint.name}: expected a language model, got {type(checkpoint.model).__name__} without "
                "a language head, which gives no logits to compare"
            )
    if first.objective != second.objective:
        raise UserError(
            f"verify: {second.name}: expected {_WORDS[first.objective]} as {first.name} is, got "
            f"{_WORDS[second.objective]}; give two models of one kind"
        )
    _check_vocabularies(first, second)


def max_positions(first: Checkpoint, second: Checkpoint) -> int | None:
    """How many positions both models have; None if none of them says."""
    told = [
        getattr(checkpoint.model.config.get_text_config(), "max_position_embeddings", None)
        for checkpoint in (first, second)
    ]
    return min((most for most in told if most), default=None)


def _check_vocabularies(first: Checkpoint, second: Checkpoint) -> None:
    """The same token ids for the same words, and as many logits."""
    words = [{token: word for word, token in each.tokenizer.get_vocab().items()} for each in (first, second)]
    if words[0] != words[1]:
        token = min(token for token in words[0].keys() | words[1].keys() if words[0].get(token) != words[1].get(token))
        raise _refusal(first, second, f"{words[1].get(token)!r} as token {token} instead of {words[0].get(token)!r}")
    sizes = [each.model.config.get_text_config().vocab_size for each in (first, second)]
    if sizes[0] != sizes[1]:
        raise _refusal(first, second, f"{sizes[1]:,} logits instead of {sizes[0]:,}")


def _refusal(first: Checkpoint, second: Checkpoint, got: str) -> UserError:
    return UserError(
        f"verify: {second.name}: expected the vocabulary of {first.name}, since logits are compared token by token, "
        f"got {got}; give two models with one tokenizer"
    )
