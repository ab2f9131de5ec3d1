"""Blocks of tokens that several caches share, with a count of who holds each.

A block has ``block_size`` slots for the keys and values of all KV heads. Who holds a block may read it; it is written
only by the one holder it has. A block that nobody holds any more is free.

Source: Kwon et al. 2023 (arXiv:2309.06180), sections 4.2 and 4.4.

Axes: ``B`` batch, ``G`` KV heads, ``D`` head dim, ``Dv`` value head dim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from headwise.cache.counts import check_dtype, check_sizes
from headwise.cache.planes import Planes
from headwise.cache.protocol import CacheFullError

__all__ = ["BlockPool"]


class BlockPool:
    """Memory for ``num_blocks`` blocks, allocated once.

    In a deep copy only those hold blocks that were copied along with it (``copy.deepcopy([cache, other])`` copies a
    pool that both share once); alone, all of its blocks are free.

    Args:
        num_blocks: blocks in all.
        block_size: tokens per block.
        num_kv_heads: ``G``.
        head_dim: ``D``.
        value_head_dim: ``Dv``, default ``D``.
        dtype: default PyTorch's default dtype.
        device: default PyTorch's default device.

    Raises:
        TypeError: ``dtype`` is no floating one that attention knows.
        ValueError: a size is no positive integer.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        value_head_dim: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        sizes = {"num_blocks": num_blocks, "block_size": block_size, "num_kv_heads": num_kv_heads}
        check_sizes("BlockPool", sizes | {"head_dim": head_dim, "value_head_dim": value_head_dim})
        check_dtype("BlockPool", dtype)
        # A block takes the place of a sequence: [blocks, G, block_size, width].
        kinds = [(head_dim, dtype), (value_head_dim, dtype)]
        self.planes = Planes.empty((num_blocks, num_kv_heads, block_size), kinds, device)
        self._have_all_free(num_blocks)

    def _have_all_free(self, num_blocks: int) -> None:
        self._holders = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # the lowest number is handed out first

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._holders)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.planes.slots

    @property
    def nbytes(self) -> int:
        """Bytes allocated: ``num_blocks * block_size * G * (D + Dv) * itemsize``."""
        return self.planes.nbytes

    @property
    def nbytes_logical(self) -> int:
        """Bytes of the blocks that someone holds, each counted once however many hold it."""
        return (self.num_blocks - self.num_free) * self.block_nbytes

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block."""
        return self.block_size * self.planes.token_nbytes

    def holders(self, block: int) -> int:
        """How many hold a block.

        Raises:
            ValueError: there is no such block.
        """
        self._check_numbers("holders", (block,))
        return self._holders[block]

    def take(self, count: int, who: str) -> list[int]:
        """Blocks that were free, each held once from now on.

        Raises:
            CacheFullError: there are fewer; none is taken then.
            ValueError: ``count`` is no integer of at least 0.
        """
        if type(count) is not int or count < 0:  # the usual case costs no more than this
            check_sizes("take", {"count": count}, least=0)
        if count > len(self._free):
            raise CacheFullError(
                f"{who}: expected to need at most {self.num_free} blocks (those that are free of {self.num_blocks} in "
                f"the pool), got a need of {count}; roll back or reset a cache of the pool, drop snapshots, or build a "
                "larger BlockPool"
            )
        # One by one: a cache that is collected meanwhile puts its blocks on the same pile.
        taken = [self._free.pop() for _ in range(count)]
        self._add_holders(taken)
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each of some blocks, which someone holds already.

        Raises:
            ValueError: there is no such block, or nobody holds it. Nothing changes.
        """
        blocks = list(blocks)
        self._check_held("hold", dict.fromkeys(blocks, 1))
        self._add_holders(blocks)

    def drop(self, blocks: Iterable[int]) -> None:
        """One holder less for each; without any a block is free. Only who holds a block may do that.

        Raises:
            ValueError: there is no such block, or it has fewer holders than are to go. Nothing changes.
        """
        blocks = list(blocks)
        self._check_held("drop", Counter(blocks))
        for block in blocks:
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free.append(block)

    def adopt(self, blocks: Iterable[int]) -> None:
        """As :meth:`hold`, of blocks that may be free: for a copied table in the pool that was copied with it.

        Raises:
            ValueError: there is no such block. Nothing changes.
        """
        blocks = list(blocks)
        self._check_numbers("adopt", blocks)
        self._add_holders(blocks)
        adopted = set(blocks)
        self._free = [block for block in self._free if block not in adopted]

    def _add_holders(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._holders[block] += 1

    def _check_held(self, who: str, wanted: Mapping[int, int]) -> None:
        """Raise where a block has fewer holders than are wanted."""
        self._check_numbers(who, wanted)
        for block, least in wanted.items():
            if self._holders[block] < least:
                raise ValueError(
                    f"{who}: expected blocks with {least} or more holders, got block {block} with "
                    f"{self._holders[block]}; take gives blocks that are free"
                )

    def _check_numbers(self, who: str, blocks: Iterable[int]) -> None:
        """Raise where there is no such block."""
        for block in blocks:
            if type(block) is not int or not 0 <= block < len(self._holders):
                raise ValueError(f"{who}: expected blocks from 0 to {self.num_blocks - 1}, got {block!r}")

    def __copy__(self) -> BlockPool:
        raise TypeError("BlockPool: expected copy.deepcopy, got copy.copy; two pools can't deal out the same memory")

    def __getstate__(self) -> dict[str, Planes]:
        # Those who hold blocks here don't hold them in a copy, unless they are copied with it: then they say so.
        return {"planes": self.planes}

    def __setstate__(self, state: dict[str, Planes]) -> None:
        self.planes = state["planes"]
        self._have_all_free(self.planes.tensors[0].shape[0])

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks.

        Raises:
            ValueError: there is no such block.
        """
        self._check_numbers("copy", (*sources, *targets))
        from_blocks, to_blocks = (torch.tensor(blocks, device=self.planes.device) for blocks in (sources, targets))
        for tensor in self.planes.tensors:
            tensor.index_copy_(0, to_blocks, tensor.index_select(0, from_blocks))

    def write(self, tokens: Sequence[Tensor], rows: Tensor, source: Tensor, blocks: Tensor, slots: Tensor) -> None:
        """Token ``source[i]`` of sequence ``rows[i]`` goes to slot ``slots[i]`` of ``blocks[i]``; indices ``[N]``."""
        device = self.planes.device
        rows, source, blocks, slots = (index.to(device) for index in (rows, source, blocks, slots))
        for tensor, new in zip(self.planes.tensors, tokens, strict=True):
            tensor.transpose(1, 2)[blocks, slots] = new.transpose(1, 2)[rows, source]

    def write_stretch(self, tokens: Sequence[Tensor], row: int, source: int, block: int, slot: int, count: int) -> None:
        """The same for ``count`` neighbours that go to neighbouring slots of one block, without tensors of indices."""
        for tensor, new in zip(self.planes.tensors, tokens, strict=True):
            tensor[block, :, slot : slot + count] = new[row, :, source : source + count]

    def gather(self, table: Tensor) -> tuple[Tensor, ...]:
        """The blocks of every sequence side by side: for each tensor ``[B, G, blocks * block_size, width]``, a copy.

        Args:
            table: blocks of each sequence ``[B, blocks]``, on the host.
        """
        (B, blocks), G = table.shape, self.planes.tensors[0].shape[1]
        # Row b * G + g of a flat pool is head g of block b: one gather gives heads before blocks, without a transpose.
        flat = (table[:, None, :] * G + torch.arange(G)[:, None]).flatten().to(self.planes.device)
        return tuple(
            tensor.flatten(0, 1).index_select(0, flat).view(B, G, blocks * self.block_size, tensor.shape[3])
            for tensor in self.planes.tensors
        )

    def __repr__(self) -> str:
        keys, values = self.planes.tensors
        return (
            f"BlockPool(num_blocks={self.num_blocks}, block_size={self.block_size}, num_kv_heads={keys.shape[1]}, "
            f"head_dim={keys.shape[3]}, value_head_dim={values.shape[3]}, dtype={keys.dtype}, "
            f"device={str(keys.device)!r}, num_free={self.num_free})"
        )
