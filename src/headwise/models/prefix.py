"""Running only the layers that a change can reach.

Ablating a head in layer 20 leaves layers 0 to 19 as they were. Their output is recorded once and handed back, so that
each condition costs the layers from its first changed one on. The result is the same to the bit, since the same
numbers enter the same operations.

Symbols: B batch, L query length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.models.checkpoint import Checkpoint

__all__ = ["Prefix", "find_blocks"]


class Prefix:
    """Recorded outputs of a model's blocks on one input.

    Args:
        checkpoint: the model.
        tokens: int64 ``[B, L]``; run once, intact.

    A model whose blocks cannot be skipped (one shared block, as in ALBERT; attention outside any list of blocks; blocks
    that hand more to later ones than their output) is run as a whole every time: nothing is saved, and nothing changes.
    """

    def __init__(self, checkpoint: Checkpoint, tokens: Tensor) -> None:
        self.tokens = tokens
        found = find_blocks(checkpoint)
        self._blocks, self._block_of_layer = found if found else ((), ())
        self._outputs: list[Any] = []
        self._entered: Any = None  # what the first block was given
        if self._blocks:
            whole = self._record(checkpoint)
            if not self._reproduces(checkpoint, whole):
                self._blocks, self._outputs = (), []

    @property
    def skips(self) -> bool:
        """Whether anything is saved."""
        return bool(self._blocks)

    @contextmanager
    def before(self, layer: int) -> Iterator[None]:
        """Inside the block, everything before attention layer ``layer`` is taken from the record.

        The model must be called on the same tokens, and nothing before ``layer`` may be changed.

        Raises:
            ValueError: on a forward pass inside the block, if it is not on the recorded tokens.
        """
        skipped = self._blocks[: self._block_of_layer[layer]] if self._blocks else ()
        own = [block.__dict__.get("forward") for block in skipped]  # accelerate puts one there
        try:
            for block in skipped:
                # Every skipped block gives what the last one gave: whatever comes in between is not looked at.
                block.forward = self._stand_in(self._outputs[len(skipped) - 1], first=block is skipped[0])
            yield
        finally:
            for block, forward in zip(skipped, own, strict=True):
                if forward is None:
                    block.__dict__.pop("forward", None)
                else:
                    block.forward = forward

    def _stand_in(self, output: Any, first: bool) -> Callable[..., Any]:
        def forward(*inputs: Any, **_options: Any) -> Any:
            if first and inputs and not torch.equal(inputs[0], self._entered):
                raise ValueError("Prefix: called on other tokens than those it was recorded on; make another Prefix")
            return output

        return forward

    def _record(self, checkpoint: Checkpoint) -> Tensor:
        """Run the model once, keep what every block gives, and return what the model gives."""

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            if module is self._blocks[0]:
                self._entered = inputs[0] if inputs else None
            self._outputs.append(output)

        handles = [block.register_forward_hook(keep) for block in self._blocks]
        try:
            # Not inference mode: its tensors could not take part in a backward pass later on.
            with torch.no_grad():
                return checkpoint.body(self.tokens)
        finally:
            for handle in handles:
                handle.remove()

    def _reproduces(self, checkpoint: Checkpoint, whole: Tensor) -> bool:
        """Whether running the last layer alone gives the same to the bit."""
        if len(self._outputs) != len(self._blocks):
            return False
        try:
            with torch.no_grad(), self.before(checkpoint.num_layers - 1):
                return torch.equal(checkpoint.body(self.tokens), whole)
        except Exception:  # whatever a later block misses when an earlier one has not run
            return False


def find_blocks(checkpoint: Checkpoint) -> tuple[Sequence[nn.Module], tuple[int, ...]] | None:
    """The list of blocks, and for every attention layer the index of its block."""
    modules = {layers[0]: module for module, layers in checkpoint.attention_layers.items() if len(layers) == 1}
    if len(modules) != checkpoint.num_layers:
        return None
    for candidate in checkpoint.model.modules():
        if not isinstance(candidate, nn.ModuleList):
            continue
        homes = {inner: index for index, block in enumerate(candidate) for inner in block.modules()}
        places = [homes.get(modules[layer]) for layer in range(checkpoint.num_layers)]
        known = [place for place in places if place is not None]
        if len(known) == len(places) and known == sorted(set(known)):
            return list(candidate), tuple(known)
    return None
