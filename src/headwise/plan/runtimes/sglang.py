"""SGLang: pools of token slots, here just large enough for the sequences.

After sgl-project/sglang, read in excerpts in 2026: ``mem_cache/memory_pool.py`` (bytes of a slot, the page of slots for
dummy tokens, recurrent states), ``mem_cache/swa_memory_pool.py`` and the pool configurator (the pool of sliding layers
as a part of the full one), ``configs/model_config.py`` (which models have one) and ``configs/mamba_utils.py`` (dtypes
of recurrent states).

- A sequence takes whole pages of ``page_size`` slots; whole pages of a shared prefix lie once in the radix tree. Each
  pool has one page more, for dummy tokens.
- Sliding layers of the models in ``HYBRID`` have a pool of ``int(full x ratio)`` slots, in whole pages, so the full
  pool is enlarged where that wouldn't hold the windows; those of all other models hold every token.
- An indexer's keys take a byte an element and 4 bytes for every 128, and ask for pages of 64.
- Recurrent states: three slots a sequence with the radix tree (the prefix found, its copy, the one handed back), one
  without, and one for dummy tokens; with drafts, each sequence has a state for every token of a step besides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from headwise.plan.errors import PlanError, shown
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.runtimes.base import (
    STATE_ROLES,
    BaseRuntime,
    LastAnswer,
    check_flag,
    check_storage,
    check_whole,
    empty,
    one_storage,
    padded,
    pages,
    refused,
)
from headwise.plan.states import Chunk, Encoder, Fixed, Plane, State, Window
from headwise.plan.storage import Storage
from headwise.plan.storages import BF16, F32

__all__ = ["SglangRuntime"]

STORAGES = ("bf16", "f16", "f32", "fp8", "nvfp4")
STATE_STORAGES = ("bf16", "f16", "f32")
HYBRID = frozenset("llama4 llama4_text gpt_oss mimo_v2 mimo_v2_flash step3p5 step3p7 gemma4 gemma4_text".split())
INDEXER_BLOCK = 128
INDEXER_PAGE = 64
SLOTS_WITH_RADIX = 3


@dataclass(frozen=True)
class _Model:
    """What decides the pools: the windows that have one of their own, and whether there is an indexer."""

    windows: tuple[int, ...]
    indexed: bool


class SglangRuntime(BaseRuntime):
    """The pools of SGLang.

    Args:
        page_size: ``--page-size``; None: 1, with an indexer 64.
        radix_cache: False for ``--disable-radix-cache``: no prefix is shared.
        hybrid_swa: False for ``--disable-hybrid-swa-memory``: sliding layers hold every token.
        swa_full_tokens_ratio: slots of the sliding pool for each one of the full pool, such as ``"0.8"``.

    Raises:
        PlanError: an option is out of range.
    """

    name = "sglang"

    def __init__(
        self,
        *,
        page_size: int | None = None,
        radix_cache: bool = True,
        hybrid_swa: bool = True,
        swa_full_tokens_ratio: str | float = "0.8",
    ) -> None:
        self.page_size = None if page_size is None else check_whole(self.name, "page_size", page_size, most=1 << 20)
        self.radix_cache = check_flag(self.name, "radix_cache", radix_cache)
        self.hybrid_swa = check_flag(self.name, "hybrid_swa", hybrid_swa)
        self.swa_full_tokens_ratio = str(swa_full_tokens_ratio)
        self.ratio = _ratio(swa_full_tokens_ratio)
        self._models = LastAnswer[_Model]()

    def entries(self, state: State, request: Request, architecture: Architecture) -> tuple[int, str]:
        """Slots of the state's pool.

        Raises:
            PlanError: a state of cross attention, or a page size that the model can't have.
        """
        extent = state.extent
        if isinstance(extent, Encoder):
            raise refused(self.name, state, "SGLang puts an encoder's tokens into the pool of all layers")
        if isinstance(extent, Fixed):
            return self._recurrent(state, extent, request)
        if not request.context:
            return empty(state, "slots")
        page = self._page(architecture)
        full = self._full_slots(architecture, request, page)
        if self.grows(state, request, architecture):
            return full + page, f"({full} + {page} dummy) slots"
        part = _part(full, self.ratio, page)
        return part + page, f"({part} of {full} + {page} dummy) slots"

    def grows(self, state: State, request: Request, architecture: Architecture) -> bool:
        """Also windows and chunks of models that have no pool of their own for them."""
        if isinstance(state.extent, Window | Chunk):
            return not self._model(architecture).windows
        return super().grows(state, request, architecture)

    def growth(self, architecture: Architecture, request: Request) -> Fraction:
        """Also the sliding pool, which grows with the full one: a part of a slot for each slot there."""
        pooled = (
            self.entry_bytes(state, request, architecture)
            for state in architecture.states
            if isinstance(state.extent, Window | Chunk) and not self.grows(state, request, architecture)
        )
        return super().growth(architecture, request) + self.ratio * sum(pooled)

    def storage_of(self, plane: Plane, state: State, request: Request, architecture: Architecture) -> Storage:
        """SGLang's cache dtypes; recurrent states are in float32 unless the config says otherwise."""
        if plane.role == "recurrent" and not (request.state_storage or state.dtype):
            return F32
        if plane.role in STATE_ROLES:
            storage = super().storage_of(plane, state, request, architecture)
            return check_storage(self.name, storage, STATE_STORAGES, "--state-dtype")
        if plane.role == "indexer":
            return Storage("fp8 indexer", 1, 1, 4 * pages(plane.dim, INDEXER_BLOCK))
        return one_storage(self.name, plane, request, STORAGES)

    def plane_sizes(self, state: State, request: Request, architecture: Architecture) -> tuple[int, ...]:
        """Also latents in fp8 beside an indexer: a float32 for each 128 elements, the rope key in two bytes."""
        if not self._scaled_latent(state, request, architecture):
            return super().plane_sizes(state, request, architecture)
        latent, rope = (plane.dim for plane in state.planes)
        return latent + 4 * pages(latent, INDEXER_BLOCK), BF16.block_bytes * rope

    def entry_equation(self, state: State, request: Request, architecture: Architecture) -> str:
        """Also that layout."""
        if not self._scaled_latent(state, request, architecture):
            return super().entry_equation(state, request, architecture)
        latent, rope = self.plane_sizes(state, request, architecture)
        return f"({latent} B + {rope} B)"

    def _scaled_latent(self, state: State, request: Request, architecture: Architecture) -> bool:
        fp8 = state.kind == "latent" and request.storage.name == "fp8" and len(state.planes) == 2
        return fp8 and self._model(architecture).indexed

    def _recurrent(self, state: State, extent: Fixed, request: Request) -> tuple[int, str]:
        if any(plane.role not in STATE_ROLES for plane in state.planes):
            raise refused(self.name, state, "a fixed number of keys and values is none of SGLang's pools")
        if not request.context:
            return empty(state, "slots")
        each = SLOTS_WITH_RADIX if self.radix_cache else 1
        slots, how = each * request.batch + 1, f"({each} x {request.batch} + 1 dummy) slots"
        entries, how = slots * extent.entries, how if extent.entries == 1 else f"{how} x {extent.entries}"
        if not request.speculative:
            return entries, how
        # A convolution's windows of the tokens of a step overlap, and are kept as one; recurrent states are not.
        tokens = request.speculative + 1
        convolution = any(plane.role == "convolution" for plane in state.planes)
        drafts = tokens + extent.entries - 1 if convolution else tokens * extent.entries
        return entries + (request.batch + 1) * drafts, f"({how} + {request.batch + 1} x {drafts} of drafts)"

    def _full_slots(self, architecture: Architecture, request: Request, page: int) -> int:
        """Slots of the full pool: for all tokens, and so many that its part for sliding layers holds the windows."""
        shared = request.shared_prefix // page if self.radix_cache and request.batch > 1 else 0
        each = pages(request.length, page)
        slots = (shared + request.batch * (each - shared)) * page
        for size in self._model(architecture).windows:
            # A window need not start where a page does.
            window = min(each, pages(size + request.speculative, page) + 1) * page
            slots = max(
                slots, padded(-(-request.batch * window * self.ratio.denominator // self.ratio.numerator), page)
            )
        return slots

    def _page(self, architecture: Architecture) -> int:
        if not self._model(architecture).indexed:
            return 1 if self.page_size is None else self.page_size
        if self.page_size not in (None, INDEXER_PAGE):
            raise PlanError(
                f"sglang: expected page_size {INDEXER_PAGE} for {architecture.model_type}, which has an indexer, got "
                f"{self.page_size}"
            )
        return INDEXER_PAGE

    def _model(self, architecture: Architecture) -> _Model:
        return self._models.of(architecture, None, lambda: self._read(architecture))

    def _read(self, architecture: Architecture) -> _Model:
        extents = [state.extent for state in architecture.states if state.owner is None]
        sizes = {extent.size for extent in extents if isinstance(extent, Window | Chunk)}
        pooled = self.hybrid_swa and architecture.model_type in HYBRID
        indexed = any(state.kind == "indexer" for state in architecture.states)
        return _Model(tuple(sorted(sizes)) if pooled else (), indexed)


def _part(slots: int, ratio: Fraction, page: int) -> int:
    """Slots of the sliding pool beside ``slots`` full ones, in whole pages."""
    return slots * ratio.numerator // ratio.denominator // page * page


def _ratio(value: object) -> Fraction:
    """The ratio as a fraction of whole numbers, so that no rounding enters the bytes."""
    text = repr(value) if isinstance(value, float) else value
    # Fraction would multiply out any exponent.
    if isinstance(text, str) and len(text) <= 20 and re.fullmatch(r"0?\.[0-9]*[1-9][0-9]*|1(\.0*)?", text):
        return Fraction(text)
    raise PlanError(f"sglang: expected swa_full_tokens_ratio above 0 and at most 1, got {shown(value)}")
