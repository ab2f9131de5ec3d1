"""Grouped heads converted to multi-head latent attention (MLA): one small latent and one rotary key per token.

At full size this is exact: with a rotary key of all KV heads' rotary dimensions side by side, and latents that hold
all values, grouped-query attention *is* latent attention. Below that it is a truncation
(:mod:`headwise.surgery.mla.factors`), layer by layer, each fitted to what the converted layers before it give.

The result is no stock format: its layers are :class:`headwise.nn.LatentAttention` without a norm on the latent, with
rotary pairs of chosen frequencies. :mod:`headwise.surgery.mla.checkpoint` saves and loads it.

Symbols: N rows, L length, E model width, H query heads, G KV heads, Dv value head dim, p rotary dims, r rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise import __version__
from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.models.corpus import Rows, cut_rows, read_corpus
from headwise.models.head_weights import HeadWeights
from headwise.models.weights import Rotary, copy_of, heads_of, kind_of, rotary_of
from headwise.nn import LatentAttention, RotaryEmbedding
from headwise.nn.rope_selected import SelectedRotaryEmbedding
from headwise.progress import Progress, Silent
from headwise.surgery.mla.factors import factorise, most_dims
from headwise.surgery.mla.model import LatentCheckpoint, put_layer
from headwise.surgery.mla.statistics import LayerStatistics, measure_layer
from headwise.surgery.walk import Walk

__all__ = ["check_latent", "convert_to_latent", "latent_layer", "to_latent"]

_TOKENS, _LENGTH = 16_384, 512


def convert_to_latent(
    checkpoint: Checkpoint,
    *,
    rank: int,
    rope: int,
    rows: Rows | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> LatentCheckpoint:
    """Convert every attention layer of a decoder to latent attention with a cache of ``rank + rope`` numbers per token.

    Args:
        checkpoint: stays as it is.
        rank: width of the latent, from which keys and values are read.
        rope: width of the rotary key, even. ``G`` times the rotary dims of a head keeps all rotation; then the rank
            that keeps everything is ``G * Dv``. Without all of it distances beyond those in ``rows`` were not looked
            at, so calibrate with rows as long as will be used.
        rows: to calibrate on; default: 16,384 tokens of Python's help topics, in rows of 512.
        seed: of the choice of default rows.
        progress: told of the layers that are done.

    Raises:
        UserError: the architecture can't be converted, or a size is out of range.
    """
    check_latent(checkpoint, rank, rope)
    if rows is None:
        working = read_corpus(None).working
        rows = cut_rows(working, checkpoint.tokenizer, tokens=_TOKENS, length=_LENGTH, seed=seed, what="calibration")
    _check_tokens(checkpoint, rows, rank)
    progress = Silent() if progress is None else progress
    progress.plan(rows.tokens.numel())
    student = copy_of(checkpoint)
    walk = Walk(student, rows.tokens)
    modules = sorted(student.attention_layers, key=lambda module: student.attention_layers[module])
    adapters = []
    for layer, module in enumerate(modules):
        progress.stage(f"layer {layer + 1} of {student.num_layers}")
        attention = to_latent(student, layer, walk.inputs(layer), rank=rank, rope=rope)
        adapters.append(put_layer(student.model, module, attention, layer))
        walk.advance(layer)
        progress.advance(rows.tokens.numel() / student.num_layers)
    step = {"operation": "convert_to_latent", "rank": rank, "rope": rope, "tokens": rows.tokens.numel()}
    step |= {"length": rows.tokens.shape[1], "documents": list(rows.documents), "seed": seed, "headwise": __version__}
    return LatentCheckpoint.of(
        student.model,
        adapters,
        rank=rank,
        rope=rope,
        tokenizer=checkpoint.tokenizer,
        name=checkpoint.name,
        source=checkpoint.source,
        objective=checkpoint.objective,
        history=(*checkpoint.history, step),
        stored_dtype=checkpoint.stored_dtype,
    )


def to_latent(checkpoint: Checkpoint, layer: int, inputs: Tensor, *, rank: int, rope: int) -> LatentAttention:
    """One layer of a checkpoint as latent attention.

    Args:
        checkpoint: stays as it is.
        layer: from 0.
        inputs: ``[N, L, E]``, what the layer is given in rows of text that start at position 0.
        rank, rope: see :func:`convert_to_latent`.

    Raises:
        UserError: the layer can't be converted, or a size is out of range.
    """
    check_latent(checkpoint, rank, rope, layers=[layer])
    weights, rotary = heads_of(checkpoint, layer), rotary_of(checkpoint, layer)
    turning, options = _rope_of(checkpoint, layer), _options_of(checkpoint, layer)
    with torch.no_grad():
        statistics = measure_layer(weights, turning, inputs, options)
        return latent_layer(weights, rotary, turning, statistics, rank=rank, rope_dims=rope, **options)


def latent_layer(
    weights: HeadWeights,
    rotary: Rotary,
    rope: RotaryEmbedding,
    statistics: LayerStatistics,
    *,
    rank: int,
    rope_dims: int,
    scale: float,
    **options: Any,
) -> LatentAttention:
    """Latent attention from the weights of grouped heads, of their dtype and on their device.

    Args:
        weights: without biases.
        rotary: which dimensions of queries and keys are turned by position.
        rope: turns them.
        statistics: of the layer's inputs.
        rank: r, from 1 to :func:`headwise.surgery.mla.factors.most_dims`.
        rope_dims: p, even, from 2 to ``G`` times the rotary dims of a head.
        scale: of the scores.
        **options: soft-cap and window of :class:`headwise.nn.LatentAttention`.
    """
    factors = factorise(weights, rotary, statistics, rank=rank, rope_dims=rope_dims, scale=scale)
    made: dict[str, Any] = {"dtype": weights.query.dtype, "device": weights.query.device}
    layer = LatentAttention(
        weights.query.shape[2],
        weights.num_heads,
        latent_dim=rank,
        nope_head_dim=factors.nope_head_dim,
        rope_head_dim=rope_dims,
        value_head_dim=weights.value.shape[1],
        rope=SelectedRotaryEmbedding(rope, factors.pairs, device=made["device"]),
        latent_norm=False,
        scale=scale,
        **options,
        **made,
    )
    with torch.no_grad():
        layer.q_proj.weight.copy_(factors.query.flatten(0, 1))
        layer.kv_a_proj_with_mqa.weight.copy_(factors.down)
        layer.kv_b_proj.weight.copy_(factors.up.flatten(0, 1))
        layer.o_proj.weight.copy_(factors.output.transpose(0, 1).flatten(1))
    return layer.eval().requires_grad_(False)


def check_latent(checkpoint: Checkpoint, rank: int, rope: int, layers: list[int] | None = None) -> None:
    """Refuse, before any work, what can't be converted.

    Raises:
        UserError: the architecture, a layer or a size, by name.
    """
    kind_of(checkpoint)
    for layer in range(checkpoint.num_layers) if layers is None else layers:
        weights, rotary = heads_of(checkpoint, layer), rotary_of(checkpoint, layer)
        reason = None
        if not checkpoint.causal:
            reason = "an encoder"
        elif rotary.style == "none":
            reason = "positions of another kind"
        elif rotary.norms:
            reason = "normalised queries and keys, which are not linear in a latent"
        elif any(getattr(weights, f"{part}_bias") is not None for part in ("query", "key", "value", "output")):
            reason = "biases, which the projections of latent attention don't have"
        if reason is not None:
            raise UserError(
                f"{checkpoint.name}, layer {layer}: expected a decoder with rotary positions, without biases and norms "
                f"of queries and keys (Llama, Mistral, Gemma 2, Phi-3) to convert to latent attention, got {reason}"
            )
        _rope_of(checkpoint, layer)
        _check_sizes(f"{checkpoint.name}, layer {layer}", weights, rotary, rank, rope)


def _check_sizes(where: str, weights: HeadWeights, rotary: Rotary, rank: int, rope: int) -> None:
    most = weights.num_kv_heads * rotary.dims
    if rope % 2 or not 2 <= rope <= most:
        raise UserError(
            f"{where}: expected an even number of rotary dims from 2 to {most} ({weights.num_kv_heads} KV heads of "
            f"{rotary.dims}), got {rope}"
        )
    full = most_dims(weights, rotary, rope)
    if not 1 <= rank <= full:
        raise UserError(
            f"{where}: expected a rank from 1 to {full}, which loses nothing more with {rope} rotary dims, got {rank}"
        )


def _check_tokens(checkpoint: Checkpoint, rows: Rows, rank: int) -> None:
    if rows.tokens.numel() < 2 * rank:
        raise UserError(
            f"{checkpoint.name}: expected at least {2 * rank} tokens of calibration for rank {rank}, got "
            f"{rows.tokens.numel()}; give more text"
        )


def _rope_of(checkpoint: Checkpoint, layer: int) -> RotaryEmbedding:
    config, head_dim = checkpoint.model.config, checkpoint.layouts[layer].head_dim
    parameters = dict(config.rope_parameters)
    base = parameters.pop("rope_theta")
    parameters.pop("partial_rotary_factor", None)
    dims = rotary_of(checkpoint, layer).dims
    try:
        return RotaryEmbedding(head_dim, base, rotary_dim=dims, scaling=parameters, device=checkpoint.device)
    except ValueError as error:
        raise UserError(f"{checkpoint.name}: can't be converted to latent attention: {error}") from error


def _options_of(checkpoint: Checkpoint, layer: int) -> dict[str, Any]:
    module: Any = next(module for module, served in checkpoint.attention_layers.items() if layer in served)
    softcap = getattr(module, "attn_logit_softcapping", None)
    return {"scale": float(module.scaling), "softcap": softcap, "window": checkpoint.layouts[layer].window}
