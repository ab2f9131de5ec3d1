"""Small models, trained in seconds: what experiments share.

Symbols: B batch, L length, E width, V number of tokens.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = [
    "TEST",
    "TRAINING",
    "VALIDATION",
    "Decoder",
    "generator_of",
    "parameter_count",
    "seed_of",
    "seeded",
    "split_of",
    "train",
    "train_decayed",
]

_SPLITS = 8
VALIDATION, TEST, TRAINING = (0,), (1,), tuple(range(2, _SPLITS))
_MODULUS = 2_147_483_647


def seed_of(*parts: int | float | str) -> int:
    """A seed that depends on all parts and nothing else: ``seed_of(3, "data")`` and ``seed_of(3, "weights")`` share
    nothing."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")


def generator_of(*parts: int | float | str) -> torch.Generator:
    """Random numbers from :func:`seed_of`."""
    return torch.Generator().manual_seed(seed_of(*parts))


@contextmanager
def seeded(*parts: int | float | str) -> Iterator[None]:
    """torch's global random numbers from :func:`seed_of` within the block, as before behind it: for initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(*parts))
        yield


def split_of(rows: Tensor) -> Tensor:
    """To which split each row belongs, by its content alone: those of ``VALIDATION``, ``TEST`` and ``TRAINING``.

    No row can be in two splits, however rows are drawn.

    Args:
        rows: integers ``[B, ...]``.

    Returns:
        Integers ``[B]``, 0 to 7.
    """
    mixed = torch.zeros(len(rows), dtype=torch.int64)
    for column in rows.reshape(len(rows), -1).T:
        mixed = (mixed * 1_000_003 + column + 1) % _MODULUS
    return (mixed * 48_271 % _MODULUS) % _SPLITS


class Decoder(nn.Module):
    """Embeddings, attention layers (with an MLP behind each, if asked for), norms, and a linear readout.

    Args:
        inputs: how many different tokens are read, V.
        outputs: how many numbers are read out at each position.
        attentions: one layer each: any module whose call with ``causal=True`` returns something with an ``output``, as
            :class:`headwise.nn.GroupedQueryAttention` and :class:`headwise.nn.LatentAttention` do. Their
            ``embed_dim`` is the width of the model.
        mlp: width of the hidden layer of the MLPs; 0 for none.
        positions: how many learned positions there are; 0 for none.
    """

    def __init__(
        self, inputs: int, outputs: int, attentions: Sequence[nn.Module], *, mlp: int = 0, positions: int = 0
    ) -> None:
        super().__init__()
        width = int(attentions[0].embed_dim)  # type: ignore[arg-type]
        self.embedding = nn.Embedding(inputs, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.places = nn.Parameter(torch.randn(positions, width) * 0.02) if positions else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in attentions)
        self.attentions = nn.ModuleList(attentions)
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, mlp), nn.GELU(), nn.Linear(mlp, width))
            for _ in (attentions if mlp else ())
        )
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, outputs, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, L]`` to ``[B, L, outputs]``."""
        return self.read(self.embed(tokens))

    def embed(self, tokens: Tensor) -> Tensor:
        """``[B, L]`` to ``[B, L, E]``."""
        hidden: Tensor = self.embedding(tokens)
        return hidden if self.places is None else hidden + self.places[: tokens.shape[1]]

    def read(self, hidden: Tensor) -> Tensor:
        """From embeddings ``[B, L, E]``, for inputs that are sums of several, to ``[B, L, outputs]``."""
        for layer, (norm, attention) in enumerate(zip(self.norms, self.attentions, strict=True)):
            hidden = hidden + attention(norm(hidden), causal=True).output
            if len(self.mlps):
                hidden = hidden + self.mlps[layer](hidden)
        read: Tensor = self.readout(self.norm(hidden))
        return read


def train(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    *,
    steps: int,
    rate: float,
    warmup: int = 0,
    decay: bool = False,
    on_step: Callable[[int], None] | None = None,
) -> list[float]:
    """Adam, and the loss of every step.

    Args:
        model: is changed in place.
        loss_of: loss of the batch of a step, counted from 0.
        steps: how many.
        rate: the highest learning rate.
        warmup: steps in which it rises to that.
        decay: whether it falls to 0 along a cosine afterwards.
        on_step: is called before each step and once at the end, with the number of steps done; without gradients.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    losses = []
    for step in range(steps):
        if on_step is not None:
            with torch.no_grad():
                on_step(step)
        for group in optimizer.param_groups:
            group["lr"] = rate * _share(step, steps, warmup, decay)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if on_step is not None:
        with torch.no_grad():
            on_step(steps)
    return losses


def train_decayed(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    *,
    steps: int,
    rate: float,
    on_step: Callable[[int], None] | None = None,
) -> float:
    """:func:`train` with a warm-up of a twentieth of the steps and a cosine behind it.

    Returns:
        The mean loss over the last tenth of the steps.
    """
    losses = train(model, loss_of, steps=steps, rate=rate, warmup=max(1, steps // 20), decay=True, on_step=on_step)
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def parameter_count(model: nn.Module) -> int:
    """How many numbers a model has to learn."""
    return sum(parameter.numel() for parameter in model.parameters())


def _share(step: int, steps: int, warmup: int, decay: bool) -> float:
    """Of the highest learning rate."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) if decay else 1.0
