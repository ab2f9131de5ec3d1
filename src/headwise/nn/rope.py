"""Rotary position embedding: pairs of features turn by an angle that grows with the position.

Axes: ``B`` batch, ``L`` length, ``D`` head dim, ``m`` rotated pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.nn.frequencies import Frequencies, Scaling, rotary_frequencies

__all__ = ["RotaryEmbedding", "Rotation", "to_half_split", "to_interleaved"]


class Rotation(NamedTuple):
    """Cosine and sine of the angles at some positions, for any number of tensors at these positions.

    Attributes:
        cosine: ``[B or 1, 1, L, m]``, times the magnitude of the scaling.
        sine: likewise.
    """

    cosine: Tensor
    sine: Tensor


class RotaryEmbedding(nn.Module):
    """Turn queries and keys by their positions, so that scores depend on distances only.

    Pair ``i`` turns by ``position * base ** (-2 * i / rotary_dim)`` radians. Which features are a pair differs between
    checkpoints: ``(i, i + rotary_dim / 2)``, half-split, as in Llama; or ``(2 * i, 2 * i + 1)``, interleaved, as in
    GPT-J and DeepSeek. Features from ``rotary_dim`` on stay as they are.

    There are no parameters and nothing in the state dict. Angles are computed in float32, whatever the model is cast
    to, from frequencies that are the same to the bit as those of transformers; half types are turned in float32 and
    rounded once. For float64 inputs frequencies and angles are float64 throughout, so that a layer in float64 is an
    oracle for its float32 self. (transformers keeps float32 angles there: at position ``p`` they are off by up to about
    ``p * 1e-7`` radians.)

    Args:
        head_dim: ``D``.
        base: the slowest pair turns by about ``1 / base`` per position (``rope_theta``).
        rotary_dim: how many leading features turn, an even number; default all.
        interleaved: pairs ``(2 * i, 2 * i + 1)`` instead of ``(i, i + rotary_dim / 2)``.
        scaling: a stretch for long contexts in Hugging Face's form, ``{"rope_type": ..., ...}`` with the types
            ``default``, ``linear``, ``llama3`` and ``yarn``, see :mod:`headwise.nn.frequencies`. Types that depend on
            the length of the input (``dynamic``, ``longrope``) are refused: with a cache, older keys would have been
            turned by other angles.
        device: of the frequencies.

    Attributes:
        magnitude: factor of what was turned (YaRN's attention factor), 1 without.

    Raises:
        TypeError: a number is none.
        ValueError: a size or number is out of range, or the scaling is unknown.

    Source: Su et al. 2021 (arXiv:2104.09864), which pairs ``(2 * i, 2 * i + 1)`` and counts from 1.
    """

    inverse_frequencies: Tensor

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        *,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        scaling: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.base, self.interleaved = head_dim, float(base), interleaved
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        _check_widths(head_dim, self.rotary_dim)
        if not base > 1:
            raise ValueError(f"RotaryEmbedding: expected base above 1, got {base!r}")
        self.scaling = Scaling(scaling)
        exact = self._frequencies(torch.float64)
        self.magnitude = exact.magnitude
        self._exact: list[float] = exact.inverse.tolist()
        device = torch.get_default_device() if device is None else device
        single = self._frequencies(torch.float32).inverse.to(device)
        self.register_buffer("inverse_frequencies", single, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn every head of ``x`` by the positions of its tokens.

        Args:
            x: ``[B, heads, L, D]``.
            positions: integers ``[L]``, or ``[B or 1, L]``.

        Returns:
            ``[B, heads, L, D]`` in the dtype of ``x``.

        Raises:
            TypeError: positions are no integers.
            ValueError: a shape doesn't fit.
        """
        return self.rotate(x, self.rotation(positions, x.dtype))

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Cosine and sine for tensors of ``dtype``: of float64 in float64, of all others in float32.

        Args:
            positions: integers ``[L]``, or ``[B or 1, L]``.
            dtype: of the tensors that will be turned.

        Raises:
            TypeError: positions are no integers.
            ValueError: they have another number of axes.
        """
        if positions.dtype.is_floating_point or positions.dtype in (torch.bool, torch.complex64, torch.complex128):
            raise TypeError(f"positions: expected integers, got {positions.dtype}; cast with .long()")
        if positions.dim() not in (1, 2):
            raise ValueError(f"positions: expected [length] or [batch, length], got {list(positions.shape)}")
        if dtype == torch.float64:
            frequencies = torch.tensor(self._exact, dtype=torch.float64, device=positions.device)
        else:
            if self.inverse_frequencies.is_meta and not positions.is_meta:
                # Built without memory and then given its weights: no state dict holds these.
                self.inverse_frequencies = self._frequencies(torch.float32).inverse.to(positions.device)
            frequencies = self.inverse_frequencies.to(positions.device)
        places = positions[None] if positions.dim() == 1 else positions
        angles = places[:, None, :, None].to(frequencies.dtype) * frequencies  # [B or 1, 1, L, m]
        return Rotation(angles.cos() * self.magnitude, angles.sin() * self.magnitude)

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        """As :meth:`forward`, with the cosine and sine of :meth:`rotation`, which query and key can share.

        Raises:
            ValueError: a shape doesn't fit.
        """
        self._check_fit(x, rotation)
        turning = x[..., : self.rotary_dim].to(torch.promote_types(x.dtype, torch.float32))
        layout = (-1, 2) if self.interleaved else (2, -1)
        axis = -1 if self.interleaved else -2
        first, second = turning.unflatten(-1, layout).unbind(axis)  # [B, heads, L, m] each
        cosine, sine = rotation
        turned = torch.stack([first * cosine - second * sine, second * cosine + first * sine], axis)
        turned = turned.flatten(-2).to(x.dtype)
        return turned if self.rotary_dim == self.head_dim else torch.cat([turned, x[..., self.rotary_dim :]], -1)

    def _check_fit(self, x: Tensor, rotation: Rotation) -> None:
        if x.dim() != 4 or x.shape[-1] != self.head_dim:
            raise ValueError(
                f"RotaryEmbedding: expected [batch, heads, length, head_dim = {self.head_dim}], got {list(x.shape)}"
            )
        batch, _, length, _ = rotation.cosine.shape
        if batch not in (1, x.shape[0]) or length != x.shape[2]:
            raise ValueError(
                f"positions: expected [{x.shape[2]}] or [{x.shape[0]}, {x.shape[2]}] for {list(x.shape)}, got "
                f"[{batch}, {length}]; there is one position for each token"
            )

    def _frequencies(self, dtype: torch.dtype) -> Frequencies:
        return rotary_frequencies(self.rotary_dim, self.base, self.scaling, dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        # `.half()` must not round the frequencies, and `.to_empty()` must not leave them unwritten: only the device is
        # followed.
        super()._apply(fn, recurse)
        self.inverse_frequencies = self._frequencies(torch.float32).inverse.to(self.inverse_frequencies.device)
        return self

    def extra_repr(self) -> str:
        """The settings, for ``print``."""
        pairing = "interleaved" if self.interleaved else "half-split"
        scaled = "" if self.scaling.kind == "default" else f", scaling={self.scaling.kind}"
        return f"head_dim={self.head_dim}, base={self.base:g}, rotary_dim={self.rotary_dim}, {pairing}{scaled}"


def to_interleaved(rows: Tensor, head_dim: int, rotary_dim: int | None = None) -> Tensor:
    """Reorder a query or key projection made for half-split pairs for a rotary embedding with interleaved ones.

    Both projections must be reordered (and the weights of query and key norms): scores stay what they were then.

    Args:
        rows: ``[heads * head_dim, ...]``: the weight or bias of a projection; or ``[head_dim]`` of a norm.
        head_dim: ``D``.
        rotary_dim: how many leading features of a head turn; default all.

    Raises:
        ValueError: the rows are no whole number of heads, or a width doesn't fit.
    """
    return _reorder(rows, head_dim, rotary_dim, (2, -1))


def to_half_split(rows: Tensor, head_dim: int, rotary_dim: int | None = None) -> Tensor:
    """The inverse of :func:`to_interleaved`: from interleaved to half-split pairs.

    Raises:
        ValueError: the rows are no whole number of heads, or a width doesn't fit.
    """
    return _reorder(rows, head_dim, rotary_dim, (-1, 2))


def _reorder(rows: Tensor, head_dim: int, rotary_dim: int | None, layout: tuple[int, int]) -> Tensor:
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    _check_widths(head_dim, rotary_dim)
    if rows.dim() == 0 or rows.shape[0] % head_dim:
        raise ValueError(
            f"rows: expected a multiple of head_dim {head_dim} along the first axis, got {list(rows.shape)}"
        )
    heads = rows.unflatten(0, (-1, head_dim))  # [heads, D, ...]
    turning = heads[:, :rotary_dim].unflatten(1, layout).transpose(1, 2).flatten(1, 2)
    return torch.cat([turning, heads[:, rotary_dim:]], 1).flatten(0, 1)


def _check_widths(head_dim: int, rotary_dim: int) -> None:
    for name, width in (("head_dim", head_dim), ("rotary_dim", rotary_dim)):
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"RotaryEmbedding: expected {name} to be a positive integer, got {width!r}")
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise ValueError(
            f"RotaryEmbedding: expected an even rotary_dim of at most head_dim {head_dim}, got {rotary_dim}; "
            "features turn in pairs"
        )
