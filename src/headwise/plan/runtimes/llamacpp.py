"""llama.cpp: cells, allocated at once for the whole context when the model is loaded.

After ggml-org/llama.cpp, ``src/``: ``llama-context.cpp`` (contexts padded to 256), ``llama-kv-cache-iswa.cpp`` at
02c28f53 (sliding layers), ``llama-kv-cache-dsa.cpp`` at 035aa95b (indexer keys), ``llama-memory-recurrent.cpp`` at
0054ee8c and ``llama-hparams.cpp`` at 01b77b57 (states in float32), and checked against the sizes that it prints.

A sequence has its own cells, ``pad(context, 256)``, unless the cache is unified: then all share ``pad(sum, 256)``, and
a common prefix lies there once. Sliding and chunked layers have ``pad(min(cells, window x sequences + ubatch), 256)``,
where ``sequences`` is 1 without a unified cache; with ``swa_full`` as many as the others. Latent attention keeps keys
only. Ranks: llama.cpp deals out layers, not heads, so more than one rank is refused.
"""

from __future__ import annotations

from fractions import Fraction

from headwise.plan.allocation import StateBytes
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
    padded,
    refused,
)
from headwise.plan.states import Chunk, Encoder, Fixed, Plane, State, Window
from headwise.plan.storage import Storage
from headwise.plan.storages import F32, GGML_NAMES

__all__ = ["LlamacppRuntime"]

PAD = 256

# Models with windows or chunks for which llama.cpp has a sliding cache (``swa_type`` in src/models), and those for
# which it hasn't or has it switched off (``Phi SWA is currently disabled``): there every layer is full.
WINDOWED = frozenset(
    "gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text shieldgemma2 cohere2 cohere2_vision gpt_oss "
    "llama4 llama4_text exaone4 exaone_moe olmo3 mimo_v2 mimo_v2_flash step3p5 step3p7 afmoe".split()
)
FULL_ONLY = frozenset(
    "mistral mistral3 ministral ministral3 mixtral phi3 phimoe qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl "
    "qwen2_5_vl_text qwen3 qwen3_moe mimo smollm3 starcoder2 dots1".split()
)


class LlamacppRuntime(BaseRuntime):
    """The cache of llama.cpp.

    Args:
        unified: ``--kv-unified``: one stream of cells for all sequences.
        swa_full: ``--swa-full``: sliding layers get as many cells as the others.
        n_ubatch: ``--ubatch-size``.
        flash_attention: ``--flash-attn``. Without it values lie transposed, and every layer's have the width of the
            widest; and they can't be quantized.

    Raises:
        PlanError: an option is out of range.
    """

    name = "llamacpp"
    default_state = F32

    def __init__(
        self, *, unified: bool = False, swa_full: bool = False, n_ubatch: int = 512, flash_attention: bool = True
    ) -> None:
        self.unified = check_flag(self.name, "unified", unified)
        self.swa_full = check_flag(self.name, "swa_full", swa_full)
        self.n_ubatch = check_whole(self.name, "n_ubatch", n_ubatch)
        self.flash_attention = check_flag(self.name, "flash_attention", flash_attention)
        self._widest = LastAnswer[int]()

    def state_bytes(self, state: State, request: Request, architecture: Architecture) -> StateBytes:
        """Cells times bytes of a cell; without flash attention the values' padding besides.

        Raises:
            PlanError: cross attention, more than one rank, or a cache type that llama.cpp hasn't.
        """
        if request.tp != 1:
            raise PlanError(
                f"llamacpp: expected --tp 1, got {request.tp}; llama.cpp deals out layers over devices, not heads"
            )
        plain = super().state_bytes(state, request, architecture)
        padding = plain.entries * self._value_padding(state, request, architecture)
        if not padding:
            return plain
        return StateBytes(
            plain.total + padding,
            plain.planes,
            f"{plain.equation} + {padding} B values padded",
            plain.entries,
            padding,
        )

    def entries(self, state: State, request: Request, architecture: Architecture) -> tuple[int, str]:
        """Cells of all sequences; for recurrent layers rows, one for each draft token besides."""
        if isinstance(state.extent, Encoder):
            raise refused(self.name, state, "llama.cpp computes cross attention's keys anew from the encoder's output")
        if not request.context:
            return empty(state, "cells")
        if isinstance(state.extent, Fixed):
            rows, how = counted(1 + request.speculative, 0, request.batch, "rows")
            return rows * state.extent.entries, how if state.extent.entries == 1 else f"{how} x {state.extent.entries}"
        cells, streams = self._cells(request)
        if not self.grows(state, request, architecture):
            cells = self._window_cells(state.extent, cells, request)
        return counted(cells, 0, streams, "cells")

    def grows(self, state: State, request: Request, architecture: Architecture) -> bool:
        """Also sliding layers where llama.cpp has no window for the model, or is told to keep everything."""
        if not isinstance(state.extent, Window | Chunk):
            return super().grows(state, request, architecture)
        if self.swa_full or architecture.model_type in FULL_ONLY:
            return True
        if architecture.model_type not in WINDOWED:
            raise refused(
                self.name, state, f"whether llama.cpp has windows for {architecture.model_type} isn't known here"
            )
        return False

    def growth(self, architecture: Architecture, request: Request) -> Fraction:
        """Also the padding of values."""
        own = (state for state in architecture.states if state.owner is None)
        grow = (state for state in own if self.grows(state, request, architecture))
        padding = sum(self._value_padding(state, request, architecture) for state in grow)
        return super().growth(architecture, request) + padding

    def storage_of(self, plane: Plane, state: State, request: Request, architecture: Architecture) -> Storage:
        """Cache types; a type with blocks has to divide a head."""
        if plane.role in STATE_ROLES:
            return F32
        storage = super().storage_of(plane, state, request, architecture)
        check_storage(self.name, storage, GGML_NAMES)
        if plane.dim % storage.block:
            raise PlanError(
                f"llamacpp: expected heads that blocks of {storage.block} divide for {storage.name}, got {plane.name} "
                f"of {plane.dim} in layer {state.layer}; use f16"
            )
        if storage.block > 1 and plane.role == "value" and not self.flash_attention:
            raise PlanError(f"llamacpp: expected flash attention for values in {storage.name}, got none; use f16")
        return storage

    def _cells(self, request: Request) -> tuple[int, int]:
        """Cells of a stream, and how many streams there are."""
        if not self.unified:
            return padded(request.length, PAD), request.batch
        return padded(counted(request.length, request.shared_prefix, request.batch)[0], PAD), 1

    def _window_cells(self, extent: object, cells: int, request: Request) -> int:
        assert isinstance(extent, Window | Chunk)
        sequences = request.batch if self.unified else 1
        return padded(min(cells, extent.size * sequences + self.n_ubatch), PAD)

    def _value_padding(self, state: State, request: Request, architecture: Architecture) -> int:
        """Bytes of a cell by which this layer's values are wider than they need, where they lie transposed."""
        if self.flash_attention:
            return 0
        widest = self._widest.of(architecture, None, lambda: _widest_values(architecture))
        return sum(
            self.storage_of(plane, state, request, architecture).row_bytes(1, widest - plane.elements)
            for plane in state.planes
            if plane.role == "value"
        )


def _widest_values(architecture: Architecture) -> int:
    values = [plane for state in architecture.states for plane in state.planes if plane.role == "value"]
    return max((plane.elements for plane in values), default=0)
