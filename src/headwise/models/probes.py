"""Watching and changing heads while a model runs.

Symbols: B batch, L query length, H query heads, Dv value head dim.

transformers 5 has neither ``head_mask`` nor ``prune_heads``; head outputs are taken and replaced inside headwise's own
attention function, per query head and before the output projection. Everything here is a context manager that is
undone when the block ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from headwise.attention import HeadStatistics, attention, attention_with_statistics, head_statistics
from headwise.attention.statistics import Relation

__all__ = ["HeadCall", "Probe", "ablate", "active_probes", "body_of", "gate", "layers_of", "observe", "trace"]


@dataclass
class HeadCall:
    """One call of the attention function: everything that a probe may look at.

    Attributes:
        module: the attention module.
        query: ``[B, H, L, D]`` after rotary embedding and norms.
        key: ``[B, G, S, D]``.
        value: ``[B, G, S, Dv]``.
        arguments: keyword arguments (masks, scale, ...) of :func:`headwise.attention.attention`.
        layer: which attention layer this is, counted from 0 in the order of the forward pass; −1 while unknown.
        sliding_window: how many keys the layer lets a query see, its own included, as transformers says it; None
            without a limit. The mask or the window in ``arguments`` holds it already.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    arguments: dict[str, Any]
    layer: int = -1
    sliding_window: int | None = None
    _output: Tensor | None = field(default=None, repr=False)

    @property
    def output(self) -> Tensor:
        """``[B, H, L, Dv]``, the heads' outputs before the output projection; computed when first asked for."""
        if self._output is None:
            self._output = attention(self.query, self.key, self.value, **self.arguments)
        return self._output

    @output.setter
    def output(self, output: Tensor) -> None:
        self._output = output

    def read(self, relations: Sequence[Relation]) -> HeadStatistics:
        """What the heads attend to, see :func:`headwise.attention.head_statistics`.

        It says what this layer does with its query and key, whatever other probes make of its output. Where nobody has
        asked for the output yet, both come from one computation of the weights.
        """
        if self._output is not None:
            return head_statistics(self.query, self.key, relations, **self.arguments)
        reading = attention_with_statistics(self.query, self.key, self.value, relations, **self.arguments)
        self._output = reading.output
        return reading.statistics


# Returns the output to go on with, or None to leave it as it is.
Probe = Callable[[HeadCall], "Tensor | None"]


class _Watch:
    """Probes on one model, with the layer of each of its attention modules."""

    def __init__(self, layers: Mapping[nn.Module, tuple[int, ...]] | None, probe: Probe) -> None:
        self.layers = layers
        self.probe = probe
        self.calls: dict[int, int] = {}

    def start_forward(self) -> None:
        self.calls.clear()

    def bound(self, module: nn.Module) -> Probe | None:
        if self.layers is None:
            return self.probe
        layers = self.layers.get(module)
        if layers is None:
            return None

        # A module that serves several layers (ALBERT shares one) is told apart by the order of its calls.
        call_number = self.calls.get(id(module), 0)
        self.calls[id(module)] = call_number + 1

        def with_layer(call: HeadCall) -> Tensor | None:
            call.layer = layers[call_number % len(layers)]
            return self.probe(call)

        return with_layer


_WATCHES: ContextVar[tuple[_Watch, ...]] = ContextVar("headwise_watches", default=())


def active_probes(module: nn.Module) -> Iterator[Probe]:
    """The probes that want to see the calls of ``module``, outermost first."""
    for watch in _WATCHES.get():
        probe = watch.bound(module)
        if probe is not None:
            yield probe


@contextmanager
def _watching(watch: _Watch, model: nn.Module) -> Iterator[None]:
    token = _WATCHES.set((*_WATCHES.get(), watch))
    # The body, since a caller may run it alone, without the language head around it.
    handle = body_of(model).register_forward_pre_hook(lambda *_: watch.start_forward())
    try:
        yield
    finally:
        handle.remove()
        _WATCHES.reset(token)


def body_of(model: Any) -> nn.Module:
    """The part of a transformers model that ends with the last layer: all of it but the language head."""
    body, with_head = model.base_model, model.get_output_embeddings() is not None
    if body is model and with_head:
        # Llama 4 calls its body otherwise than it says, and then gives itself.
        inner = [child for child in model.children() if hasattr(child, "base_model")]
        body = inner[0] if len(inner) == 1 else body
    return cast(nn.Module, body)


