"""What is asked of the memory: how many tokens, how many sequences, stored how, over how many devices."""

from __future__ import annotations

from dataclasses import dataclass

from headwise.plan.config import LARGEST
from headwise.plan.errors import PlanError, shown
from headwise.plan.storage import Storage
from headwise.plan.storages import BF16

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """One load.

    Attributes:
        context: tokens of each sequence, prompt and answer together; 0 is an empty cache.
        batch: sequences held at once.
        storage: of keys, latents and, unless ``value_storage`` says otherwise, values.
        value_storage: of values; None: as the keys.
        state_storage: of convolution and recurrent states; None: as the runtime does by itself.
        tp: ranks of tensor parallelism.
        encoder_length: tokens of the encoder, for cross attention; None: as the model says.
        speculative: draft tokens that a step holds behind the context of each sequence until it has checked them.
        shared_prefix: tokens at the front that all sequences have in common; a runtime that can, keeps them once.

    Raises:
        PlanError: a number is not a whole one, or out of range.
    """

    context: int
    batch: int = 1
    storage: Storage = BF16
    value_storage: Storage | None = None
    state_storage: Storage | None = None
    tp: int = 1
    encoder_length: int | None = None
    speculative: int = 0
    shared_prefix: int = 0

    def __post_init__(self) -> None:
        _whole("--context", self.context, 0)
        _whole("--batch", self.batch, 1)
        _whole("--tp", self.tp, 1)
        _whole("--speculative", self.speculative, 0)
        _whole("--shared-prefix", self.shared_prefix, 0)
        if self.encoder_length is not None:
            _whole("--encoder-length", self.encoder_length, 0)
        if self.shared_prefix > self.context:
            raise PlanError(
                f"--shared-prefix: expected at most the context of {self.context} tokens, got {self.shared_prefix}"
            )

    @property
    def length(self) -> int:
        """Tokens of a sequence while a step checks its drafts; 0 where there is no sequence yet."""
        return self.context + self.speculative if self.context else 0


def _whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
        raise PlanError(f"{name}: expected a whole number from {least} to {LARGEST}, got {shown(value)}")
