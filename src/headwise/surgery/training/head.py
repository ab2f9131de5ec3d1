"""From a model's last states to its logits, apart from the model, so that few of them need to exist at a time.

Symbols: B batch, L length, E model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint

__all__ = ["LanguageHead"]


@dataclass(frozen=True)
class LanguageHead:
    """What stands between the last layer and the logits.

    Attributes:
        module: the part of the model that has the weights.
        softcap: logits are bent below this, or None.
    """

    module: nn.Module
    softcap: float | None

    def __call__(self, states: Tensor) -> Tensor:
        """Logits ``[..., V]`` of states ``[..., E]``."""
        logits: Tensor = self.module(states)
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    @property
    def trained(self) -> list[nn.Parameter]:
        """Its weights that want gradients."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> LanguageHead:
        """The head of a model.

        Raises:
            UserError: the model has none, or one that does more than these do.
        """
        model: Any = checkpoint.model
        module = getattr(model, "cls", None) or model.get_output_embeddings()
        if module is None:
            raise UserError(f"{checkpoint.name}: expected a language head to train with, got {type(model).__name__}")
        head = cls(module, getattr(model.config, "final_logit_softcapping", None))
        head._check(checkpoint)
        return head

    def _check(self, checkpoint: Checkpoint) -> None:
        """Whether these are the model's own logits: some architectures scale them as well."""
        tokens = torch.tensor([[1, 2, 3, 5, 7]]) % checkpoint.model.config.vocab_size
        with torch.no_grad():
            wanted = checkpoint.forward(tokens).logits
            difference = (self(checkpoint.body(tokens)) - wanted).abs().max()
        if not difference <= 1e-3 * wanted.abs().max():
            raise UserError(
                f"{checkpoint.name}: expected logits straight from the last states, got others in "
                f"{type(checkpoint.model).__name__} (they differ by {float(difference):.2g}), so it can't be trained "
                "here; use a model of another architecture"
            )
