"""transformers 5.24.0: its dynamic and its static cache, as ``cache_utils.py`` and the modelling files fill them.

- Full layers hold every token (dynamic), or ``max_cache_len`` places from the first token on (static).
- Sliding layers, and chunked ones, which are the same to the cache, keep ``W - 1`` tokens between steps, but as a view
  of the tensor that the last step worked on: ``W`` tokens after a step of one, all of a prompt right after it. A window
  of 1 keeps everything, since the slice ``[-0:]`` is the whole. The static cache has ``min(W, max_cache_len)`` places.
- Latent attention keeps the latent and the rotary key, not the keys and values of all heads.
- A short convolution keeps ``k`` columns, one more than it will read. Recurrent states are float32, except lightning
  attention's, which have the model's type.
- Falcon's new decoder broadcasts its KV heads to all query heads before it keeps them. GPT-Neo and MiniMax apply their
  windows in the mask alone and keep every token.
- Cross attention holds the encoder's tokens once.

Counters and the like (8 bytes a layer) are not counted.
"""

from __future__ import annotations

from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture
from headwise.plan.request import Request
from headwise.plan.runtimes.base import (
    BaseRuntime,
    check_whole,
    counted,
    empty,
    encoder_tokens,
    one_storage,
)
from headwise.plan.states import Chunk, Encoder, Fixed, Plane, State, Window
from headwise.plan.storage import Storage
from headwise.plan.storages import F32

__all__ = ["TransformersRuntime"]

# A cache holds what the model computes, in the model's type.
STORAGES = ("bf16", "f16", "f32")
CACHES = ("dynamic", "static")
COUNTS = ("storage", "tensors")
# Their windows are in the mask only.
WINDOWS_KEPT_WHOLE = frozenset("gpt_neo minimax minimax_m1 minimax_text_01".split())
# Their recurrent states have the model's type.
STATES_OF_MODEL_TYPE = frozenset("minimax minimax_m1 minimax_text_01".split())
# They take no static cache; neither does Falcon with ALiBi, whose bias has the length of the text.
DYNAMIC_ONLY = frozenset("minimax minimax_m1 minimax_text_01".split())
ALIBI = "alibi"
NEW_DECODER = "new decoder"
# Latent attention that their plans of tensor parallelism leave whole on every rank.
QUERIES_WHOLE = frozenset("axk1 deepseek_v3 kimi_k2 kimi_k25 kimi_vl mistral4 sarvam_mla youtu".split())
# Decoders with layers of cross attention in the same cache as the others.
CROSS_IN_ONE_CACHE = frozenset("mllama mllama_text_model".split())


