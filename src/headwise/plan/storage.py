"""How numbers of a cache are stored: bytes of a vector, exactly.

A head's vector of ``dim`` elements takes whole blocks, and some formats put a scale beside each vector.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwise.plan.errors import PlanError

__all__ = ["Storage"]


@dataclass(frozen=True)
class Storage:
    """One way to store elements.

    Attributes:
        name: how the command line calls it.
        block: elements that share one block.
        block_bytes: bytes of a block, what it holds besides the elements included.
        vector_bytes: further bytes for each vector of a head, such as a scale per token and head.
        source: where the format is laid down.
    """

    name: str
    block: int
    block_bytes: int
    vector_bytes: int = 0
    source: str = ""

    def row_bytes(self, heads: int, dim: int) -> int:
        """Bytes of one token's vectors of ``heads`` heads, ``dim`` elements each.

        Blocks may run over the heads of a token, as ggml lays them out, but not over its end.

        Raises:
            PlanError: the elements of a token don't fill whole blocks.
        """
        elements = heads * dim
        if elements % self.block:
            raise PlanError(
                f"{self.name}: expected a number of elements per token that blocks of {self.block} divide, got {heads} "
                f"heads of {dim}; use another --kv-dtype"
            )
        return elements // self.block * self.block_bytes + heads * self.vector_bytes

    def equation(self, heads: int, dim: int) -> str:
        """The same with its numbers: ``8 x 128 x 2 B``."""
        size = f"{self.block_bytes} B" if self.block == 1 else f"{self.block_bytes} B / {self.block}"
        scale = f" + {heads} x {self.vector_bytes} B" if self.vector_bytes else ""
        return f"{heads} x {dim} x {size}{scale}"
