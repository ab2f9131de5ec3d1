"""Decoders whose number of KV heads follows from a flag rather than from a number of its own."""

from __future__ import annotations

from headwise.plan.architectures.dense import Dense, dense_architecture
from headwise.plan.architectures.fields import count_layers, read_heads
from headwise.plan.architectures.parts import Biases
from headwise.plan.config import Config
from headwise.plan.layers import Architecture
from headwise.plan.states import Grows

__all__ = ["chatglm", "dbrx", "falcon", "gpt_bigcode", "mpt"]

NEW_DECODER = "new decoder"
ALIBI = "alibi"


def falcon(config: Config) -> Architecture:
    """Falcon: one KV head with ``multi_query``, a number of them in the new decoder architecture, else all."""
    # The first releases call their architecture by these names and their fields as Bloom does.
    new_decoder = config.model_type == "RefinedWeb" or config.flag("new_decoder_architecture")
    multi_query = config.flag("multi_query")
    heads_names = ("num_attention_heads", "n_head")
    if new_decoder:
        kv_heads: tuple[str, ...] | int | None = ("num_kv_heads", "n_head_kv")
    else:
        kv_heads = 1 if multi_query else None
    heads = read_heads(config, width=("hidden_size", "n_embed"), heads=heads_names, kv_heads=kv_heads, head_dim=())
    if not new_decoder and multi_query:
        config.derived("num_key_value_heads", 1, "multi_query")
    family = Dense(packed=True)
    count = count_layers(config, "num_hidden_layers", "n_layer")
    biases = Biases.of(config.flag("bias"))
    extents = (Grows(),) * count
    # Both matter to one runtime only: how it lays its cache out, and whether it takes a static one.
    said = {NEW_DECODER: new_decoder, ALIBI: config.flag("alibi")}
    variant = ", ".join(name for name, holds in said.items() if holds)
    return dense_architecture(config, heads, extents, biases, family=family, variant=variant)


def gpt_bigcode(config: Config) -> Architecture:
    """StarCoder: one KV head with ``multi_query``, else all."""
    multi_query = config.flag("multi_query")
    heads = read_heads(
        config,
        width=("n_embd", "hidden_size"),
        heads=("n_head", "num_attention_heads"),
        kv_heads=1 if multi_query else None,
        head_dim=(),
    )
    config.derived("num_key_value_heads", heads.kv_heads, "multi_query" if multi_query else "as n_head")
    family = Dense(packed=True, context=("n_positions", "max_position_embeddings"))
    extents = (Grows(),) * count_layers(config, "n_layer", "num_hidden_layers")
    return dense_architecture(config, heads, extents, Biases.of(True), family=family)


def mpt(config: Config) -> Architecture:
    """MPT: ``attn_config`` says which kind of attention it is, and may give KV heads."""
    inner = config.nested("attn_config") if config.has("attn_config") else None
    kind = (inner.maybe_text("attn_type") if inner else None) or "multihead_attention"
    if kind == "multiquery_attention":
        kv_heads: int | None = 1
    elif inner is not None and (kind == "grouped_query_attention" or inner.has("kv_n_heads")):
        kv_heads = inner.whole("kv_n_heads")
    else:
        kv_heads = None
    # The class reads no_bias only where it was saved; without it the projections have none.
    return _of_mosaic(config, kv_heads, Biases.of(False))


def dbrx(config: Config) -> Architecture:
    """DBRX: the number of KV heads lies in ``attn_config``."""
    kv_heads = config.nested("attn_config").whole("kv_n_heads")
    config.provenance["num_key_value_heads"] = "config attn_config.kv_n_heads"
    return _of_mosaic(config, kv_heads, Biases())


def _of_mosaic(config: Config, kv_heads: int | None, biases: Biases) -> Architecture:
    """What MPT and DBRX have in common: their names of fields, and one packed matrix."""
    heads = read_heads(
        config,
        width=("d_model", "hidden_size"),
        heads=("n_heads", "num_attention_heads"),
        kv_heads=kv_heads,
        head_dim=(),
    )
    family = Dense(packed=True, context=("max_seq_len", "max_position_embeddings"))
    extents = (Grows(),) * count_layers(config, "n_layers", "num_hidden_layers")
    return dense_architecture(config, heads, extents, biases, family=family)


def chatglm(config: Config) -> Architecture:
    """ChatGLM 2 and 3 and the first GLM-4: ``multi_query_group_num`` counts if ``multi_query_attention`` says so."""
    grouped = config.flag("multi_query_attention")
    heads = read_heads(
        config,
        kv_heads=("multi_query_group_num",) if grouped else None,
        head_dim=("kv_channels",),
    )
    inner = config.flag("add_bias_linear") or config.flag("add_qkv_bias")
    family = Dense(packed=True, context=("seq_length",))
    extents = (Grows(),) * count_layers(config, "num_layers", "num_hidden_layers")
    biases = Biases.of(inner, config.flag("add_bias_linear"))
    return dense_architecture(config, heads, extents, biases, family=family)
