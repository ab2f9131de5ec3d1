"""vLLM: blocks out of one pool, so many as vLLM itself reckons for a sequence of that length.

After vllm-project/vllm at 001cabc1: ``vllm/v1/kv_cache_interface.py`` (bytes of a block, blocks of a sequence),
``vllm/v1/core/kv_cache_utils.py`` (groups, blocks of one size), ``vllm/platforms/interface.py`` (blocks next to
recurrent layers), ``vllm/model_executor/layers/mamba/mamba_utils.py`` (states). ``int4``, and values of another width
than keys in sliding layers, are of later commits.

- With the hybrid manager, sliding layers hold ``ceil(min(W - 1 + batched, length) / block) + 1`` blocks and chunked
  ones ``ceil(min(C + batched, length) / block)``, where ``batched`` is ``--max-num-batched-tokens``: the most while a
  prompt is read. Without it, or for chunked models unless told otherwise, they hold as many as full layers.
- Next to recurrent layers a block of attention is enlarged until its page holds a state, whose page is padded to that.
- Groups of layers share the pool; places that a group can't fill are told apart (``extras``).
- A shared prefix saves whole blocks of full attention, none next to recurrent layers (no prefix caching there).
- vLLM fills the memory that it is given and keeps one empty block; this is what the sequences hold of it.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from headwise.plan.allocation import Extra, StateBytes
from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.runtimes.base import (
    STATE_ROLES,
    BaseRuntime,
    LastAnswer,
    check_flag,
    check_storage,
    check_whole,
    counted,
    empty,
    encoder_tokens,
    one_storage,
    pages,
    refused,
)
from headwise.plan.runtimes.vllm_layers import Layout, Unit, aligned_block, sequence_blocks
from headwise.plan.states import Chunk, Encoder, Fixed, Grows, Plane, State, Window
from headwise.plan.storage import Storage

__all__ = ["VllmRuntime"]

STORAGES = ("bf16", "f16", "f32", "fp8", "fp8_scaled", "int8", "int4", "nvfp4")
STATE_STORAGES = ("bf16", "f16", "f32")
LATENT_STORAGES = ("bf16", "f16", "f32", "fp8")

# One byte an element and a float32 for every 128 of them, whatever the dtype of the keys.
INDEXER_BLOCK = 128
KERNEL_ALIGNMENT = 16
FLASHMLA_FP8 = 656


class VllmRuntime(BaseRuntime):
    """The cache of vLLM.

    Args:
        block_size: ``--block-size``; None: 16, for latent attention 64.
        max_num_batched_tokens: the same of vLLM.
        hybrid: whether the hybrid KV cache manager runs; None: as vLLM does by itself, which is yes unless the model
            has chunked attention.
        flashmla_fp8: whether fp8 latents have FlashMLA's 656 bytes a token; None: as vLLM does by itself, where there
            is an indexer.

    Raises:
        PlanError: an option is out of range.
    """

    name = "vllm"

    def __init__(
        self,
        *,
        block_size: int | None = None,
        max_num_batched_tokens: int = 8192,
        hybrid: bool | None = None,
        flashmla_fp8: bool | None = None,
    ) -> None:
        self.block_size = None if block_size is None else check_whole(self.name, "block_size", block_size, most=1 << 20)
        self.max_num_batched_tokens = check_whole(self.name, "max_num_batched_tokens", max_num_batched_tokens)
        self.hybrid = None if hybrid is None else check_flag(self.name, "hybrid", hybrid)
        self.flashmla_fp8 = None if flashmla_fp8 is None else check_flag(self.name, "flashmla_fp8", flashmla_fp8)
        self._as_full, self._laid_out = LastAnswer[bool](), LastAnswer[Layout]()
        self._indexed = LastAnswer[bool]()

    def state_bytes(self, state: State, request: Request, architecture: Architecture) -> StateBytes:
        """Blocks of all sequences times the bytes of a block.

        Raises:
            PlanError: vLLM hasn't that storage, or its blocks can't be made one size.
        """
        layout = self._layout(architecture, request)
        unit = layout.of_state[state]
        count, how = self._blocks(unit, layout, request, architecture)
        if unit.kind == "recurrent":
            return self._recurrent(state, unit, count, how, request, architecture)
        sizes = self.plane_sizes(state, request, architecture)
        entries = count * unit.block
        planes = tuple((plane.name, entries * size) for plane, size in zip(state.planes, sizes, strict=True))
        equation = f"{how} x {unit.block} tokens x {self.entry_equation(state, request, architecture)}"
        return StateBytes(entries * sum(sizes), planes, equation, entries)

    def extras(self, architecture: Architecture, request: Request) -> tuple[Extra, ...]:
        """Places in groups that no layer fills: the pool gives their blocks out all the same."""
        layout = self._layout(architecture, request)
        extras = []
        for unit, vacant in layout.empty_places:
            count, how = self._blocks(unit, layout, request, architecture)
            places = "1 place" if vacant == 1 else f"{vacant} places"
            equation = f"{places} x {how} x {unit.page} B"
            extras.append(Extra(f"empty places beside {unit.label} layers", vacant * count * unit.page, equation))
        return tuple(extras)

    def grows(self, state: State, request: Request, architecture: Architecture) -> bool:
        """Also windows and chunks where they are held as full attention."""
        if isinstance(state.extent, Window | Chunk):
            return self._kind(state, architecture) == "full"
        return isinstance(state.extent, Grows)

    def growth(self, architecture: Architecture, request: Request) -> Fraction:
        """Also empty places beside full layers: every further block is given out for them too."""
        places = self._layout(architecture, request).empty_places
        beside = sum(Fraction(count * unit.page, unit.block) for unit, count in places if unit.kind == "full")
        return super().growth(architecture, request) + beside

    def storage_of(self, plane: Plane, state: State, request: Request, architecture: Architecture) -> Storage:
        """vLLM's cache dtypes; latents have fewer, and an indexer's keys their own."""
        if plane.role == "indexer":
            return Storage("fp8 indexer", 1, 1, 4 * pages(plane.dim, INDEXER_BLOCK))
        if plane.role in STATE_ROLES:
            storage = super().storage_of(plane, state, request, architecture)
            return check_storage(self.name, storage, STATE_STORAGES, "--state-dtype")
        return one_storage(self.name, plane, request, LATENT_STORAGES if plane.role == "latent" else STORAGES)

    def plane_sizes(self, state: State, request: Request, architecture: Architecture) -> tuple[int, ...]:
        """Also FlashMLA's layout: latents in fp8 with a float32 for each 128, the rope key in two bytes."""
        if not self._flashmla(state, request, architecture):
            return super().plane_sizes(state, request, architecture)
        if tuple(plane.dim for plane in state.planes) != (512, 64):
            raise refused(self.name, state, "FlashMLA's fp8 layout is for latents of 512 and rope keys of 64 elements")
        return 528, 128

    def entry_equation(self, state: State, request: Request, architecture: Architecture) -> str:
        """Also FlashMLA's layout."""
        if self._flashmla(state, request, architecture):
            return f"{FLASHMLA_FP8} B"
        return super().entry_equation(state, request, architecture)

    def _flashmla(self, state: State, request: Request, architecture: Architecture) -> bool:
        if request.storage.name != "fp8" or state.kind != "latent":
            return False
        if self.flashmla_fp8 is not None:
            return self.flashmla_fp8
        return self._indexed.of(
            architecture, None, lambda: any(other.kind == "indexer" for other in architecture.states)
        )

    def _kind(self, state: State, architecture: Architecture) -> str:
        extent = state.extent
        if isinstance(extent, Encoder):
            return "cross"
        if not isinstance(extent, Window | Chunk) or self._as_full.of(
            architecture, None, lambda: self._windows_as_full(architecture)
        ):
            return "full"
        return "window" if isinstance(extent, Window) else "chunk"

    def _windows_as_full(self, architecture: Architecture) -> bool:
        """Without the hybrid manager one table of blocks serves all layers, if there is a full one among them."""
        own = [state.extent for state in architecture.states if state.owner is None]
        chunked = any(isinstance(extent, Chunk) for extent in own)
        hybrid = not chunked if self.hybrid is None else self.hybrid
        return not hybrid and any(isinstance(extent, Grows) for extent in own)

    def _layout(self, architecture: Architecture, request: Request) -> Layout:
        key = request.storage, request.value_storage, request.state_storage, request.tp, request.speculative
        return self._laid_out.of(architecture, key, lambda: self._lay_out(architecture, request))

    def _lay_out(self, architecture: Architecture, request: Request) -> Layout:
        """All layers with a cache, their blocks of the sizes that vLLM gives them."""
        own = [state for state in architecture.states if state.owner is None]
        recurrent = self._recurrent_units(own, request, architecture)
        tokens = [state for state in own if not isinstance(state.extent, Fixed)]
        block = self._block(architecture)
        if recurrent and tokens:
            if self.hybrid is False:
                raise PlanError(
                    f"vllm: expected the hybrid manager for {architecture.model_type}, which has recurrent layers "
                    "beside attention, got hybrid=false"
                )
            one = max(self.entry_bytes(state, request, architecture) for state in tokens)
            block = aligned_block(max(unit.page for unit in recurrent), one, block, KERNEL_ALIGNMENT)
            recurrent = [replace(unit, page=block * one) for unit in recurrent]
        return Layout([*(self._attention_unit(state, block, request, architecture) for state in tokens), *recurrent])

    def _attention_unit(self, state: State, block: int, request: Request, architecture: Architecture) -> Unit:
        kind = self._kind(state, architecture)
        size = state.extent.size if kind in ("window", "chunk") and isinstance(state.extent, Window | Chunk) else 0
        page = block * self.entry_bytes(state, request, architecture)
        return Unit((state,), kind, size, block, page, page)

    def _recurrent_units(self, own: list[State], request: Request, architecture: Architecture) -> list[Unit]:
        layers: dict[int, list[State]] = {}
        for state in own:
            if isinstance(state.extent, Fixed):
                if any(plane.role not in STATE_ROLES for plane in state.planes):
                    raise refused(self.name, state, "a fixed number of keys and values is none of vLLM's caches")
                layers.setdefault(state.layer, []).append(state)
        units = []
        for states in layers.values():
            page = sum(self._slot_bytes(state, request, architecture) for state in states)
            units.append(Unit(tuple(states), "recurrent", 0, 0, page, page))
        return units

    def _slot_bytes(self, state: State, request: Request, architecture: Architecture) -> int:
        """Bytes of one state in a recurrent page."""
        return _rows(state, request) * self.entry_bytes(state, request, architecture)

    def _block(self, architecture: Architecture) -> int:
        if self.block_size is not None:
            return self.block_size
        return 64 if any(state.kind == "latent" for state in architecture.states) else 16

    def _blocks(self, unit: Unit, layout: Layout, request: Request, architecture: Architecture) -> tuple[int, str]:
        """Blocks of one layer for all sequences, and how that number comes about."""
        if not request.context:
            return empty(unit.states[0], "blocks")
        drafts, encoder = request.speculative, lambda state: encoder_tokens(state, request, architecture)
        each = sequence_blocks(unit, request.length, self.max_num_batched_tokens, drafts, encoder)
        shared = 0
        if unit.kind == "full" and not layout.recurrent:
            shared = request.shared_prefix // layout.common_block * layout.common_block // unit.block
        return counted(each, shared, request.batch, "blocks")

    def _recurrent(
        self, state: State, unit: Unit, count: int, how: str, request: Request, architecture: Architecture
    ) -> StateBytes:
        rows = _rows(state, request)
        sizes = self.plane_sizes(state, request, architecture)
        planes = tuple((plane.name, count * rows * size) for plane, size in zip(state.planes, sizes, strict=True))
        # The end of the page is told with the layer's last state.
        padding = count * (unit.page - unit.content) if state == unit.states[-1] else 0
        equation = f"{how} x {rows} x {self.entry_equation(state, request, architecture)}"
        if padding:
            equation += f" + {padding} B to the end of the pages"
        return StateBytes(count * rows * sum(sizes) + padding, planes, equation, count * rows, padding)


def _rows(state: State, request: Request) -> int:
    """Entries of a recurrent state in its page: a column for each draft token joins those of a convolution."""
    assert isinstance(state.extent, Fixed)
    drafts = request.speculative if any(plane.role == "convolution" for plane in state.planes) else 0
    return state.extent.entries + drafts
