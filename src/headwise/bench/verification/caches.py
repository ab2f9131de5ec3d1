"""transformers' own cache: making, filling and weighing it.

Symbols: B batch, G KV heads, S tokens in the cache, D head dim.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.models import Checkpoint

__all__ = [
    "CacheBytes",
    "advance",
    "cache_bytes",
    "cache_dtype",
    "cache_tensors",
    "can_be_filled",
    "filled_cache",
    "last_logits_only",
    "new_cache",
]


@dataclass(frozen=True)
class CacheBytes:
    """What transformers' cache takes after one sequence was read, counted over its tensors.

    Attributes:
        tokens: how many tokens were read.
        allocated: bytes of the memory behind its tensors, which a layer with a window may use in part only.
        used: bytes of the tensors themselves.
        each_further_token: bytes that one more token adds there: nothing for layers whose window is full by then.
        dtype: of its tensors: the one that the model was opened in, whatever its files hold.
    """

    tokens: int
    allocated: int
    used: int
    each_further_token: int
    dtype: str

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def new_cache(checkpoint: Checkpoint) -> Any:
    """An empty ``DynamicCache`` of transformers, as ``generate()`` makes it."""
    from transformers import DynamicCache

    return DynamicCache(config=checkpoint.model.config)


def advance(checkpoint: Checkpoint, cache: Any, tokens: Tensor, **options: Any) -> Tensor:
    """Read further tokens ``[B, L]``; the cache keeps them. Returns logits."""
    # transformers has renamed the argument in its fifth version.
    parameters = inspect.signature(checkpoint.model.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    output = checkpoint.model(input_ids=tokens.to(checkpoint.device), use_cache=True, **{name: cache}, **options)
    logits: Tensor = output.logits
    return logits


def last_logits_only(checkpoint: Checkpoint) -> dict[str, Any]:
    """The option that makes a model compute the logits of the last position alone, as serving does; none if it can't.

    The language head is a fifth of a small model's work.
    """
    known = "logits_to_keep" in inspect.signature(checkpoint.model.forward).parameters
    return {"logits_to_keep": 1} if known else {}


def cache_tensors(cache: Any) -> list[Tensor]:
    """Every tensor in which the layers of a cache keep something."""
    return [tensor for layer in cache.layers for _, tensor in _named(layer)]


def _named(layer: Any) -> list[tuple[str, Tensor]]:
    return [each for each in vars(layer).items() if isinstance(each[1], Tensor) and not each[0].startswith("_")]


def _probed(checkpoint: Checkpoint) -> Any:
    cache = new_cache(checkpoint)
    advance(checkpoint, cache, torch.tensor([[1, 2]]))
    return cache


@torch.inference_mode()
def cache_bytes(checkpoint: Checkpoint, tokens: Tensor) -> CacheBytes:
    """Read one sequence ``[1, S]`` and weigh the cache."""
    cache = new_cache(checkpoint)
    advance(checkpoint, cache, tokens, **last_logits_only(checkpoint))
    allocated, used = _allocated(cache), _used(cache)
    advance(checkpoint, cache, tokens[:, -1:])
    return CacheBytes(tokens.shape[1], allocated, used, _used(cache) - used, cache_dtype(cache))


def cache_dtype(cache: Any) -> str:
    """In which dtype a cache keeps what it keeps; several are named with a plus."""
    return "+".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in cache_tensors(cache)}))


def _used(cache: Any) -> int:
    return sum(tensor.nbytes for tensor in cache_tensors(cache))


def _allocated(cache: Any) -> int:
    storages = [tensor.untyped_storage() for tensor in cache_tensors(cache)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@torch.inference_mode()
def can_be_filled(checkpoint: Checkpoint) -> bool:
    """Whether the cache holds keys and values alone, which :func:`filled_cache` makes up; recurrent states are not."""
    return all({name for name, _ in _named(layer)} <= {"keys", "values"} for layer in _probed(checkpoint).layers)


@torch.inference_mode()
def filled_cache(checkpoint: Checkpoint, batch: int, tokens: int, seed: int) -> Any:
    """A cache that holds random keys and values, as many as after a prefill of ``tokens``.

    Decoding takes the same time behind them as behind real ones, and nothing has to be read first.

    Args:
        checkpoint: one of which :func:`can_be_filled` is true; its shapes are read off a cache of two tokens.
        batch: B.
        tokens: S.
        seed: of the keys and values; the sequences of a batch have the same.
    """
    probe, cache = _probed(checkpoint), new_cache(checkpoint)
    generator = torch.Generator().manual_seed(seed)
    for index, layer in enumerate(probe.layers):
        if _named(layer):  # some layers read the keys of others, and have none
            made = [_random(tensor, batch, tokens, generator) for tensor in (layer.keys, layer.values)]
            cache.update(*made, index)
    return cache


def _random(like: Tensor, batch: int, tokens: int, generator: torch.Generator) -> Tensor:
    """``[B, G, S, D]`` of the kind of ``like [1, G, 2, D]``."""
    size = (1, like.shape[1], tokens, like.shape[3])
    drawn = torch.randn(size, generator=generator).to(like)
    return drawn.expand(batch, -1, -1, -1)
