"""Multi-head latent attention: keys and values of all heads are read out of one small latent per token.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``E`` model width, ``H`` heads. Widths: ``r`` latent, ``n``
and ``p`` the parts of a head's query and key without (``nope``) and with position (``rope``), ``v`` value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from headwise.attention.masks import WindowArgument
from headwise.attention.packing import PackingArgument
from headwise.cache import Held, LatentCache
from headwise.nn.calls import Call
from headwise.nn.checks import check_layer_sizes, check_tokens
from headwise.nn.frequencies import yarn_magnitude
from headwise.nn.heads import HeadSettings, local
from headwise.nn.norm import RMSNorm
from headwise.nn.outputs import LayerOutput
from headwise.nn.rope import RotaryEmbedding

__all__ = ["LatentAttention", "LatentForm"]

LatentForm = Literal["expanded", "absorbed"]


class LatentAttention(HeadSettings):
    """Multi-head latent attention as in DeepSeek-V2 and DeepSeek-V3.

    A token is projected down to a latent of width ``r`` (``kv_a_proj_with_mqa``, ``kv_a_layernorm``), from which
    ``kv_b_proj`` reads ``n`` key and ``v`` value features for each head. Position comes from ``p`` more key features
    that all heads share and that alone are turned (``rope``). Queries may pass through a latent of their own. Only the
    latent and the turned features are cached: ``r + p`` numbers per token instead of ``H * (n + p + v)``.

    The same attention has two forms, which agree up to rounding:

    - *expanded*: keys and values of all heads are made from the latents, then attention runs as usual.
    - *absorbed*: a score is ``q . (W c) = (W^T q) . c``, so the key half of ``kv_b_proj`` moves into the query, and the
      value half behind the attention: multi-query attention over the latents themselves, with one KV head of width
      ``r + p`` and values of width ``r``. This is why only ``p`` separate features are turned: a rotation between ``W``
      and ``q`` differs for each distance, so that no fixed matrix could hold it.

    Counted in multiply-adds of one head and sequence, ``L`` queries over ``S`` keys cost

    - expanded: ``S * r * (n + v) + L * S * (n + p + v)``
    - absorbed: ``L * r * (n + v) + L * S * (2 * r + p)``

    so that absorbed is cheaper while ``L * (r * (n + v) + S * (2 * r - n - v)) < S * r * (n + v)``. With the sizes of
    DeepSeek-V3 (``r`` 512, ``n`` and ``v`` 128, ``p`` 64) that is up to 145 queries over 1,000 keys, and 170 over a
    long context; one query over 1,000 keys costs 1/108 of what expanding does. Without a cache ``L = S``, and
    expanding wins.

    State dicts of transformers' ``DeepseekV3Attention`` and ``DeepseekV2Attention`` load by name, and
    :func:`headwise.models.attention_layer` reads the options from their configs.

    Args:
        embed_dim: ``E``.
        num_heads: ``H``.
        latent_dim: ``r`` (``kv_lora_rank``).
        nope_head_dim: ``n`` (``qk_nope_head_dim``); may be 0.
        rope_head_dim: ``p`` (``qk_rope_head_dim``).
        value_head_dim: ``v`` (``v_head_dim``).
        query_latent_dim: width of the queries' latent (``q_lora_rank``); default: one projection, ``q_proj``.
        bias: whether the projections of ``hidden`` down to latents, and the output's, have a bias.
        rope: turns the ``p`` features; default ``RotaryEmbedding(p, interleaved=True)``.
        latent_norm: whether keys and values are read from a normalised latent (``kv_a_layernorm``), as in DeepSeek.
            Without it the layer is linear in its input up to the attention, as grouped heads are.
        eps: of the norms of both latents.
        window, sinks, softcap: see :class:`GroupedQueryAttention`.
        scale: factor of the scores; default ``1 / sqrt(n + p)``, times the square of YaRN's magnitude where the scaling
            of ``rope`` names ``mscale_all_dim``, as DeepSeek does it.
        device, dtype: of the parameters.

    Raises:
        TypeError: a window, soft-cap or scale is none.
        ValueError: a size is no positive integer, or ``rope`` has another width.

    Source: DeepSeek-AI 2024 (arXiv:2405.04434), section 2.1 and appendix C; DeepSeek-V3 (arXiv:2412.19437), section
    2.1.1. There ``d_c`` is ``r``, ``d_h`` is ``n`` and ``v``, ``d_h^R`` is ``p``, and ``W^UK`` and ``W^UV`` are rows of
    ``kv_b_proj``.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        latent_dim: int,
        nope_head_dim: int,
        rope_head_dim: int,
        value_head_dim: int,
        query_latent_dim: int | None = None,
        bias: bool = False,
        rope: RotaryEmbedding | None = None,
        latent_norm: bool = True,
        eps: float = 1e-6,
        window: WindowArgument = None,
        sinks: bool = False,
        softcap: float | None = None,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "latent_dim": latent_dim}
        sizes |= {"rope_head_dim": rope_head_dim, "value_head_dim": value_head_dim}
        if isinstance(nope_head_dim, bool) or not isinstance(nope_head_dim, int) or nope_head_dim < 0:
            raise ValueError(
                f"LatentAttention: expected nope_head_dim to be 0 or a positive integer, got {nope_head_dim!r}"
            )
        given = {} if query_latent_dim is None else {"query_latent_dim": query_latent_dim}
        check_layer_sizes("LatentAttention", sizes | given)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        rope = RotaryEmbedding(rope_head_dim, interleaved=True, device=device) if rope is None else rope
        if rope.head_dim != rope_head_dim:
            raise ValueError(
                f"LatentAttention: expected rope for head_dim {rope_head_dim}, got one for {rope.head_dim}"
            )
        query_dim = nope_head_dim + rope_head_dim
        scale = _default_scale(query_dim, rope) if scale is None else scale
        super().__init__(num_heads, window=window, sinks=sinks, softcap=softcap, scale=scale, **made)
        self.embed_dim, self.latent_dim, self.query_latent_dim = embed_dim, latent_dim, query_latent_dim
        self.nope_head_dim, self.rope_head_dim, self.value_head_dim = nope_head_dim, rope_head_dim, value_head_dim
        if query_latent_dim is None:
            self.q_proj = nn.Linear(embed_dim, num_heads * query_dim, bias=False, **made)
        else:
            self.q_a_proj = nn.Linear(embed_dim, query_latent_dim, bias=bias, **made)
            self.q_a_layernorm = RMSNorm(query_latent_dim, eps=eps, **made)
            self.q_b_proj = nn.Linear(query_latent_dim, num_heads * query_dim, bias=False, **made)
        self.kv_a_proj_with_mqa = nn.Linear(embed_dim, latent_dim + rope_head_dim, bias=bias, **made)
        self.kv_a_layernorm = RMSNorm(latent_dim, eps=eps, **made) if latent_norm else nn.Identity()
        self.kv_b_proj = nn.Linear(latent_dim, num_heads * (nope_head_dim + value_head_dim), bias=False, **made)
        self.o_proj = nn.Linear(num_heads * value_head_dim, embed_dim, bias=bias, **made)
        self.rope = rope

    def forward(
        self,
        hidden: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        causal: bool = False,
        window: WindowArgument = None,
        positions: Tensor | None = None,
        cu_seqlens: PackingArgument = None,
        cache: LatentCache | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        form: LatentForm | None = None,
        need_weights: bool = False,
        backend: str | None = None,
    ) -> LayerOutput:
        """Attend from ``hidden`` to itself, or to what a cache holds and then itself.

        Args:
            hidden: ``[B, L, E]``.
            cache: latents and turned features of earlier tokens; the new ones are appended. Causal attention only, and
                without gradients.
            form: ``"expanded"`` or ``"absorbed"``, see the class. Default: without a cache expanded, with one
                whichever takes fewer multiply-adds.

        The other arguments are those of :meth:`GroupedQueryAttention.forward`.

        Returns:
            Output ``[B, L, E]``, and weights ``[B, H, L, S]`` or None.

        Raises:
            TypeError: a mask, bias or position has the wrong dtype.
            ValueError: a shape doesn't fit, arguments exclude each other, the form is unknown, or (in eager mode on a
                CPU) a query that is no padding sees no key. A cache is left as it was then.
        """
        check_tokens("hidden", hidden, self.embed_dim)
        if cache is not None and not isinstance(cache, LatentCache):
            raise TypeError(
                f"cache: expected a LatentCache, got {type(cache).__name__}; LatentAttention caches latents"
            )
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
        ).placed(hidden, hidden.shape[1])
        absorbs = self._absorbs(form, hidden.shape[1], call.length, cache is not None)
        rotation = self.rope.rotation(call.positions(hidden) if positions is None else positions, hidden.dtype)
        query = self._queries(hidden)
        plain, turning = query.split([self.nope_head_dim, self.rope_head_dim], -1)
        query = torch.cat([plain, self.rope.rotate(turning, rotation)], -1)  # [B, H, L, n + p]
        latent, turning = self._latents(hidden)
        rotary = self.rope.rotate(turning, rotation)  # [B, 1, L, p]
        options = call.options(query, 1, self.head_options(window))
        if absorbs:
            query = self._absorbed_query(query)  # [B, H, L, r + p]
        if cache is None:
            key, value = (torch.cat([latent, rotary], -1), latent) if absorbs else self._expanded(latent, rotary)
            heads, weights = call.over(query, key, value, options)
        else:
            with call.appended(cache.append, latent, rotary) as held:
                parts = held if absorbs else [self._expanded_part(part, query.shape[1]) for part in held]
                heads, weights = call.over_held(query, parts, options)
        if absorbs:
            heads = heads @ self._up_projections()[1].transpose(-2, -1)  # [B, H, L, r] to [B, H, L, v]
        return LayerOutput(self.o_proj(heads.transpose(1, 2).flatten(2)), weights)

    def _absorbs(self, form: LatentForm | None, queries: int, keys: int, cached: bool) -> bool:
        if form is not None and form not in get_args(LatentForm):
            raise ValueError(f"form: expected 'expanded', 'absorbed' or None, got {form!r}")
        if form is not None or not cached:
            return form == "absorbed"
        r, read = self.latent_dim, self.nope_head_dim + self.value_head_dim
        return queries * (r * read + keys * (2 * r - read)) < keys * r * read

    def _queries(self, hidden: Tensor) -> Tensor:
        """``[B, L, E]`` to ``[B, H, L, n + p]``; the features tell how many heads there are here."""
        if self.query_latent_dim is None:
            features = self.q_proj(hidden)
        else:
            features = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden)))
        return features.unflatten(-1, (-1, self.nope_head_dim + self.rope_head_dim)).transpose(1, 2)

    def _latents(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, L, E]`` to latents ``[B, 1, L, r]`` and the features that will turn ``[B, 1, L, p]``."""
        features = self.kv_a_proj_with_mqa(hidden)[:, None]
        latent, turning = features.split([self.latent_dim, self.rope_head_dim], -1)
        return self.kv_a_layernorm(latent), turning

    def _expanded(self, latent: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:
        """Keys ``[B, H, S, n + p]`` and values ``[B, H, S, v]`` from latents ``[B, 1, S, r]`` and ``[B, 1, S, p]``."""
        widths = [self.nope_head_dim, self.value_head_dim]
        read = self.kv_b_proj(latent[:, 0]).unflatten(-1, (-1, sum(widths))).transpose(1, 2)
        plain, value = read.split(widths, -1)
        return torch.cat([plain, rotary.expand(-1, plain.shape[1], -1, -1)], -1), value

    def _expanded_part(self, part: Held, heads: int) -> Held:
        """What a cache handed out, with keys and values of all heads."""
        key, value = self._expanded(part.values, part.keys[..., self.latent_dim :])
        return part._replace(kv_heads=tuple(range(heads)), keys=key, values=value)

    def _absorbed_query(self, query: Tensor) -> Tensor:
        """``[B, H, L, n + p]`` to ``[B, H, L, r + p]``: queries of latents."""
        plain, turned = query.split([self.nope_head_dim, self.rope_head_dim], -1)
        return torch.cat([plain @ self._up_projections()[0], turned], -1)

    def _up_projections(self) -> tuple[Tensor, Tensor]:
        """The rows of ``kv_b_proj`` by head: ``[H, n, r]`` for keys and ``[H, v, r]`` for values."""
        widths = [self.nope_head_dim, self.value_head_dim]
        rows = local(self.kv_b_proj.weight).unflatten(0, (-1, sum(widths)))
        to_key, to_value = rows.split(widths, 1)
        return to_key, to_value

    def extra_repr(self) -> str:
        """The sizes, for ``print``."""
        names = "embed_dim num_heads latent_dim nope_head_dim rope_head_dim value_head_dim query_latent_dim".split()
        told = {name: getattr(self, name) for name in names} | self.told_settings()
        return ", ".join(f"{name}={value}" for name, value in told.items() if value is not None)


def _default_scale(query_dim: int, rope: RotaryEmbedding) -> float:
    weight = rope.scaling.get("mscale_all_dim", 0)
    magnitude = yarn_magnitude(rope.scaling.get("factor", 1), weight) if weight else 1.0
    return query_dim**-0.5 * magnitude**2
