"""Multi-head, grouped-query and multi-query attention: one layer, told apart by its number of KV heads.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``E`` model width, ``H`` query heads, ``G`` KV heads, ``D``
head dim. ``G = H`` is multi-head, ``G = 1`` multi-query attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention.masks import WindowArgument
from headwise.attention.packing import PackingArgument
from headwise.cache import KeyValueCache, LatentCache
from headwise.nn import interop
from headwise.nn.calls import Call
from headwise.nn.checks import check_layer_sizes, check_tokens
from headwise.nn.heads import HeadSettings
from headwise.nn.norm import RMSNorm
from headwise.nn.outputs import LayerOutput, ProjectedContext
from headwise.nn.rope import RotaryEmbedding

__all__ = ["GroupedQueryAttention"]


class GroupedQueryAttention(HeadSettings):
    """Attention in which ``num_heads`` query heads share ``num_kv_heads`` key and value heads.

    Four projections: ``q_proj`` ``E -> H * D``, ``k_proj`` and ``v_proj`` ``E -> G * D``, ``o_proj`` ``H * D -> E``.
    Without biases they hold ``2 * E * H * D + 2 * E * G * D`` weights. There is no dropout.

    With the right options this is the attention of Llama, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3 and gpt-oss: their
    state dicts load by name, and :func:`headwise.models.attention_layer` reads the options from a config.

    >>> layer = GroupedQueryAttention(64, 8, 2, rope=RotaryEmbedding(8), window=(127, 0))
    >>> layer(torch.randn(1, 5, 64), causal=True).output.shape
    torch.Size([1, 5, 64])

    Args:
        embed_dim: ``E``, width of input and output.
        num_heads: ``H``.
        num_kv_heads: ``G``, a divisor of ``H``; default ``H`` (multi-head attention).
        head_dim: ``D``; default ``E / H``, which must be whole then.
        bias: whether the query, key and value projections have a bias.
        out_bias: whether the output projection has one; default as ``bias``.
        rope: turns queries and keys by their positions; one module may serve many layers. Default: no positions.
        qk_norm: the ``eps`` of an RMS norm over each head of the queries (``q_norm``) and of the keys (``k_norm``),
            before they are turned. Default: no norms.
        norm_offset: these norms scale by ``1 + weight``, as in Gemma, not by ``weight``.
        window: ``(left, right)``, or one of those (or None) per query head, so that local and global heads share a
            layer; see :func:`headwise.attention.attention`. A Hugging Face ``sliding_window`` of w is ``(w - 1, 0)``.
        sinks: whether there is a learned logit per head in the softmax denominator, ``sinks`` ``[H]``; it starts at 0.
        softcap: bound of the scaled scores, ``softcap * tanh(score / softcap)``.
        scale: factor of the scores, default ``1 / sqrt(D)``.
        device, dtype: of the parameters.

    Raises:
        TypeError: a window, soft-cap, scale, norm or rope is none.
        ValueError: a size is no positive integer, sizes don't divide, or a number is out of range; the message names
            them.

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
        rope: RotaryEmbedding | None = None,
        qk_norm: float | None = None,
        norm_offset: bool = False,
        window: WindowArgument = None,
        sinks: bool = False,
        softcap: float | None = None,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_norm(qk_norm)
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        head_dim = _settle_sizes(embed_dim, num_heads, num_kv_heads, head_dim)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(num_heads, window=window, sinks=sinks, softcap=softcap, scale=scale, **made)
        self.embed_dim, self.num_kv_heads, self.head_dim = embed_dim, num_kv_heads, head_dim
        self.q_proj = nn.Linear(embed_dim, num_heads * head_dim, bias=bias, **made)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=bias, **made)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=bias, **made)
        self.o_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=bias if out_bias is None else out_bias, **made)
        self.q_norm, self.k_norm = (
            None if qk_norm is None else RMSNorm(head_dim, eps=qk_norm, unit_offset=norm_offset, **made) for _ in "qk"
        )
        if rope is not None and not isinstance(rope, RotaryEmbedding):
            raise TypeError(f"rope: expected a RotaryEmbedding or None, got {type(rope).__name__}")
        if rope is not None and rope.head_dim != head_dim:
            raise ValueError(
                f"GroupedQueryAttention: expected rope for head_dim {head_dim}, got one for {rope.head_dim}"
            )
        self.rope = rope

    def forward(
        self,
        hidden: Tensor,
        context: Tensor | ProjectedContext | None = None,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        causal: bool = False,
        window: WindowArgument = None,
        positions: Tensor | None = None,
        cu_seqlens: PackingArgument = None,
        cache: KeyValueCache | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        need_weights: bool = False,
        backend: str | None = None,
    ) -> LayerOutput:
        """Attend from ``hidden`` to itself, to ``context``, or to what a cache holds and then itself.

        Args:
            hidden: ``[B, L, E]``.
            context: ``[B, S, E]`` for cross-attention, or its keys and values from :meth:`project_context`; default
                ``hidden``.
            mask: booleans that broadcast to ``[B, H, L, S]``; **True = may attend**.
            bias: floats that broadcast to ``[B, H, L, S]``, added to the scores.
            key_mask: ``[B, S]``, **True = a real token**, False = padding that nobody may attend; with a cache it
                spans the held and the new tokens.
            query_mask: ``[B, L]``, True = a real token; only for the check below. Default: what ``key_mask`` and
                ``lengths`` say in self-attention, else all.
            causal: hide the keys after a query's own position.
            window: ``(left, right)`` or one per head, see :func:`headwise.attention.attention`; only where the layer
                has none of its own.
            positions: integers ``[L]`` or ``[B, L]`` by which ``rope`` turns. Default: 0 to ``L - 1`` behind what the
                cache holds, padding counted too, and from 0 in each packed document: only distances matter. They
                don't change who sees whom.
            cu_seqlens: documents packed side by side in a batch of 1, see :func:`headwise.attention.attention`.
            cache: keys and values of earlier tokens; the new ones are appended. Causal self-attention only, and
                without gradients. A :class:`~headwise.cache.WindowCache` must reach as far as the layer's windows.
            lengths: with a cache, how many leading tokens of each sequence are real, ``[B]``: the rest is padding on
                the right that isn't stored, and its outputs mean nothing.
            need_weights: also return the weights of every head (computed a second time, and as large as
                ``B * H * L * S``).
            backend: see :func:`headwise.attention.attention`.

        Returns:
            Output ``[B, L, E]``, and weights ``[B, H, L, S]`` or None.

        Raises:
            TypeError: a mask, bias or position has the wrong dtype.
            ValueError: a shape doesn't fit, arguments exclude each other, or (in eager mode on a CPU) a query that is
                no padding sees no key. A cache is left as it was then.
        """
        self._check_inputs(hidden, context, positions, cache)
        query = self._heads_of(self.q_proj(hidden), self.q_norm)
        key, value = self.project_context(hidden if context is None else context)
        call = Call(
            mask=mask,
            bias=bias,
            key_mask=key_mask,
            query_mask=query_mask,
            causal=causal,
            cu_seqlens=cu_seqlens,
            cache=cache,
            lengths=lengths,
            need_weights=need_weights,
            backend=backend,
            crossed=context is not None,
        ).placed(hidden, key.shape[2])
        if self.rope is not None:
            rotation = self.rope.rotation(call.positions(hidden) if positions is None else positions, query.dtype)
            query, key = self.rope.rotate(query, rotation), self.rope.rotate(key, rotation)
        options = call.options(query, key.shape[1], self.head_options(window))
        if cache is None:
            heads, weights = call.over(query, key, value, options)  # [B, H, L, D]
        else:
            with call.appended(cache.append, key, value) as held:
                heads, weights = call.over_held(query, held, options)
        return LayerOutput(self.o_proj(heads.transpose(1, 2).flatten(2)), weights)

    def project_context(self, context: Tensor | ProjectedContext) -> ProjectedContext:
        """The keys and values of ``context`` ``[B, S, E]``, to be used for many calls of cross-attention.

        An encoder's output is projected once this way, not once for each generated token; for beam search, index the
        batch axis of both. They carry gradients.
        """
        if isinstance(context, ProjectedContext):
            return context
        check_tokens("context", context, self.embed_dim)
        return ProjectedContext(
            self._heads_of(self.k_proj(context), self.k_norm), self._heads_of(self.v_proj(context), None)
        )

    def _heads_of(self, features: Tensor, norm: nn.Module | None) -> Tensor:
        """``[B, length, heads * D]`` to ``[B, heads, length, D]``: head features lie together in the last axis.

        The features tell how many heads there are: under tensor parallelism these are some of them.
        """
        heads = features.unflatten(-1, (-1, self.head_dim))
        return (heads if norm is None else norm(heads)).transpose(1, 2)

    def _check_inputs(
        self,
        hidden: Tensor,
        context: Tensor | ProjectedContext | None,
        positions: Tensor | None,
        cache: KeyValueCache | None,
    ) -> None:
        check_tokens("hidden", hidden, self.embed_dim)
        if isinstance(cache, LatentCache):
            raise TypeError("cache: expected one of keys and values, got a LatentCache, which serves LatentAttention")
        if cache is not None and context is not None:
            raise ValueError(
                "cache: expected none with context, since only self-attention grows by its own tokens; "
                "keep the keys and values of a context with project_context"
            )
        if self.rope is not None and context is not None:
            raise ValueError(
                "context: expected none in a layer with rope, since the positions of two sequences have no distance; "
                "build the layer without"
            )
        if self.rope is None and positions is not None:
            raise ValueError("positions: expected none in a layer without rope, which nothing else reads")

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
            ValueError: KV heads are shared, the heads' widths don't add up to ``E``, only some projections have a
                bias, or the layer has rope, norms, windows, sinks, a soft-cap or a scale; PyTorch's module has no room
                for these.
        """
        extras = self.told_settings() | {"rope": self.rope, "qk_norm": self.q_norm, "sinks": self.sinks}
        reasons = {
            f"{self.num_heads} query heads share {self.num_kv_heads} KV heads": self.num_heads != self.num_kv_heads,
            f"{self.num_heads} heads of width {self.head_dim} do not add up to embed_dim {self.embed_dim}": (
                self.num_heads * self.head_dim != self.embed_dim
            ),
            "only some of its projections have a bias": (self.q_proj.bias is None) != (self.o_proj.bias is None),
        } | {f"it has {name}": value is not None for name, value in extras.items()}
        return interop.make_torch(self, reasons, batch_first)

    def extra_repr(self) -> str:
        """The sizes, for ``print``."""
        told = {"embed_dim": self.embed_dim, "num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads}
        told |= {"head_dim": self.head_dim} | self.told_settings()
        return ", ".join(f"{name}={value}" for name, value in told.items())


def _check_norm(eps: object) -> None:
    if eps is None:
        return
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        raise TypeError(
            f"qk_norm: expected the eps of the norms, such as 1e-6, or None for no norms, got {type(eps).__name__}"
        )
    if not 0 <= eps < 1:
        raise ValueError(f"qk_norm: expected an eps of at least 0 and below 1, got {eps}")


def _settle_sizes(embed_dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> int:
    """Hold the sizes against each other and settle the head dim."""
    sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    if head_dim is not None:
        sizes["head_dim"] = head_dim
    check_layer_sizes("GroupedQueryAttention", sizes)
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
