"""headwise as an attention implementation of transformers.

After ``register()`` any transformers model runs with ``attn_implementation="headwise"``. Two registries are served:
the attention function itself, and the mask function of the same name, without which transformers passes no mask at all
and padding would be dropped in silence.

Symbols: B batch, L query length, S key length, H query heads, G KV heads, D head dim, Dv value head dim.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention import attention_weights
from headwise.cache.in_place import attend_in_place
from headwise.models.held_tensors import held_part
from headwise.models.probes import HeadCall, active_probes

NAME = "headwise"

__all__ = ["NAME", "headwise_attention", "headwise_mask", "register"]

_HONOURED = frozenset(
    {
        "is_causal", "sliding_window", "softcap", "s_aux", "position_bias", "output_attentions", "cu_seq_lens_q",
        "cu_seq_lens_k",
    }
)  # fmt: skip
# What transformers passes along that has no bearing on the attention weights.
_HARMLESS = frozenset(
    {
        "cache_position", "position_ids", "use_cache", "output_hidden_states", "return_dict", "cache",
        "past_key_values", "num_items_in_batch", "position_embeddings", "layer_idx", "inputs_embeds", "logits_to_keep",
        "max_length_q", "max_length_k",  # of the longest packed document, which cu_seq_lens_q and _k tell as well
    }
)  # fmt: skip


def register() -> None:
    """Register ``headwise`` in transformers' attention and mask registries. Calling it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, headwise_attention)
    AttentionMaskInterface.register(NAME, headwise_mask)


def headwise_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    allow_is_causal_skip: bool = True,
    **options: Any,
) -> Tensor | None:
    """Boolean mask ``[B, 1, L, S]``, True where a query may attend, or None for plain causal or full attention.

    transformers lets a causal mask be dropped for static caches too, where the unread slots lie behind the queries and
    the alignment is upper left. headwise aligns lower right, so the mask is dropped only where both agree.

    Raises:
        ValueError: the architecture (``config`` among the options) never calls a registered attention function.
    """
    from transformers.masking_utils import sdpa_mask

    config = options.get("config")
    if (
        config is not None
        and not torch.compiler.is_compiling()
        and not _calls_registered_attention(type(config).__module__)
    ):
        raise ValueError(
            "headwise attention: expected an architecture that looks its attention up in transformers' registry, got "
            f"{config.model_type}, which has its own and would misread the masks; "
            'use attn_implementation="eager" for this model'
        )
    aligned = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        allow_is_causal_skip=allow_is_causal_skip and aligned,
        **options,
    )


@cache
def _calls_registered_attention(config_module: str) -> bool:
    """Whether models whose config class stands in this module leave attention to transformers' registry.

    transformers (5.24) takes any registered name for every architecture. Ones that keep their own attention (BLOOM,
    MPT, XGLM) would go on with masks made for another function: BLOOM lets every query look ahead then. Their modules
    define attention and hold no registry.
    """
    from transformers import AttentionInterface

    module = sys.modules.get(config_module.replace("configuration_", "modeling_"))
    if module is None:
        return True
    held = list(vars(module).values())
    layers = [one for one in held if isinstance(one, type) and issubclass(one, nn.Module)]
    own = any("Attention" in layer.__name__ and layer.__module__ == module.__name__ for layer in layers)
    return not own or any(isinstance(one, AttentionInterface) for one in held)


