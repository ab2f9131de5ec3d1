"""Asking a GGUF file's metadata for the keys of its architecture."""

from __future__ import annotations

from typing import Any

from headwise.plan.config import MOST_LAYERS, Config
from headwise.plan.errors import PlanError

__all__ = ["Keys", "Metadata"]


class Metadata(Config):
    """The metadata of a file, asked for like the fields of a config."""

    def place(self, name: str) -> str:
        """The file and the key."""
        return f"{self.where}: {name}"


class Keys:
    """The keys ``{architecture}.NAME`` of a file, and the names of the tensors in its first layer.

    Args:
        metadata: all of the file.
        architecture: what stands before the names.
        tensors: names of the tensors of block 0, without ``blk.0.``.
    """

    def __init__(self, metadata: Config, architecture: str, tensors: frozenset[str]) -> None:
        self.metadata, self.architecture, self.tensors = metadata, architecture, tensors

    def whole(self, name: str, least: int = 1) -> int:
        """A whole number. Raises PlanError where there is none."""
        return self.metadata.whole(self._key(name), least=least)

    def maybe_whole(self, name: str, least: int = 1) -> int | None:
        """The same; None where the file doesn't say."""
        return self.metadata.maybe_whole(self._key(name), least=least)

    def has(self, name: str) -> bool:
        """Whether the file has that key."""
        return self.metadata.has(self._key(name))

    def refuse(self, name: str, expected: str, advice: str = "") -> PlanError:
        """The error for a key that contradicts the rest, to be raised."""
        return self.metadata.refuse(self._key(name), expected, advice)

    def layers(self) -> int:
        """Layers of the model itself, without those behind it that predict further tokens."""
        count = self.metadata.whole(self._key("block_count"), most=MOST_LAYERS)
        further = self.maybe_whole("nextn_predict_layers", least=0) or 0
        if further >= count:
            raise self.refuse("nextn_predict_layers", f"fewer than block_count = {count}")
        return count - further

    def sizes(self) -> dict[str, Any]:
        """What every family calls the same."""
        return {
            "num_hidden_layers": self.layers(),
            "hidden_size": self.whole("embedding_length"),
            "max_position_embeddings": self.maybe_whole("context_length"),
        }

    def each(self, name: str, count: int) -> tuple[int, ...]:
        """A number for each of the first ``count`` layers, whether the file has one for all or a list."""
        if isinstance(self.metadata.data.get(self._key(name)), tuple):
            found = self.metadata.wholes(self._key(name))
            if len(found) < count:
                raise self.refuse(name, f"an entry for each of {count} layers")
            return found[:count]
        return (self.whole(name, least=0),) * count

    def same(self, name: str) -> int:
        """One number that holds for all layers with attention; those without have 0."""
        found = set(self.each(name, self.layers())) - {0}
        if not found:
            raise self.refuse(name, "at least 1 in a layer with attention")
        if len(found) != 1:
            raise self.refuse(name, "one number for all layers of this architecture")
        return found.pop()

    def kv_heads(self) -> int:
        """``G``; where the file doesn't say, as many as query heads, as llama.cpp reads it."""
        return self.same("attention.head_count_kv" if self.has("attention.head_count_kv") else "attention.head_count")

    def head_dim(self, heads: int) -> int:
        """``D``; where the file doesn't say, ``E / H``, as llama.cpp reads it."""
        own = self.maybe_whole("attention.key_length")
        width = self.whole("embedding_length")
        if own is None and width % heads:
            raise self.refuse("attention.head_count", f"a divisor of embedding_length = {width}")
        return width // heads if own is None else own

    def sliding_types(self) -> list[str]:
        """What each layer is: the file marks those that slide, or says how many to the next that doesn't."""
        count, key = self.layers(), self._key("attention.sliding_window_pattern")
        marks = self.metadata.data.get(key)
        if isinstance(marks, int) and not isinstance(marks, bool):
            period = self.whole("attention.sliding_window_pattern")
            marks = tuple((index + 1) % period != 0 for index in range(count))
        if not isinstance(marks, tuple) or len(marks) < count or set(marks) - {0, 1}:
            raise self.refuse("attention.sliding_window_pattern", f"true or false for each of {count} layers")
        return ["sliding_attention" if mark else "full_attention" for mark in marks[:count]]

    def _key(self, name: str) -> str:
        return f"{self.architecture}.{name}"
