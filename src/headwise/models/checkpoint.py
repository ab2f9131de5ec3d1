"""A loaded model together with what headwise needs to know of it.

Symbols: L query length, H query heads, G KV heads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headwise.attention import attention_weights
from headwise.errors import UserError
from headwise.layout import HeadLayout
from headwise.models import probes
from headwise.models.probes import HeadCall
from headwise.models.refusal import refusing

__all__ = ["Check", "Checkpoint", "Objective", "fingerprint"]

Objective = Literal["next", "masked"]


@dataclass(frozen=True)
class Check:
    """One check that was run on loading: what was tried and how close it came."""

    name: str
    passed: bool
    detail: str


@dataclass
class Checkpoint:
    """A transformers model that runs on headwise attention, with its tokenizer and its head layout.

    Attributes:
        model: the transformers model, in eval mode, without gradients for its weights.
        tokenizer: its tokenizer.
        name: what to call it in tables and pages.
        source: what the caller asked for.
        objective: ``next`` (causal language model), ``masked`` (masked language model) or None (no language head).
        layouts: one :class:`HeadLayout` per attention layer, read off a real forward pass.
        causal: True if no layer lets a query attend ahead.
        attention_layers: which layers each attention module serves.
        checks: what was verified on loading.
        stored_dtype: in which dtype its files hold the weights, whatever they were opened in; None where unknown.
        history: what was done to it since its makers published it, oldest first: one plain object per step.
    """

    model: Any
    tokenizer: Any
    name: str
    source: str
    objective: Objective | None
    layouts: tuple[HeadLayout, ...] = ()
    causal: bool = True
    attention_layers: Mapping[nn.Module, tuple[int, ...]] = field(default_factory=dict, repr=False)
    checks: tuple[Check, ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    stored_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if not self.layouts:
            self.read_layouts()

    @property
    def num_layers(self) -> int:
        """Number of attention layers."""
        return len(self.layouts)

    @property
    def max_heads(self) -> int:
        """Most query heads in one layer; tables over all heads have this width."""
        return max(layout.num_heads for layout in self.layouts)

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Every (layer, head), in order."""
        return [(layer, head) for layer, layout in enumerate(self.layouts) for head in range(layout.num_heads)]

    @property
    def device(self) -> torch.device:
        """Where the model's first weight lies."""
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @cached_property
    def weights_sha256(self) -> str:
        """See :func:`fingerprint`."""
        return fingerprint(self.model)

    def forward(self, input_ids: Tensor, **options: Any) -> Any:
        """One pass of the model without a cache.

        Args:
            input_ids: int64 ``[B, L]``.
            **options: further arguments of the model, for instance ``attention_mask``.

        Returns:
            transformers' output object, with ``logits`` if the model has a language head.
        """
        if self.causal:
            options.setdefault("use_cache", False)
        return self.model(input_ids=input_ids.to(self.device), **options)

    def body(self, input_ids: Tensor, **options: Any) -> Tensor:
        """The model up to its last layer, without the language head: hidden states ``[B, L, E]``."""
        if self.causal:
            options.setdefault("use_cache", False)
        states: Tensor = probes.body_of(self.model)(input_ids=input_ids.to(self.device), **options).last_hidden_state
        return states

    def observe(self, probe: probes.Probe) -> AbstractContextManager[None]:
        """Call ``probe`` with a :class:`HeadCall` for every attention layer inside the block."""
        return probes.observe(self.model, self.attention_layers, probe)

    def ablate(
        self, heads: Iterable[tuple[int, int]], mode: Literal["zero", "mean"] = "zero", means: Tensor | None = None
    ) -> AbstractContextManager[None]:
        """Zero- or mean-ablate (layer, head) pairs inside the block; see :func:`headwise.models.probes.ablate`."""
        return probes.ablate(self.model, self.attention_layers, heads, mode, means)

    def gate(self, gates: Tensor) -> AbstractContextManager[None]:
        """Multiply head outputs by ``gates [layers, B, H]`` inside the block."""
        return probes.gate(self.model, self.attention_layers, gates)

    def forget_hash(self) -> None:
        """Weights have changed: :attr:`weights_sha256` is computed anew when it is asked for."""
        self.__dict__.pop("weights_sha256", None)

    def read_layouts(self) -> None:
        """Read layouts and modules off a forward pass; again after heads were replaced."""
        tokens = torch.tensor([[1, 2, 3]]) % self.model.config.get_text_config().vocab_size
        body = probes.body_of(self.model)
        with refusing(self.name, "heads"):
            calls = probes.trace(self.model, lambda: body(input_ids=tokens.to(self.device)))
        if not calls:
            raise UserError(
                f"{self.name}: expected attention layers that go through transformers' attention registry, got none in "
                f"{type(self.model).__name__}, so headwise cannot see its heads; give another architecture"
            )
        self.attention_layers = probes.layers_of(calls)
        self.layouts = tuple(_layout(call) for call in calls)
        self.causal = all(_is_causal(call) for call in calls)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of all weights in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _layout(call: HeadCall) -> HeadLayout:
    window = call.sliding_window
    return HeadLayout(
        num_heads=call.query.shape[1],
        num_kv_heads=call.key.shape[1],
        head_dim=call.query.shape[-1],
        value_head_dim=call.value.shape[-1],
        window=(window - 1, 0) if window is not None and _is_causal(call) else None,
    )


def _is_causal(call: HeadCall) -> bool:
    """Whether no query looked ahead. Seen in the weights: what modules say of themselves need not be so."""
    weights = attention_weights(call.query, call.key, **call.arguments)  # [B, H, L, S], a few tokens
    return not bool(weights.triu(1).any())
