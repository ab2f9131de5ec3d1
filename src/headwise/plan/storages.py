"""The table of storages: every way to keep a number that the planner knows, with where its bytes are laid down.

Scales: ``fp8`` is vLLM's and SGLang's, whose scales are one per layer and lie with the weights; ``fp8_scaled`` and
``int8`` keep a float32 beside each vector (one token, one head). ``int4`` keeps two codes a byte and the same
float32. ``nvfp4`` has a scale of one byte for 16 elements.
"""

from __future__ import annotations

from headwise.plan.errors import PlanError, shown
from headwise.plan.storage import Storage

__all__ = ["BF16", "F16", "F32", "FP8", "GGML_NAMES", "STORAGES", "storage_named"]

_VLLM = "vLLM, vllm/v1/kv_cache_interface.py"
_GGML = "llama.cpp, ggml/src/ggml-common.h"

F32 = Storage("f32", 1, 4, source="IEEE 754 binary32")
F16 = Storage("f16", 1, 2, source="IEEE 754 binary16")
BF16 = Storage("bf16", 1, 2, source="the upper half of binary32")
FP8 = Storage("fp8", 1, 1, source="OCP OFP8, E4M3 or E5M2; no scale in the cache")

_TABLE = (
    F32,
    F16,
    BF16,
    FP8,
    Storage("fp8_scaled", 1, 1, 4, source=_VLLM),
    Storage("int8", 1, 1, 4, source=_VLLM),
    Storage("int4", 2, 1, 4, source=_VLLM),
    Storage("nvfp4", 16, 9, source=_VLLM),
    Storage("q8_0", 32, 34, source=_GGML),
    Storage("q5_1", 32, 24, source=_GGML),
    Storage("q5_0", 32, 22, source=_GGML),
    Storage("q4_1", 32, 20, source=_GGML),
    Storage("q4_0", 32, 18, source=_GGML),
    Storage("iq4_nl", 32, 18, source=_GGML),
)

STORAGES = {storage.name: storage for storage in _TABLE}

# What llama.cpp takes as a type of its cache (common/arg.cpp, kv_cache_types).
GGML_NAMES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")

# How PyTorch, vLLM and Hugging Face call the same.
_ALSO = {
    "float32": "f32",
    "fp32": "f32",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_per_token_head": "fp8_scaled",
    "int8_per_token_head": "int8",
    "int4_per_token_head": "int4",
}


def storage_named(name: str, option: str = "--kv-dtype") -> Storage:
    """The storage of that name; ``float16`` and the like are understood as well.

    Args:
        name: one of ``STORAGES``, or another name of it.
        option: whose value it is, for messages.

    Raises:
        PlanError: there is none.
    """
    found = STORAGES.get(_ALSO.get(name, name)) if isinstance(name, str) else None
    if found is None:
        raise PlanError(f"{option}: expected one of {', '.join(STORAGES)}, got {shown(name)}")
    return found