class TransformersRuntime(BaseRuntime):
    """The cache of transformers.

    Args:
        cache: ``dynamic``, which is what generation uses by itself, or ``static``.
        count: ``storage``, all memory that the cache holds on to, or ``tensors``, the bytes of its tensors
            (``nbytes``), which is less where a sliding layer keeps a view.
        last_step: tokens that the last forward pass added: 1 while decoding, the prompt's length right after prefill.
        max_cache_len: places of the static cache; None: as many as the request's tokens.

    Raises:
        PlanError: an option is none of these.
    """

    name = "transformers"
    default_state = F32

    def __init__(
        self,
        *,
        cache: str = "dynamic",
        count: str = "storage",
        last_step: int = 1,
        max_cache_len: int | None = None,
    ) -> None:
        self.cache = _one_of("cache", cache, CACHES)
        self.count = _one_of("count", count, COUNTS)
        self.last_step = check_whole(self.name, "last_step", last_step, most=1 << 40)
        self.max_cache_len = max_cache_len
        if max_cache_len is not None:
            check_whole(self.name, "max_cache_len", max_cache_len, most=1 << 40)
            if cache != "static":
                raise PlanError("transformers: expected max_cache_len only with cache=static, got cache=dynamic")

    def entries(self, state: State, request: Request, architecture: Architecture) -> tuple[int, str]:
        """Entries held for all sequences: nothing is shared between them."""
        if not request.context:
            return empty(state, "tokens")
        extent = state.extent
        if isinstance(extent, Encoder):
            return self._cross(state, request, architecture)
        if isinstance(extent, Fixed):
            if state.kind == "convolution":
                return counted(extent.entries + 1, 0, request.batch, "columns")
            return counted(extent.entries, 0, request.batch, "states")
        window = extent.size if isinstance(extent, Window | Chunk) else None
        if architecture.model_type in WINDOWS_KEPT_WHOLE:
            window = None
        if self.cache == "static":
            return counted(self._static(architecture, request, window), 0, request.batch, "places")
        return counted(self._dynamic(request, window), 0, request.batch)

    def grows(self, state: State, request: Request, architecture: Architecture) -> bool:
        """Nothing grows in a static cache of a given length."""
        if self.max_cache_len is not None:
            return False
        if isinstance(state.extent, Encoder):  # its tokens lie in places of a static cache that is as long as the text
            return self.cache == "static" and architecture.model_type in CROSS_IN_ONE_CACHE
        windowed = isinstance(state.extent, Window | Chunk) and (
            state.extent.size == 1 or architecture.model_type in WINDOWS_KEPT_WHOLE
        )
        return windowed or super().grows(state, request, architecture)

    def deals_queries(self, architecture: Architecture) -> bool:
        """Except for latent attention that stays whole."""
        return architecture.model_type not in QUERIES_WHOLE

    def _cross(self, state: State, request: Request, architecture: Architecture) -> tuple[int, str]:
        """Tokens of the encoder; a decoder that crosses by itself puts them into places of its one static cache."""
        tokens = encoder_tokens(state, request, architecture)
        if self.cache == "dynamic" or architecture.model_type not in CROSS_IN_ONE_CACHE:
            return counted(tokens, 0, request.batch, "encoder tokens")
        places = self._static(architecture, request, None)
        if tokens > places:
            raise PlanError(
                f"transformers: expected max_cache_len of at least the {tokens} tokens of the encoder, got {places}"
            )
        return counted(places, 0, request.batch, "places")

    def _dynamic(self, request: Request, window: int | None) -> int:
        """Tokens of one sequence in a layer that grows up to ``window``."""
        length = request.length
        if window is None or window == 1:
            return length
        if self.count == "tensors":
            return min(length, window - 1)
        step = min(length, max(self.last_step, 1 + request.speculative))
        return min(length - step, window - 1) + step

    def _static(self, architecture: Architecture, request: Request, window: int | None) -> int:
        """Places of one sequence, all there from the first token on."""
        if architecture.model_type in DYNAMIC_ONLY or ALIBI in architecture.variant:
            raise PlanError(f"transformers: expected cache=dynamic for {architecture.model_type}, got cache=static")
        places = self.max_cache_len or request.length
        if request.length > places:
            raise PlanError(
                f"transformers: expected max_cache_len of at least the {request.length} tokens asked for, got {places}"
            )
        return places if window is None else min(places, window)

    def plane_sizes(self, state: State, request: Request, architecture: Architecture) -> tuple[int, ...]:
        """Bytes of each plane of one entry: whole vectors, for the heads that reach the cache."""
        return tuple(
            self.storage_of(plane, state, request, architecture).row_bytes(
                self._heads(plane, state, request, architecture), plane.dim
            )
            for plane in state.planes
        )

    def entry_equation(self, state: State, request: Request, architecture: Architecture) -> str:
        """The same with its numbers."""
        terms = [
            self.storage_of(plane, state, request, architecture).equation(
                self._heads(plane, state, request, architecture), plane.dim
            )
            for plane in state.planes
        ]
        return f"({' + '.join(terms)})"

    def _heads(self, plane: Plane, state: State, request: Request, architecture: Architecture) -> int:
        """Heads of one rank; only keys and values are dealt, and only evenly: there are no copies of a head."""
        heads = plane.heads
        if NEW_DECODER in architecture.variant and plane.role in ("key", "value"):
            heads = next(each for layer in architecture.layers for each in layer.attentions).heads
        if request.tp == 1 or state.sharding == "replicated" or plane.role not in ("key", "value"):
            return heads
        if heads % request.tp:
            raise PlanError(
                f"transformers: expected --tp to divide the {heads} heads of {plane.name} in layer {state.layer}, "
                f"got {request.tp}; it keeps no copies of heads"
            )
        return heads // request.tp

    def storage_of(self, plane: Plane, state: State, request: Request, architecture: Architecture) -> Storage:
        """The model's own type, except for recurrent states, whatever the config says of them."""
        storage = one_storage(self.name, plane, request, STORAGES)
        if plane.role == "recurrent" and architecture.model_type not in STATES_OF_MODEL_TYPE:
            return request.state_storage or F32
        if plane.role in ("recurrent", "convolution"):
            return request.state_storage or storage
        return storage


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise PlanError(f"transformers: expected {name} to be one of {', '.join(known)}, got {str(value)[:60]!r}")
    return value