def trace(model: nn.Module, run: Callable[[], object]) -> list[HeadCall]:
    """Run the model once and return its attention calls in order, layers numbered from 0. Tensors are kept as they
    came, so let ``run`` be small."""
    calls: list[HeadCall] = []

    def note(call: HeadCall) -> None:
        call.layer = len(calls)
        calls.append(call)

    with _watching(_Watch(None, note), model), torch.no_grad():
        run()
    return calls


def layers_of(calls: Iterable[HeadCall]) -> dict[nn.Module, tuple[int, ...]]:
    """The layers that each attention module serves."""
    layers: dict[nn.Module, tuple[int, ...]] = {}
    for call in calls:
        layers[call.module] = (*layers.get(call.module, ()), call.layer)
    return layers


@contextmanager
def observe(model: nn.Module, layers: Mapping[nn.Module, tuple[int, ...]], probe: Probe) -> Iterator[None]:
    """Call ``probe`` for every attention layer of ``model`` inside the block.

    Args:
        model: a model that runs with ``attn_implementation="headwise"``.
        layers: which layers its attention modules serve (``Checkpoint.attention_layers``).
        probe: takes a :class:`HeadCall`; what it returns, if not None, replaces the heads' outputs.
    """
    with _watching(_Watch(layers, probe), model):
        yield


@contextmanager
def ablate(
    model: nn.Module,
    layers: Mapping[nn.Module, tuple[int, ...]],
    heads: Iterable[tuple[int, int]],
    mode: Literal["zero", "mean"] = "zero",
    means: Tensor | None = None,
) -> Iterator[None]:
    """Replace the outputs of some heads by zero, or by their mean, inside the block.

    Args:
        model: a model that runs with ``attn_implementation="headwise"``.
        layers: see :func:`observe`.
        heads: pairs (layer, head).
        mode: ``zero`` takes the head away; ``mean`` keeps its average contribution and takes away only what depends
            on the input. Zeroing can break a model by moving it off its usual activations, so show both.
        means: for ``mean``: ``[layers, H, Dv]``.

    Raises:
        ValueError: a head that the model does not have, an unknown mode, or ``mean`` without means.
    """
    if mode not in ("zero", "mean"):
        raise ValueError(f"ablate: expected mode 'zero' or 'mean', got {mode!r}")
    if mode == "mean" and means is None:
        raise ValueError("ablate: mode 'mean' needs means, the average outputs of all heads [layers, H, Dv], got None")
    wanted = _by_layer(heads, _count(layers))

    def replace(call: HeadCall) -> Tensor | None:
        if call.layer not in wanted:
            return None
        chosen = wanted[call.layer]
        if max(chosen) >= call.output.shape[1] or min(chosen) < 0:
            raise ValueError(
                f"ablate: expected heads 0 to {call.output.shape[1] - 1} in layer {call.layer}, got {sorted(chosen)}"
            )
        output = call.output.clone()
        if mode == "zero":
            output[:, chosen] = 0
        else:
            assert means is not None
            output[:, chosen] = means[call.layer, chosen, None, : output.shape[-1]].to(output)
        return output

    with _watching(_Watch(layers, replace), model):
        yield


def _count(layers: Mapping[nn.Module, tuple[int, ...]]) -> int:
    return sum(len(served) for served in layers.values())


def _by_layer(heads: Iterable[tuple[int, int]], count: int) -> dict[int, list[int]]:
    wanted: dict[int, list[int]] = {}
    for layer, head in heads:
        if not 0 <= layer < count:
            raise ValueError(f"ablate: expected a layer from 0 to {count - 1}, got {layer}")
        wanted.setdefault(layer, []).append(head)
    return wanted


@contextmanager
def gate(model: nn.Module, layers: Mapping[nn.Module, tuple[int, ...]], gates: Tensor) -> Iterator[None]:
    """Multiply every head's output by a gate inside the block, so that a backward pass gives ∂loss/∂gate.

    Args:
        model: a model that runs with ``attn_implementation="headwise"``.
        layers: see :func:`observe`.
        gates: ``[layers, B, H]``, ones that require a gradient (one gate per example keeps the examples apart).

    Raises:
        ValueError: gates of another shape.
    """
    if gates.ndim != 3 or gates.shape[0] != _count(layers):
        raise ValueError(
            f"gate: expected gates [layers, B, H] with {_count(layers)} layers, got shape {list(gates.shape)}"
        )

    def multiply(call: HeadCall) -> Tensor:
        heads = call.output.shape[1]
        return call.output * gates[call.layer, :, :heads, None, None].to(call.output.dtype)

    with _watching(_Watch(layers, multiply), model):
        yield