def headwise_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls in every layer.

    Args:
        module: the attention module, known to :mod:`headwise.models.probes` by its layer.
        query: ``[B, H, L, D]``.
        key: ``[B, G, S, D]``, never repeated.
        value: ``[B, G, S, Dv]``.
        attention_mask: boolean (True = may attend) or additive, broadcastable to ``[B, H, L, S]``.
        scaling: factor of the scores; None for ``1 / sqrt(D)``.
        dropout: must be 0: attention dropout is refused.
        **options: ``is_causal``, ``sliding_window``, ``softcap``, ``s_aux`` (sinks), ``position_bias``,
            ``output_attentions``, ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (documents packed side by side in a batch of
            1: none of them sees another, and causal order and window are those within the document).

    Returns:
        The heads' outputs ``[B, L, H, Dv]`` and, if ``output_attentions`` is set, the weights ``[B, H, L, S]``.

    Raises:
        ValueError: an option that this function does not honour, named.
    """
    _refuse_unknown(module, dropout, options)
    arguments = _arguments(module, query, key, attention_mask, scaling, options)
    held = held_part(key, value)
    if held is not None:
        plain = not _weights_wanted(options) and next(active_probes(module), None) is None
        output = attend_in_place(query, held, arguments, None) if plain else None
        if output is not None:
            return output.transpose(1, 2).contiguous(), None
        key, value = held.keys, held.values
    call = HeadCall(module, query, key, value, arguments, sliding_window=options.get("sliding_window"))
    output = _through_probes(call)  # [B, H, L, Dv]
    weights = attention_weights(query, key, **arguments) if _weights_wanted(options) else None
    return output.transpose(1, 2).contiguous(), weights


def _weights_wanted(options: dict[str, Any]) -> bool:
    """Whether the caller asked for attention weights.

    Most models pass ``output_attentions`` on. Some (GPT-2) keep it to themselves and count on transformers, which
    collects what attention modules return while it is asked to.
    """
    if options.get("output_attentions"):
        return True
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # older versions pass the option on
        return False
    collected = _active_collector.get() or {}
    return any("attentions" in field for field in collected)


def _refuse_unknown(module: nn.Module, dropout: float, options: dict[str, Any]) -> None:
    name = type(module).__name__
    if dropout:
        raise ValueError(
            f"headwise attention in {name}: attention dropout {dropout} is not supported; "
            'call model.eval(), set attention_dropout to 0, or use attn_implementation="eager"'
        )
    for option, given in options.items():
        # Flags ask for outputs; anything else that is not known may well change the weights (a second bias, an indexer,
        # a temperature), and ignoring it would be wrong in silence.
        if given is None or isinstance(given, bool) or option in _HONOURED or option in _HARMLESS:
            continue
        got = (
            f"a tensor of shape {list(given.shape)}" if isinstance(given, Tensor) else f"of type {type(given).__name__}"
        )
        raise ValueError(
            f"headwise attention in {name}: got {option}, {got}, which headwise does not know; "
            'use attn_implementation="eager" for this model'
        )


def _arguments(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """The keyword arguments of ``headwise.attention.attention`` that mean what transformers asked for."""
    causal = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    arguments: dict[str, Any] = {
        "scale": scaling,
        "softcap": options.get("softcap"),
        "sinks": options.get("s_aux"),
        "bias": options.get("position_bias"),
        "cu_seqlens": _packing(module, attention_mask, options),
    }
    if attention_mask is None:
        arguments["causal"] = causal
        arguments["window"] = _window(module, options.get("sliding_window"), causal, key.shape[2])
    elif attention_mask.dtype == torch.bool:
        arguments["mask"] = attention_mask
    else:
        bias = arguments["bias"]
        arguments["bias"] = attention_mask if bias is None else attention_mask + bias
    return {name: given for name, given in arguments.items() if given is not None and given is not False}


def _packing(module: nn.Module, attention_mask: Tensor | None, options: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Where packed documents begin and end, of queries and keys."""
    queries, keys = options.get("cu_seq_lens_q"), options.get("cu_seq_lens_k")
    if queries is None and keys is None:
        return None
    if queries is None or keys is None:
        given = "cu_seq_lens_q" if keys is None else "cu_seq_lens_k"
        raise ValueError(
            f"headwise attention in {type(module).__name__}: expected cu_seq_lens_q and cu_seq_lens_k for packed "
            f"documents, got {given} alone; pass both"
        )
    kinds = getattr(getattr(module, "config", None), "layer_types", None)
    if attention_mask is not None and kinds and kinds[getattr(module, "layer_idx", 0)] == "chunked_attention":
        raise ValueError(
            f"headwise attention in {type(module).__name__}: expected no cu_seq_lens_q with chunked attention, whose "
            "mask counts chunks from the start of the row and not of each document; pass position_ids that start again "
            "with each document, and use_cache=False"
        )
    return queries, keys


def _window(module: nn.Module, sliding_window: int | None, causal: bool, key_length: int) -> tuple[int, int] | None:
    """The window of a call that came without a mask; a mask from transformers already holds it."""
    if sliding_window is None or sliding_window >= key_length:
        return None
    if not causal:
        raise ValueError(
            f"headwise attention in {type(module).__name__}: a two-sided sliding window of {sliding_window} came "
            "without a mask, and architectures disagree on its width; pass the mask"
        )
    return (sliding_window - 1, 0)


def _through_probes(call: HeadCall) -> Tensor:
    for probe in active_probes(call.module):
        replaced = probe(call)
        if replaced is not None:
            call.output = replaced
    return call.output
