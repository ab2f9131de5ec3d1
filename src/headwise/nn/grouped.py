"""Multi-head, grouped-query and multi-query attention: one layer, told apart by its number of KV heads.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``E`` model width, ``H`` query heads, ``G`` KV heads, ``D``
head dim. ``G = H`` is multi-head, ``G = 1`` multi-query attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.attention import attention, attention_weights, validation
from headwise.attention.masks import WindowArgument
from headwise.attention.problem import Problem
from headwise.cache import KeyValueCache
from headwise.nn import interop

__all__ = ["GroupedQueryAttention", "LayerOutput"]


class LayerOutput(NamedTuple):
    """What a layer returns.

    Attributes:
        output: ``[B, L, E]``.
        weights: ``[B, H, L, S]`` where they were asked for, else None.
    """

    output: Tensor
    weights: Tensor | None


class GroupedQueryAttention(nn.Module):
    """Attention in which ``num_heads`` query heads share ``num_kv_heads`` key and value heads.

    Four projections: ``q_proj`` ``E -> H * D``, ``k_proj`` and ``v_proj`` ``E -> G * D``, ``o_proj`` ``H * D -> E``.
    Without biases they hold ``2 * E * H * D + 2 * E * G * D`` weights. There is no dropout and no position encoding.

    Args:
        embed_dim: ``E``, width of input and output.
        num_heads: ``H``.
        num_kv_heads: ``G``, a divisor of ``H``; default ``H`` (multi-head attention).
        head_dim: ``D``; default ``E / H``, which must be whole then.
        bias: whether the query, key and value projections have a bias.
        out_bias: whether the output projection has one; default as ``bias``.
        device, dtype: of the parameters.

    Raises:
        ValueError: a size is no positive integer, or sizes don't divide; the message names them.

    Source: Vaswani et al. 2017, section 3.2.2; Shazeer 2019 (arXiv:1911.02150); Ainslie et al. 2023
    (arXiv:2305.13245). The weights of a projection lie as in ``nn.Linear``, ``[output, input]``.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        bias: bool = False,
        out_bias: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = _check_sizes(embed_dim, num_heads, num_kv_heads, head_dim)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=bias, **made)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=bias, **made)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=bias, **made)
        out_bias = bias if out_bias is None else out_bias
        self.o_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias=out_bias, **made)

    def forward(
        self,
        hidden: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        causal: bool = False,
        window: WindowArgument = None,
        cache: KeyValueCache | None = None,
        need_weights: bool = False,
        backend: str | None = None,
    ) -> LayerOutput:
        """Attend from ``hidden`` to itself, to ``context``, or to what a cache holds and then itself.

        Args:
            hidden: ``[B, L, E]``.
            context: ``[B, S, E]`` for cross-attention; default ``hidden``.
            mask: booleans that broadcast to ``[B, H, L, S]``; **True = may attend**.
            bias: floats that broadcast to ``[B, H, L, S]``, added to the scores.
            key_mask: ``[B, S]``, **True = a real token**, False = padding that nobody may attend; with a cache it
                spans the held and the new tokens.
            query_mask: ``[B, L]``, True = a real token; only for the check below. Default: the last ``L`` of
                ``key_mask`` in self-attention, else all.
            causal: hide the keys after a query's own position.
            window: ``(left, right)`` or one per head, see :func:`headwise.attention.attention`.
            cache: keys and values of earlier tokens; the new ones are appended. Causal self-attention only, and
                without gradients.
            need_weights: also return the weights of every head (computed a second time, and as large as
                ``B * H * L * S``).
            backend: see :func:`headwise.attention.attention`.

        Returns:
            Output ``[B, L, E]``, and weights ``[B, H, L, S]`` or None.

        Raises:
            ValueError: a shape doesn't fit, a cache is used without ``causal`` or with ``context``, or (in eager mode
                on a CPU) a query that is no padding sees no key. A cache is left as it was then.
        """
        self._check_inputs(hidden, context, causal, cache)
        source = hidden if context is None else context
        query = self._split(self.q_proj(hidden), self.num_heads)
        key, value = (self._split(project(source), self.num_kv_heads) for project in (self.k_proj, self.v_proj))
        if cache is not None:
            key, value = cache.append(key, value)
        try:
            if query_mask is None and context is None and key_mask is not None:
                query_mask = key_mask[:, key_mask.shape[-1] - hidden.shape[1] :]
            options: dict[str, Any] = {"bias": bias, "causal": causal, "window": window}
            shape = (hidden.shape[0], self.num_heads, hidden.shape[1], key.shape[2])
            options["mask"] = _with_padding(validation.check_mask(mask, shape, hidden.device), key_mask, shape)
            if hidden.device.type == "cpu" and not torch.compiler.is_compiling():
                _check_queries_see(Problem.of(query, key, value, **options), query_mask)
            heads = attention(query, key, value, backend=backend, **options)  # [B, H, L, D]
            weights = attention_weights(query, key, **options) if need_weights else None
        except Exception:
            if cache is not None:
                cache.rollback(hidden.shape[1])
            raise
        return LayerOutput(self.o_proj(heads.transpose(1, 2).flatten(2)), weights)

    def _split(self, features: Tensor, heads: int) -> Tensor:
        """``[B, length, heads * D]`` to ``[B, heads, length, D]``: head features lie together in the last axis."""
        return features.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def _check_inputs(self, hidden: Tensor, context: Tensor | None, causal: bool, cache: KeyValueCache | None) -> None:
        for name, tensor in (("hidden", hidden), ("context", hidden if context is None else context)):
            if tensor.dim() != 3 or tensor.shape[-1] != self.embed_dim:
                raise ValueError(
                    f"{name}: expected [batch, length, embed_dim = {self.embed_dim}], got {list(tensor.shape)}"
                )
        if cache is not None and context is not None:
            raise ValueError("cache: expected none with context, since only self-attention grows by its own tokens")
        if cache is not None and not causal:
            raise ValueError(
                "cache: expected causal=True with a cache, got causal=False; "
                "without it earlier tokens would have had to see later ones"
            )

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> GroupedQueryAttention:
        """The layer that computes what ``module`` computes, with copies of its weights.

        This layer always takes ``[B, L, E]``, whatever ``batch_first`` was, and masks where True = may attend: turn
        PyTorch's around with :func:`headwise.nn.masks_from_torch`.

        Raises:
            TypeError: ``module`` is no ``torch.nn.MultiheadAttention``.
            ValueError: it uses ``kdim``, ``vdim``, ``add_bias_kv``, ``add_zero_attn`` or ``dropout``.
        """
        interop.refuse_unsupported(module)
        state, weight = interop.read_torch(module), module.out_proj.weight
        biased = "o_proj.bias" in state
        layer = cls(module.embed_dim, module.num_heads, bias=biased, device=weight.device, dtype=weight.dtype)
        layer.load_state_dict(state)
        return layer.train(module.training)

    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """A ``torch.nn.MultiheadAttention`` that computes the same, with copies of the weights.

        Raises:
            ValueError: KV heads are shared, the heads' widths don't add up to ``E``, or only some projections have a
                bias; PyTorch's module has no room for these.
        """
        reasons = {
            f"{self.num_heads} query heads share {self.num_kv_heads} KV heads": self.num_heads != self.num_kv_heads,
            f"{self.num_heads} heads of width {self.head_dim} do not add up to embed_dim {self.embed_dim}": (
                self.num_heads * self.head_dim != self.embed_dim
            ),
            "only some of its projections have a bias": (self.q_proj.bias is None) != (self.o_proj.bias is None),
        }
        for reason, holds in reasons.items():
            if holds:
                raise ValueError(
                    f"to_torch: {reason}, which torch.nn.MultiheadAttention can't express; keep this layer"
                )
        weight, biased = self.o_proj.weight, self.o_proj.bias is not None
        module = nn.MultiheadAttention(
            self.embed_dim,
            self.num_heads,
            bias=biased,
            batch_first=batch_first,
            device=weight.device,
            dtype=weight.dtype,
        )
        interop.write_torch(module, self.state_dict())
        return module.train(self.training)

    def extra_repr(self) -> str:
        """The sizes, for ``print``."""
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, "
            f"head_dim={self.head_dim}"
        )


