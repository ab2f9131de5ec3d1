"""headwise caches for ``generate()``: dense, windowed, paged, quantized or latent, through transformers' own interface.

Symbols: B batch, T new tokens, D head dim, Dv value head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import Tensor

from headwise.cache import (
    BlockPool,
    DenseCache,
    KeyValueCache,
    LatentCache,
    PagedCache,
    QuantizedCache,
    WindowCache,
)
from headwise.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from headwise.models.cache_layers import HeadwiseCache, HeadwiseEncoderDecoderCache

__all__ = ["headwise_cache"]

Kind: TypeAlias = Literal["dense", "paged", "quantized", "latent"]
# How many keys a query of a layer sees, its own included; None for all of them.
Window: TypeAlias = int | Literal["empty"] | None
Maker: TypeAlias = Callable[[Tensor, Tensor], KeyValueCache]

# From a cache's point of view a chunk is a window: only the mask differs.
_WINDOWED = ("sliding_attention", "chunked_attention")
# Layers without keys of their own: they have none, or read those of another layer.
_EMPTY = ("dummy", "moe", "mlp")
# Options and the kind that each belongs to, with its default there.
_OPTIONS: dict[str, dict[str, Any]] = {
    "dense": {},
    "paged": {"block_size": 16},
    "quantized": {"bits": 8, "residual": 64},
    "latent": {},
}


def headwise_cache(
    model: Any,
    capacity: int | None = None,
    *,
    kind: Kind = "dense",
    window: bool = True,
    margin: int = 32,
    block_size: int | None = None,
    bits: int | None = None,
    residual: int | None = None,
) -> HeadwiseCache | HeadwiseEncoderDecoderCache:
    """A cache for ``model.generate(..., cache=cache)``, of a size that is known beforehand.

    Older versions of transformers call the argument ``past_key_values``.

    It works with every attention implementation of transformers, and with greedy decoding, sampling, beam search and
    assisted decoding. Memory is allocated when the first tokens arrive, for their batch size (times beams), dtype and
    device. After ``reset()`` it serves another prompt.

    Args:
        model: a transformers model, or a :class:`~headwise.models.Checkpoint`.
        capacity: tokens per sequence: prompt with its padding, new tokens, and with ``prompt_lookup_num_tokens`` one
            draft more. Needed unless every layer has a window.
        kind: how layers that see all keys store them, and layers with a window if ``window`` is False:

            - ``dense``: one preallocated block of memory;
            - ``paged``: blocks of ``block_size`` tokens, which sequences share until they differ (beams);
            - ``quantized``: integers of ``bits`` bits with scales, the newest ``residual`` tokens in full precision;
            - ``latent``: the latent and the rotary key of multi-head latent attention. Models that cache those
              (DeepSeek-V2 and V3 and their kin) hand them to every kind; this one refuses all other models.
        window: keep only their window in layers that have one (sliding or chunked attention), in full precision.
        margin: how many tokens such a layer can take back, which assisted decoding does; 0 to save the memory where
            that isn't used.
        block_size: tokens per block, for ``paged``; 16 by default.
        bits: 8 (default) or 4, for ``quantized``.
        residual: tokens in full precision, for ``quantized``; 64 by default.

    Returns:
        A transformers ``Cache`` (for an encoder-decoder an ``EncoderDecoderCache``, whose keys from the encoder are
        dense), with ``nbytes`` (allocated) and ``nbytes_logical`` (in use). What doesn't fit raises
        :class:`~headwise.cache.CacheFullError` and leaves it as it was.

    Raises:
        TypeError: ``model`` is none.
        ValueError: no capacity where one is needed, a size out of range, an option of another kind, a kind that no
            layer of this model can use, or layers that hold more than keys and values.
    """
    from headwise.models.cache_layers import HeadwiseCache, HeadwiseEncoderDecoderCache

    model = model.model if isinstance(model, Checkpoint) else model
    if not hasattr(model, "config"):
        raise TypeError(f"headwise_cache: expected a transformers model or a Checkpoint, got {type(model).__name__}")
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    options = _options(kind, {"block_size": block_size, "bits": bits, "residual": residual})
    _check_sizes({"capacity": capacity, "margin": margin} | options)
    windows = _windows(name, config, window)
    _check(name, config, windows, capacity, kind)
    make = _maker(name, config, kind, capacity, options)
    own = HeadwiseCache([_layer(seen, capacity, margin, make, config) for seen in windows])
    if not model.config.is_encoder_decoder:
        return own
    return HeadwiseEncoderDecoderCache(own, HeadwiseCache([_crossing_layer() for _ in windows]))


def _options(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of this kind with its defaults; others must not have been given."""
    if kind not in _OPTIONS:
        raise ValueError(f"headwise_cache: expected kind to be one of {', '.join(_OPTIONS)}, got {kind!r}")
    given = {option: value for option, value in given.items() if value is not None}
    for option in given:
        if option not in _OPTIONS[kind]:
            owner = next(other for other, options in _OPTIONS.items() if option in options)
            raise ValueError(
                f"headwise_cache: {option} belongs to kind={owner!r}, got kind={kind!r}; leave it out, or change kind"
            )
    return _OPTIONS[kind] | given


