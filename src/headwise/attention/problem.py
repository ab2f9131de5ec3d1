"""The validated meaning of one attention call, which every backend and every statistic reads.

Axes: ``B`` batch, ``L`` query length, ``S`` key length, ``H`` query heads, ``G`` KV heads, ``R = H / G`` group size,
``D`` head dim, ``Dv`` value head dim. Query head ``h`` reads KV head ``h // R``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from . import blocks, masks, validation
from .blocks import Workspace, cut, fold_heads
from .masks import Reach, WindowArgument
from .packing import Bounds, Packing, PackingArgument, check_packing, read_bounds, split_documents
from .precision import full_precision


@dataclass(frozen=True, eq=False)
class Problem:
    """One attention call. Build it with :meth:`of`; the fields are what was checked.

    Attributes:
        query: ``[B, H, L, D]``.
        key: ``[B, G, S, D]``.
        value: ``[B, G, S, Dv]`` or None.
        mask: booleans with four axes, each full or 1; True = may attend.
        bias: floats with four axes, each full or 1, added after the soft-cap.
        reach: what positions allow: causal order, windows, offset and key lengths.
        scale: factor of the scores.
        softcap: bound of the scaled scores, or None.
        sinks: ``[H]`` or None; a logit in the softmax denominator only.
        alibi_slopes: ``[1 or B, H, 1, 1]`` or None; ``-slope * |query position - key position|`` joins the bias.
        packing: where documents start and end among queries and keys, or None. What is said about positions below
            holds within a document: :meth:`documents` first.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    mask: Tensor | None
    bias: Tensor | None
    reach: Reach
    scale: float
    softcap: float | None
    sinks: Tensor | None
    alibi_slopes: Tensor | None
    packing: Packing | None = None
    # Derived tensors, made once. Not functools.cached_property: torch.compile can't trace its lock.
    _kept: dict[str, Tensor | None] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        window: WindowArgument = None,
        offset: int | Tensor | None = None,
        key_lengths: Tensor | Sequence[int] | None = None,
        cu_seqlens: PackingArgument = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
    ) -> Problem:
        """Check the arguments of ``attention`` and settle their defaults.

        ``offset`` defaults to ``S - L`` (the last query stands at the last key), and to ``key_lengths - L`` per
        sequence where key lengths are given. Queries may stand at negative positions; a causal one there sees nothing.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: shapes, devices, bounds or numbers do not fit.
        """
        validation.check_tensors(query, key, value)
        (batch, heads, queries, head_dim), keys, device = query.shape, key.shape[2], query.device
        shape = (batch, heads, queries, keys)
        if cu_seqlens is not None and (offset is not None or key_lengths is not None):
            name = "key_lengths" if offset is None else "offset"
            raise ValueError(f"{name}: expected none with cu_seqlens, whose documents end with their last keys")
        lengths = validation.check_key_lengths(key_lengths, batch, keys, device)
        return cls(
            query=query,
            key=key,
            value=value,
            mask=validation.check_mask(mask, shape, device),
            bias=validation.check_bias(bias, shape, device),
            reach=Reach(
                spans=masks.head_spans(window, causal, heads),
                offset=validation.settle_offset(offset, lengths, shape, device),
                key_lengths=lengths,
            ),
            scale=validation.check_scale(scale, head_dim),
            softcap=validation.check_softcap(softcap),
            sinks=validation.check_sinks(sinks, heads, device),
            alibi_slopes=validation.check_slopes(alibi_slopes, heads, batch, device),
            packing=check_packing(cu_seqlens, shape),
        )

    @property
    def batch_size(self) -> int:
        """``B``."""
        return self.query.shape[0]

    @property
    def num_heads(self) -> int:
        """``H``, the query heads."""
        return self.query.shape[1]

    @property
    def num_kv_heads(self) -> int:
        """``G``."""
        return self.key.shape[1]

    @property
    def query_length(self) -> int:
        """``L``."""
        return self.query.shape[2]

    @property
    def key_length(self) -> int:
        """``S``."""
        return self.key.shape[2]

    @property
    def compute_dtype(self) -> torch.dtype:
        """float32 for half types and float32, float64 for float64."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def positions(self, start: int, stop: int) -> Tensor:
        """Absolute positions ``[B or 1, stop - start]`` of the queries; key ``j`` stands at position ``j``."""
        rows = torch.arange(start, stop, device=self.query.device)[None]
        offset = self.reach.offset
        return rows + (offset if isinstance(offset, int) else offset[:, None])

    def blocks(self, max_bytes: int | None = None) -> Iterator[tuple[int, int]]:
        """Ranges of queries whose score block ``[B, H, rows, S]`` stays under ``max_bytes`` (default 32 MiB).

        A block holds one row at least.
        """
        row_bytes = self.batch_size * self.num_heads * self.key_length * self.compute_dtype.itemsize
        return blocks.block_ranges(self.query_length, row_bytes, max_bytes)

    def key_range(self, start: int, stop: int) -> tuple[int, int]:
        """A range of keys that holds all that queries ``start`` to ``stop`` may see; ``(0, 0)`` where it is empty."""
        return self.reach.range(start, stop, self.key_length)

    def hides(self, start: int, stop: int, keys: tuple[int, int] | None = None) -> bool:
        """Whether a key of the block may be invisible to a query of it; False only where that is certain."""
        low, high = keys or (0, self.key_length)
        packed = self.packing is not None
        return packed or self.mask is not None or self.reach.hides(start, stop, low, high)

    def visible(self, start: int, stop: int, keys: tuple[int, int] | None = None) -> Tensor:
        """Which keys queries ``start`` to ``stop`` may attend, ``[B or 1, H or 1, stop - start, S]``.

        ``keys`` narrows the last axis to a range of keys. Never builds more than this block.
        """
        low, high = keys or (0, self.key_length)
        positions, indices = self.positions(start, stop), torch.arange(low, high, device=self.query.device)
        given = None if self.mask is None else cut(self.mask, start, stop, low, high)
        visible = masks.join(self.reach.within(positions, positions, indices), given)
        if visible is None:
            return torch.ones((1, 1, stop - start, high - low), dtype=torch.bool, device=self.query.device)
        return visible.expand(-1, -1, stop - start, high - low)

    def seeing(self) -> Tensor:
        """Which queries see at least one key, ``[B or 1, H or 1, L]``; needs no block unless a mask is given."""
        if self.packing is not None:
            return torch.cat([document.seeing() for document in self.documents()], -1)
        if self.mask is None:
            return self.reach.seeing(self.positions(0, self.query_length), self.key_length)
        seeing = [self.visible(start, stop).any(-1) for start, stop in self.blocks()]
        return torch.cat(seeing, -1) if seeing else self.visible(0, 0).any(-1)

    def scores(
        self, start: int, stop: int, keys: tuple[int, int] | None = None, workspace: Workspace | None = None
    ) -> Tensor:
        """Scaled, soft-capped and biased scores ``[B, H, stop - start, S]``; ``-inf`` where a key is not visible.

        Accumulates in :attr:`compute_dtype`. ``keys`` narrows the last axis to a range of keys. With a ``workspace``
        they are made in its memory, which allows no gradient.
        """
        low, high = keys or (0, self.key_length)
        visible = self.visible(start, stop, (low, high)) if self.hides(start, stop, keys) else None
        with full_precision(self.query.device):
            scores = self.products(self.clean_query(start, stop, visible), low, high, workspace)
            if workspace is not None:
                scores = scores if self.softcap is None else scores.div_(self.softcap).tanh_().mul_(self.softcap)
                self.add_to(scores, start, stop, (low, high))
                return scores if visible is None else scores.masked_fill_(~visible, -torch.inf)
            scores = scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap
            additive = self.additive(start, stop, (low, high))
            scores = scores if additive is None else scores + additive
        # Selecting, not adding -inf: NaN in a hidden score must not survive.
        return scores if visible is None else scores.masked_fill(~visible, -torch.inf)

    def additive(self, start: int, stop: int, keys: tuple[int, int] | None = None) -> Tensor | None:
        """Bias and ALiBi of a block in :attr:`compute_dtype`, ``[B or 1, H or 1, rows or 1, S or 1]``, or None."""
        low, high = keys or (0, self.key_length)
        bias = None if self.bias is None else cut(self.bias, start, stop, low, high).to(self.compute_dtype)
        if self.alibi_slopes is None:
            return bias
        slanted = self.alibi_slopes.to(self.compute_dtype) * -self.distance(start, stop, (low, high))
        return slanted if bias is None else bias + slanted

    def add_to(self, scores: Tensor, start: int, stop: int, keys: tuple[int, int]) -> None:
        """Add bias and ALiBi in place to the scores of a block, without a tensor of its size for the latter."""
        if self.bias is not None:
            scores.add_(cut(self.bias, start, stop, *keys))
        if self.alibi_slopes is not None:
            slopes = self.alibi_slopes.to(self.compute_dtype)
            scores.addcmul_(slopes, self.distance(start, stop, keys), value=-1)

    def distance(self, start: int, stop: int, keys: tuple[int, int]) -> Tensor:
        """``|query position - key position|`` in :attr:`compute_dtype`, ``[B or 1, 1, stop - start, keys]``."""
        indices = torch.arange(*keys, device=self.query.device)
        return (self.positions(start, stop)[:, None, :, None] - indices).abs().to(self.compute_dtype)

    def clean_query(self, start: int, stop: int, visible: Tensor | None) -> Tensor:
        """Queries ``[B, H, rows, D]`` in :attr:`compute_dtype`, zero where a query sees no key.

        A padded query may hold anything; without this its NaN would reach the gradient of the keys.
        """
        query = self.query[:, :, start:stop].to(self.compute_dtype)
        return query if visible is None else query.masked_fill(~visible.any(-1, keepdim=True), 0.0)

    def products(self, query: Tensor, low: int, high: int, workspace: Workspace | None = None) -> Tensor:
        """Scaled products ``[B, H, rows, high - low]`` of clean queries ``[B, H, rows, D]`` with some keys."""
        folded = fold_heads(query * self.scale, self.num_kv_heads)  # [B, G, R * rows, D]
        key = self.clean_key[:, :, low:high].transpose(-2, -1)  # [B, G, D, keys]
        shape = (*folded.shape[:3], high - low)
        out = None if workspace is None else workspace.take("scores", shape)
        products = torch.matmul(folded, key) if out is None else torch.matmul(folded, key, out=out)
        return products.view(self.batch_size, self.num_heads, query.shape[2], high - low)

    def workspace(self, max_bytes: int | None = None) -> Workspace:
        """Memory for the largest of :meth:`blocks`."""
        rows = max((stop - start for start, stop in self.blocks(max_bytes)), default=0)
        elements = self.batch_size * self.num_heads * rows * self.key_length
        return Workspace(elements, self.compute_dtype, self.query.device)

    @property
    def clean_key(self) -> Tensor:
        """The keys ``[B, G, S, D]`` in :attr:`compute_dtype`, zero where no query of the call may read them."""
        return self._clean("key", self.key)

    @property
    def clean_value(self) -> Tensor:
        """The values ``[B, G, S, Dv]`` in :attr:`compute_dtype`, zero where no query of the call may read them."""
        if self.value is None:
            raise ValueError("value: expected a tensor [batch, KV heads, keys, value_head_dim], got None")
        return self._clean("value", self.value)

    def _clean(self, name: str, tensor: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is None:
            unread = self.unread_keys
            if unread is not None:
                # 0 * NaN is NaN in both directions of a matrix product, so memory that nobody reads is replaced.
                tensor = tensor.masked_fill(unread[..., None], 0.0)
            kept = self._kept[name] = tensor.to(self.compute_dtype)
        return kept

    @property
    def unread_keys(self) -> Tensor | None:
        """Which keys no query may read, ``[B or 1, G or 1, S]``, or None where all are read by some query."""
        if "unread" not in self._kept:
            self._kept["unread"] = self._find_unread()
        return self._kept["unread"]

    def _find_unread(self) -> Tensor | None:
        if self.query_length == 0 or not self.hides(0, self.query_length):
            return None
        read = self._read_by_head()  # [B or 1, H or 1, S]
        if read.shape[1] > 1:
            read = read.unflatten(1, (self.num_kv_heads, -1)).any(2)
        known_full = masks.is_cheap_to_look_at(read) and bool(read.all())
        return None if known_full else ~read

    def _read_by_head(self) -> Tensor:
        if self.mask is not None and self.mask.shape[2] > 1:
            read = torch.zeros((), dtype=torch.bool, device=self.query.device)
            for start, stop in self.blocks():
                read = read | self.visible(start, stop).any(2)
            return read
        # Spans of neighbouring queries leave no gap, so the first and the last position tell what all of them reach.
        indices = torch.arange(self.key_length, device=self.query.device)
        first, last = self.positions(0, 1), self.positions(self.query_length - 1, self.query_length)
        read_once = masks.join(self.reach.within(first, last, indices), self.mask)
        assert read_once is not None  # something hides keys, so one of the two is there
        return read_once[:, :, 0].expand(-1, -1, self.key_length)

    def documents(self) -> list[Problem]:
        """One problem per packed document, in order; the problem itself where nothing is packed."""
        if self.packing is None:
            return [self]
        return split_documents(self)

    def document_bounds(self) -> tuple[Bounds, Bounds]:
        """Where documents start and end among queries and among keys; one document where nothing is packed."""
        if self.packing is None:
            return (0, self.query_length), (0, self.key_length)
        return read_bounds(self.packing, self.query_length, self.key_length)

    def narrowed(self) -> Problem:
        """The same problem without the keys outside :meth:`key_range` of all queries: outputs don't change."""
        queries = self.query_length
        low, high = self.key_range(0, queries)
        if (low, high) == (0, self.key_length):
            return self
        return replace(
            self,
            key=self.key[:, :, low:high],
            value=None if self.value is None else self.value[:, :, low:high],
            mask=None if self.mask is None else cut(self.mask, 0, queries, low, high),
            bias=None if self.bias is None else cut(self.bias, 0, queries, low, high),
            reach=self.reach.shifted(low, high),
        )