def _check_sizes(embed_dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> int:
    """Hold the sizes against each other and settle the head dim."""
    sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    if head_dim is not None:
        sizes["head_dim"] = head_dim
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"GroupedQueryAttention: expected {name} to be a positive integer, got {size!r}")
    if num_heads % num_kv_heads:
        raise ValueError(
            f"GroupedQueryAttention: expected num_kv_heads to divide num_heads {num_heads}, got {num_kv_heads}; "
            "every KV head must serve equally many query heads"
        )
    if head_dim is None and embed_dim % num_heads:
        raise ValueError(
            f"GroupedQueryAttention: expected num_heads to divide embed_dim {embed_dim}, got {num_heads}; "
            "or pass head_dim"
        )
    return embed_dim // num_heads if head_dim is None else head_dim


def _with_padding(mask: Tensor | None, key_mask: Tensor | None, shape: tuple[int, int, int, int]) -> Tensor | None:
    if key_mask is None:
        return mask
    expected = [shape[0], shape[3]]
    if key_mask.dtype != torch.bool or list(key_mask.shape) != expected:
        raise ValueError(
            f"key_mask: expected bool [batch, keys] = {expected} with True = a real token (cached and new ones), got "
            f"{key_mask.dtype} {list(key_mask.shape)}"
        )
    padding = key_mask[:, None, None, :]  # [B, 1, 1, S]
    return padding if mask is None else mask & padding


def _check_queries_see(problem: Problem, query_mask: Tensor | None) -> None:
    """Refuse a query that is a real token and sees no key: its output would be 0 without a word."""
    expected = [problem.batch_size, problem.query_length]
    if query_mask is not None and (query_mask.dtype != torch.bool or list(query_mask.shape) != expected):
        raise ValueError(
            f"query_mask: expected bool [batch, queries] = {expected} with True = a real token, got "
            f"{query_mask.dtype} {list(query_mask.shape)}"
        )
    if not problem.hides(0, problem.query_length) and problem.key_length:
        return
    blind = ~problem.seeing().expand(problem.batch_size, -1, -1)  # [B, H or 1, L]
    blind = blind if query_mask is None else blind & query_mask[:, None]
    if bool(blind.any()):
        sequence, head, query = (int(index) for index in blind.nonzero()[0])
        raise ValueError(
            f"mask: expected every query that is no padding to see a key, got none for query {query} of sequence "
            f"{sequence} (head {head}); check mask, key_mask and window, or mark padding with query_mask"
        )
