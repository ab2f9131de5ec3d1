"""From the metadata of a GGUF file to the fields of a ``config.json``, one row for each ``general.architecture``.

Keys are those that llama.cpp reads (``src/llama-arch.cpp``), and so are the defaults of the format: as many KV heads
as query heads, heads of ``E / H``. Which projections have a bias is read off the names of the tensors. What llama.cpp
knows by heart and the file doesn't say (Gemma's every sixth layer, Llama 4's chunks) is left to the class defaults of
the same model in transformers, which agree, or is said in the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwise.plan.config import Config
from headwise.plan.errors import PlanError
from headwise.plan.gguf import Header
from headwise.plan.gguf_hybrids import HYBRIDS
from headwise.plan.gguf_keys import Keys, Metadata

__all__ = ["ARCHITECTURES", "config_of"]

Fields = dict[str, Any]


def config_of(header: Header, overrides: Mapping[str, Any] | None = None) -> Config:
    """The config of the model in a GGUF file.

    Raises:
        PlanError: the architecture isn't known here, or a key is missing or contradicts another.
    """
    metadata = Metadata(header.metadata, where=str(header.path))
    architecture = metadata.text("general.architecture")
    keys = Keys(metadata, architecture, header.first_block)
    row = ARCHITECTURES.get(architecture)
    if row is None:
        raise PlanError(
            f"{header.path}: expected general.architecture to be one of {', '.join(sorted(ARCHITECTURES))}, got "
            f"{architecture[:60]!r}; give the config.json of the model instead"
        )
    return Config(row(keys), overrides=overrides)


def _dense(model_type: str, *, every_head: bool = False, square: bool = False) -> Callable[[Keys], Fields]:
    """Layers that are all grouped attention, without a window.

    Args:
        model_type: what transformers calls the family.
        every_head: whether each query head has its own keys there, whatever a config says.
        square: whether heads have the width ``E / H`` there, whatever a config says.
    """

    def row(keys: Keys) -> Fields:
        fields = {**_grouped(keys), "model_type": model_type, "sliding_window": None}
        heads, width = fields["num_attention_heads"], fields["hidden_size"]
        if every_head and fields["num_key_value_heads"] != heads:
            raise keys.refuse("attention.head_count_kv", f"as attention.head_count = {heads} for this architecture")
        if square and fields["head_dim"] * heads != width:
            raise keys.refuse("attention.key_length", f"embedding_length / attention.head_count = {width} / {heads}")
        return fields

    return row


def _windowed(model_type: str, *, square: bool = False) -> Callable[[Keys], Fields]:
    """The same with windows, in the layers that the file marks, or else those that the class of the model says."""
    plain = _dense(model_type, square=square)

    def row(keys: Keys) -> Fields:
        types = {"layer_types": keys.sliding_types()} if keys.has("attention.sliding_window_pattern") else {}
        return {**plain(keys), "sliding_window": keys.whole("attention.sliding_window"), **types}

    return row


def _grouped(keys: Keys) -> Fields:
    """What grouped attention needs; every bias under all the names that families have for it."""
    heads, kv_heads = keys.same("attention.head_count"), keys.kv_heads()
    key, value = keys.head_dim(heads), keys.maybe_whole("attention.value_length")
    if value not in (None, key):
        raise keys.refuse("attention.value_length", f"as attention.key_length = {key} for this architecture")
    bias = "attn_q.bias" in keys.tensors or "attn_qkv.bias" in keys.tensors
    return {
        **keys.sizes(),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": key,
        "use_sliding_window": False,
        **dict.fromkeys(("attention_bias", "qkv_bias", "use_qkv_bias", "use_bias", "enable_bias"), bias),
    }


def _falcon(keys: Keys) -> Fields:
    kv_heads = keys.kv_heads()
    return {
        **_dense("falcon", square=True)(keys),
        "num_kv_heads": kv_heads,
        "multi_query": kv_heads == 1,
        "new_decoder_architecture": kv_heads > 1,
    }


def _starcoder(keys: Keys) -> Fields:
    if keys.kv_heads() != 1:
        raise keys.refuse("attention.head_count_kv", "1 for this architecture")
    return {**_dense("gpt_bigcode", square=True)(keys), "multi_query": True}


def _olmo2(keys: Keys) -> Fields:
    """OLMo 3 is the same with windows."""
    return (_windowed("olmo3") if keys.has("attention.sliding_window") else _dense("olmo2"))(keys)


def _phi3(keys: Keys) -> Fields:
    return (_windowed("phi3") if keys.maybe_whole("attention.sliding_window", least=0) else _dense("phi3"))(keys)


def _llama4(keys: Keys) -> Fields:
    """llama.cpp sets the chunk itself; every fourth layer sees everything."""
    chunk = {"attention_chunk_size": 8192, "no_rope_layer_interval": 4, "no_rope_layers": []}
    return {**_grouped(keys), "model_type": "llama4_text", **chunk}


def _gemma3n(keys: Keys) -> Fields:
    shared = {"num_kv_shared_layers": keys.whole("attention.shared_kv_layers", least=0)}
    return {**_windowed("gemma3n_text")(keys), "layer_types": keys.sliding_types(), **shared}


def _gemma4(keys: Keys) -> Fields:
    """Local and global layers with heads of their own; a global one without a value matrix takes the keys for it."""
    types = keys.sliding_types()
    counts = keys.each("attention.head_count_kv", len(types))
    heads = {kind: {n for n, each in zip(counts, types, strict=True) if each == kind} for kind in set(types)}
    if any(len(found) > 1 for found in heads.values()):
        raise keys.refuse("attention.head_count_kv", "one number for sliding layers and one for full ones")
    if "full_attention" not in heads:
        raise keys.refuse("attention.sliding_window_pattern", "at least one layer that doesn't slide")
    local = next(iter(heads.get("sliding_attention", heads["full_attention"])))
    return {
        **keys.sizes(),
        "model_type": "gemma4_text",
        "layer_types": types,
        "sliding_window": keys.whole("attention.sliding_window"),
        "num_attention_heads": keys.same("attention.head_count"),
        "num_key_value_heads": local,
        "num_global_key_value_heads": next(iter(heads["full_attention"])),
        "head_dim": keys.whole("attention.key_length_swa"),
        "global_head_dim": keys.whole("attention.key_length"),
        "attention_k_eq_v": len(set(counts)) > 1,
        "num_kv_shared_layers": keys.maybe_whole("attention.shared_kv_layers", least=0) or 0,
        "attention_bias": False,
    }


def _latent(model_type: str, *, indexer: bool = False) -> Callable[[Keys], Fields]:
    """Latent attention. Files from before llama.cpp had it hold full heads, and llama.cpp caches those."""

    def row(keys: Keys) -> Fields:
        if not keys.has("attention.key_length_mla"):
            raise keys.refuse(
                "attention.key_length_mla", "the width of a head", "this file is from before latent attention was kept"
            )
        rope = keys.whole("rope.dimension_count")
        score = keys.whole("attention.key_length_mla", least=rope)
        fields = {
            **keys.sizes(),
            "model_type": model_type,
            "num_attention_heads": keys.same("attention.head_count"),
            "q_lora_rank": keys.maybe_whole("attention.q_lora_rank", least=0) or None,
            "kv_lora_rank": keys.whole("attention.kv_lora_rank"),
            "qk_rope_head_dim": rope,
            "qk_nope_head_dim": score - rope,
            "v_head_dim": keys.whole("attention.value_length_mla"),
            "attention_bias": "attn_kv_a_mqa.bias" in keys.tensors,
        }
        if not indexer:
            return fields
        return {
            **fields,
            "index_n_heads": keys.whole("attention.indexer.head_count"),
            "index_head_dim": keys.whole("attention.indexer.key_length"),
            "index_topk": keys.whole("attention.indexer.top_k"),
        }

    return row


def _openelm(keys: Keys) -> Fields:
    """Every layer has its own number of heads."""
    layers = keys.layers()
    heads, kv_heads = (keys.each(name, layers) for name in ("attention.head_count", "attention.head_count_kv"))
    return {
        "model_type": "openelm",
        "num_transformer_layers": layers,
        "model_dim": keys.whole("embedding_length"),
        "max_context_length": keys.maybe_whole("context_length"),
        "head_dim": keys.whole("attention.key_length"),
        "num_query_heads": list(heads),
        "num_kv_heads": list(kv_heads),
    }


ARCHITECTURES: dict[str, Callable[[Keys], Fields]] = {
    "llama": _dense("llama"),
    "llama4": _llama4,
    "mistral3": _dense("ministral3"),
    "falcon": _falcon,
    "starcoder": _starcoder,
    "starcoder2": _dense("starcoder2"),
    "gpt2": _dense("gpt2", every_head=True, square=True),
    "gptj": _dense("gptj", every_head=True, square=True),
    "gptneox": _dense("gpt_neox", every_head=True, square=True),
    "bloom": _dense("bloom", every_head=True, square=True),
    "stablelm": _dense("stablelm", square=True),
    "qwen2": _dense("qwen2"),
    "qwen2moe": _dense("qwen2_moe"),
    "qwen2vl": _dense("qwen2_vl_text", square=True),
    "qwen3": _dense("qwen3"),
    "qwen3moe": _dense("qwen3_moe"),
    "qwen3vl": _dense("qwen3_vl_text"),
    "qwen3vlmoe": _dense("qwen3_vl_moe_text"),
    "phi2": _dense("phi", square=True),
    "phi3": _phi3,
    "phimoe": _dense("phimoe"),
    "gemma": _dense("gemma"),
    "gemma2": _windowed("gemma2"),
    "gemma3": _windowed("gemma3_text"),
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "command-r": _dense("cohere"),
    "cohere2": _windowed("cohere2", square=True),
    "olmo": _dense("olmo"),
    "olmo2": _olmo2,
    "olmoe": _dense("olmoe"),
    "openelm": _openelm,
    "deepseek2": _latent("deepseek_v2"),
    "deepseek32": _latent("deepseek_v32", indexer=True),
    "glm-dsa": _latent("glm_moe_dsa", indexer=True),
    "glm4": _dense("glm4"),
    "glm4moe": _dense("glm4_moe"),
    "granite": _dense("granite"),
    "granitemoe": _dense("granitemoe"),
    "nemotron": _dense("nemotron"),
    "minimax-m2": _dense("minimax_m2"),
    "gpt-oss": _windowed("gpt_oss"),
    "exaone4": _windowed("exaone4"),
    "smollm3": _dense("smollm3"),
    "seed_oss": _dense("seed_oss"),
    "arcee": _dense("arcee"),
    "apertus": _dense("apertus"),
    "ernie4_5": _dense("ernie4_5"),
    "ernie4_5-moe": _dense("ernie4_5_moe"),
    "hunyuan-dense": _dense("hunyuan_v1_dense"),
    "hunyuan-moe": _dense("hunyuan_v1_moe"),
    "bert": _dense("bert", every_head=True, square=True),
    **HYBRIDS,
}