def _windows(name: str, config: Any, window: bool) -> list[Window]:
    """The window of every layer."""
    from transformers.cache_utils import get_layer_types_and_kwargs

    found: list[Window] = []
    for layer, (kind, options) in enumerate(zip(*get_layer_types_and_kwargs(config), strict=True)):
        if kind in _EMPTY:
            found.append("empty")
        elif kind in _WINDOWED:
            found.append(options["sliding_window"] if window else None)
        elif kind == "full_attention":
            found.append(None)
        else:
            raise ValueError(
                f"headwise_cache: {name} has layers of type {kind!r} (layer {layer} is one), which keep something "
                "other than the keys and values of each token; leave its cache to transformers"
            )
    return found


def _check(name: str, config: Any, windows: list[Any], capacity: int | None, kind: str) -> None:
    """Refuse what would be wrong, or would be ignored in silence."""
    unbounded = [layer for layer, seen in enumerate(windows) if seen is None]
    if capacity is None and unbounded:
        raise ValueError(
            f"headwise_cache: expected a capacity, in tokens per sequence, since {len(unbounded)} of {len(windows)} "
            f"layers of {name} see all keys; pass the longest prompt and the new tokens together"
        )
    if kind != "dense" and not unbounded:
        raise ValueError(
            f"headwise_cache: kind={kind!r} would serve no layer of {name}, since all of them have a window, which is "
            "kept in full precision; pass window=False to keep all keys in it, or leave kind out"
        )
    if kind == "latent" and getattr(config, "kv_lora_rank", None) is None:
        raise ValueError(
            f"headwise_cache: kind='latent' needs multi-head latent attention, and {name} has no kv_lora_rank in its "
            "configuration; use another kind"
        )


def _check_sizes(sizes: dict[str, Any]) -> None:
    """Refuse now what would be refused when the first tokens arrive."""
    for option, given in sizes.items():
        least = 0 if option in ("margin", "residual") else 1
        if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < least):
            raise ValueError(f"headwise_cache: expected {option} to be an integer of at least {least}, got {given!r}")
    if sizes.get("bits", 8) not in (8, 4):
        raise ValueError(f"headwise_cache: expected bits to be 8 or 4, got {sizes['bits']}")


def _layer(window: Window, capacity: int | None, margin: int, make: Maker, config: Any = None) -> Any:
    from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING

    from headwise.models.cache_layers import HeadwiseLayer

    if window == "empty":
        return DYNAMIC_LAYER_TYPE_MAPPING["dummy" if "dummy" in DYNAMIC_LAYER_TYPE_MAPPING else "moe"]()
    if window is None:
        return HeadwiseLayer(make, capacity, config=config)
    left = window - 1  # transformers counts the query's own key
    return HeadwiseLayer(partial(_window, left=left, margin=margin, capacity=capacity), capacity, left, margin)


def _crossing_layer() -> Any:
    """A layer for the keys that a decoder reads from its encoder: they come once, all of them."""
    from headwise.models.cache_layers import HeadwiseLayer

    return HeadwiseLayer(partial(_dense, capacity=None), None)


def _geometry(key: Tensor, value: Tensor) -> dict[str, Any]:
    """What every cache of keys and values has to know of the first ones."""
    return {
        "num_kv_heads": key.shape[1],
        "head_dim": key.shape[3],
        "value_head_dim": value.shape[3],
        "dtype": key.dtype,
        "device": key.device,
    }


def _dense(key: Tensor, value: Tensor, *, capacity: int | None) -> KeyValueCache:
    capacity = key.shape[2] if capacity is None else capacity
    return DenseCache(key.shape[0], capacity=capacity, **_geometry(key, value))


def _window(key: Tensor, value: Tensor, *, left: int, margin: int, capacity: int | None) -> KeyValueCache:
    return WindowCache(key.shape[0], window=left, margin=margin, capacity=capacity, **_geometry(key, value))


def _paged(key: Tensor, value: Tensor, *, capacity: int, block_size: int) -> KeyValueCache:
    blocks = key.shape[0] * -(-capacity // block_size)  # enough where no two sequences share any
    return PagedCache(BlockPool(blocks, block_size, **_geometry(key, value)), key.shape[0])


def _quantized(key: Tensor, value: Tensor, *, capacity: int, bits: int, residual: int) -> KeyValueCache:
    geometry = _geometry(key, value)
    return QuantizedCache(key.shape[0], capacity=capacity, bits=bits, residual=residual, **geometry)


def _latent(latent: Tensor, rotary_key: Tensor, *, capacity: int, name: str, widths: tuple[int, int]) -> KeyValueCache:
    got = [list(tensor.shape[1::2]) for tensor in (latent, rotary_key)]
    if got != [[1, width] for width in widths]:
        raise ValueError(
            f"headwise_cache: kind='latent' expected {name} to cache latents and rotary keys (1 head each, of widths "
            f"{widths[0]} and {widths[1]}), got (heads, width) {tuple(got[0])} and {tuple(got[1])}: it expands them "
            "first; use another kind"
        )
    return LatentCache(latent.shape[0], capacity, *widths, dtype=latent.dtype, device=latent.device)


def _maker(name: str, config: Any, kind: str, capacity: int | None, options: dict[str, Any]) -> Maker:
    """Makes a cache of this kind from the first keys and values."""
    if kind == "latent":
        assert capacity is not None  # only a cache of windows does without
        return partial(_latent, capacity=capacity, name=name, widths=(config.kv_lora_rank, config.qk_rope_head_dim))
    makers: dict[str, Callable[..., KeyValueCache]] = {"dense": _dense, "paged": _paged, "quantized": _quantized}
    return partial(makers[kind], capacity=capacity, **options)
