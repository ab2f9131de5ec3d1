"""Rows of tokens on their way through a model, block by block.

Changing layers one after the other needs the input of each layer once the layers before it are changed. The hidden
states stand between two blocks, so each block runs once instead of the whole prefix for every layer.

Symbols: N rows, L length, E model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.prefix import find_blocks

__all__ = ["Step", "Walk"]

_SIDE_BY_SIDE = 4_096  # tokens that run together


class _ReachedError(Exception):
    """Ends a forward pass where nothing more is wanted from it."""


@dataclass
class Step:
    """A module on the walk, and how the model calls it.

    Attributes:
        module: a block, or its attention.
        rest: what it is given without a name after the hidden states.
        options: what it is given by name, but for the hidden states.
    """

    module: nn.Module
    rest: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, hidden: Tensor) -> Tensor:
        """The module's output ``[n, L, E]`` for ``[n, L, E]``; with gradients where they are on."""
        given = self.module(hidden, *self.rest, **self.options)
        output: Tensor = given[0] if isinstance(given, tuple) else given
        return output


class Walk:
    """Rows on their way through a decoder.

    Args:
        checkpoint: the model, which may be changed ahead of the walk.
        tokens: int64 ``[N, L]``, all of the same length and without padding.

    Attributes:
        hidden: ``[N, L, E]``, what enters the next block.

    Raises:
        UserError: the model's layers are no plain list of blocks.
    """

    def __init__(self, checkpoint: Checkpoint, tokens: Tensor) -> None:
        found = find_blocks(checkpoint)
        if found is None or len(found[0]) != checkpoint.num_layers:
            raise UserError(
                f"{checkpoint.name}: expected a list of blocks with one attention layer each, so that they can be "
                "changed one after the other; this architecture is built otherwise"
            )
        self.checkpoint = checkpoint
        self._blocks = found[0]
        self._batch = max(1, _SIDE_BY_SIDE // tokens.shape[1])
        self._calls = self._record_calls(tokens[:1])
        self.hidden = torch.cat([self._embed(part) for part in tokens.split(self._batch)])

    def attention(self, layer: int) -> Step:
        """The attention of ``layer`` as it is now, to be called by itself."""
        module = next(module for module, layers in self.checkpoint.attention_layers.items() if layer in layers)
        return replace(self._calls[layer][1], module=module)

    def inputs(self, layer: int) -> Tensor:
        """What the attention of ``layer`` is given ``[N, L, E]``, with the walk just before its block."""
        block, attention = self._calls[layer][0], self.attention(layer).module
        return torch.cat([_caught(attention, partial(block, part)) for part in self._parts(self.hidden)])

    def attend(self, layer: int, inputs: Tensor) -> Tensor:
        """The output of the attention of ``layer`` on inputs ``[N, L, E]``, without gradients."""
        attention = self.attention(layer)
        with torch.no_grad():
            return torch.cat([attention(part) for part in self._parts(inputs)])

    def advance(self, layer: int) -> None:
        """Run the block of ``layer``."""
        with torch.no_grad():
            for part in self._parts(self.hidden):
                part.copy_(self._calls[layer][0](part))

    def _parts(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return hidden.split(self._batch)

    def _record_calls(self, row: Tensor) -> list[tuple[Step, Step]]:
        """How blocks and attention modules are called. One row does: masks and positions broadcast over rows."""
        calls: list[tuple[Step, Step]] = []
        handles = []

        def note(step: Step) -> None:
            def hook(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
                named = {name: given for name, given in options.items() if name != "hidden_states"}
                step.rest, step.options = arguments[1:], named

            handles.append(step.module.register_forward_pre_hook(hook, with_kwargs=True))

        for module, layers in sorted(self.checkpoint.attention_layers.items(), key=lambda item: item[1]):
            calls.append((Step(self._blocks[layers[0]]), Step(module)))
            note(calls[-1][0])
            note(calls[-1][1])
        with _removing(handles), torch.no_grad():
            self.checkpoint.body(row)
        return calls

    def _embed(self, tokens: Tensor) -> Tensor:
        return _caught(self._blocks[0], lambda: self.checkpoint.body(tokens))


def _caught(module: nn.Module, run: Callable[[], Any]) -> Tensor:
    """The hidden states that ``module`` is called with; nothing behind it runs."""
    caught: list[Tensor] = []

    def stop(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        caught.append(arguments[0] if arguments else options["hidden_states"])
        raise _ReachedError

    handle = module.register_forward_pre_hook(stop, with_kwargs=True)
    with _removing([handle]), torch.no_grad(), suppress(_ReachedError):
        run()
    return caught[0]


@contextmanager
def _removing(handles: list[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
