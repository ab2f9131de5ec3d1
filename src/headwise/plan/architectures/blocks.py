"""Decoders whose layers have different numbers of heads: lists, blocks of a search, or a second setting for windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headwise.plan.architectures.dense import max_context
from headwise.plan.architectures.fields import (
    count_layers,
    divided,
    extents_of,
    layer_overrides,
    layer_types,
    read_heads,
    said,
    window_provenance,
)
from headwise.plan.architectures.parts import Biases, Heads, grouped_layer, grouped_projections
from headwise.plan.config import Config
from headwise.plan.layers import Architecture, Layer, Projection
from headwise.plan.states import Extent, Grows, Window

__all__ = ["deci", "hunyuan", "mimo_v2", "nemotron_nas", "openelm", "step3", "step3p5"]


def mimo_v2(config: Config) -> Architecture:
    """MiMo-V2: sliding layers have their own number of KV heads; keys are wider than values."""
    count = count_layers(config)
    types = _mimo_types(config, count)
    full = read_heads(config, value_dim=("v_head_dim",))
    sliding = _mimo_sliding(config, full)
    heads = [sliding if kind == "sliding_attention" else full for kind in types]
    known: dict[str, Extent] = {"full_attention": Grows(), "sliding_attention": _mimo_window(config)}
    extents = [known[kind] for kind in types]
    return _mixed(config, heads, extents, Biases.of(config.flag("attention_bias"), False))


def _mimo_types(config: Config, count: int) -> Sequence[str]:
    """``layer_types``, or 0 and 1 in ``hybrid_layer_pattern``, or the class's pattern."""
    types = layer_types(config, count)
    if types is None and config.has("hybrid_layer_pattern"):
        pattern = config.wholes("hybrid_layer_pattern", count)
        types = tuple("sliding_attention" if each else "full_attention" for each in pattern)
        config.derived("layer_types", None, "hybrid_layer_pattern")
    if types is None:
        full = {0, *range(5, count, 6)}
        types = tuple("full_attention" if index in full else "sliding_attention" for index in range(count))
        config.derived("layer_types", None, "the first layer and every sixth are full")
    if set(types) - {"full_attention", "sliding_attention"}:
        raise config.refuse("layer_types", "full_attention or sliding_attention for each layer")
    return types


def _mimo_window(config: Config) -> Window:
    """``sliding_window_size`` counts the tokens before the query's own, ``sliding_window`` includes it."""
    before = config.maybe_whole("sliding_window_size")
    if before is None:
        return Window(config.whole("sliding_window"))
    config.derived("sliding_window", before + 1, "sliding_window_size + 1")
    return Window(before + 1)


def _mimo_sliding(config: Config, full: Heads) -> Heads:
    """The widths of sliding layers: those with ``swa`` in their names, else twice the KV heads."""
    H = config.maybe_whole("swa_num_attention_heads") or full.heads
    G = config.maybe_whole("swa_num_key_value_heads")
    provenance = {**full.provenance, **window_provenance(config)}
    if G is None:
        G = 2 * full.kv_heads
        provenance["num_key_value_heads"] = "derived: 2 x num_key_value_heads in sliding layers"
    else:
        provenance["num_key_value_heads"] = config.provenance["swa_num_key_value_heads"]
    if H % G:
        raise config.refuse("swa_num_key_value_heads", f"a divisor of the {H} query heads of sliding layers")
    D = config.maybe_whole("swa_head_dim") or full.head_dim
    Dv = config.maybe_whole("swa_v_head_dim") or full.value_dim
    return Heads(full.width, H, G, D, Dv, provenance)


def step3p5(config: Config) -> Architecture:
    """Step 3.5 and 3.7: sliding layers may have more query heads; a gate for each head."""
    count = count_layers(config)
    types = layer_types(config, count) or ("full_attention",) * count
    full = read_heads(config, kv_heads=("num_attention_groups", "num_key_value_heads"))
    extents = extents_of(config, types)
    sliding = _step_sliding(config, full)
    heads = [sliding if kind == "sliding_attention" else full for kind in types]
    for index, own in layer_overrides(config, count, "num_attention_heads").items():
        H = own.whole("num_attention_heads")
        if H % heads[index].kv_heads:
            raise own.refuse("num_attention_heads", f"a multiple of {heads[index].kv_heads} KV heads")
        heads[index] = replace(heads[index], heads=H)
    return _mixed(config, heads, extents, Biases.of(config.flag("attention_bias")), gate=True)


def _step_sliding(config: Config, full: Heads) -> Heads:
    H, G, D = config.maybe_whole("num_sliding_attention_heads"), full.kv_heads, full.head_dim
    if H is None and isinstance(config.data.get("attention_other_setting"), Mapping):
        other = config.nested("attention_other_setting")
        H = other.maybe_whole("num_attention_heads")
        G = other.maybe_whole("num_attention_groups", "num_key_value_heads") or G
        D = other.maybe_whole("head_dim") or D
    H = H or full.heads
    if H % G:
        raise config.refuse("num_sliding_attention_heads", f"a multiple of the {G} KV heads of sliding layers")
    return Heads(full.width, H, G, D, D, {**full.provenance, **window_provenance(config)})


def step3(config: Config) -> Architecture:
    """Step 3: the queries of all heads come from one narrow vector; few KV heads, wide ones."""
    count = count_layers(config)
    heads = read_heads(config, kv_heads=("num_attention_groups", "num_key_value_heads"))
    narrow = config.whole("share_q_dim")
    plain = grouped_projections(heads, Biases())
    down, up = (
        Projection("query down", heads.width, narrow),
        Projection("query up", narrow, heads.heads * heads.head_dim),
    )
    layers = tuple(grouped_layer(index, heads, Grows(), (down, up, *plain[1:])) for index in range(count))
    return _architecture(config, heads.width, layers, "max_position_embedding", "max_seq_len")


def openelm(config: Config) -> Architecture:
    """OpenELM: lists of query and KV heads, one entry for each layer."""
    count = count_layers(config, "num_transformer_layers", "num_hidden_layers")
    E, D = config.whole("model_dim", "hidden_size"), config.whole("head_dim")
    queries = config.wholes("num_query_heads", count, least=1)
    keys = config.wholes("num_kv_heads", count, least=1)
    provenance = said(config, "num_query_heads", "num_kv_heads", "head_dim")
    for H, G in zip(queries, keys, strict=True):
        if H % G:
            raise config.refuse("num_kv_heads", "in each layer a divisor of its num_query_heads", f"{G} and {H} differ")
    heads = [Heads(E, H, G, D, D, provenance) for H, G in zip(queries, keys, strict=True)]
    layers = tuple(
        grouped_layer(index, each, Grows(), grouped_projections(each, Biases(), packed=True))
        for index, each in enumerate(heads)
    )
    return _architecture(config, E, layers, "max_context_length")


def nemotron_nas(config: Config) -> Architecture:
    """Nemotron-NAS: each block has its own number of KV heads, a linear map in place of attention, or nothing."""
    count = count_layers(config)
    E, H = config.whole("hidden_size"), config.whole("num_attention_heads")
    D = config.maybe_whole("head_dim") or divided(config, E, H, "hidden_size", "num_attention_heads")
    bias = config.maybe_flag("attention_bias") or False
    blocks = config.data.get("block_configs")
    if not isinstance(blocks, (list, tuple)) or len(blocks) != count:
        raise config.refuse("block_configs", f"{count} blocks, one for each layer")
    return _architecture(
        config,
        E,
        tuple(_nas_layer(config, index, block, (E, H, D), Biases.of(bias)) for index, block in enumerate(blocks)),
        "max_position_embeddings",
    )


def _nas_layer(config: Config, index: int, block: object, widths: tuple[int, int, int], biases: Biases) -> Layer:
    place = f"block_configs[{index}].attention"
    inner = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(inner, Mapping):
        raise config.refuse("block_configs", "an attention in each block", f"block {index} has none")
    attention = Config(inner, where=config.place(place))
    if attention.maybe_flag("no_op") or attention.maybe_flag("replace_with_linear"):
        return Layer(index, "linear" if attention.maybe_flag("replace_with_linear") else "no attention")
    E, H, D = widths
    each = attention.whole("n_heads_in_group")
    if H % each:
        raise attention.refuse("n_heads_in_group", f"a divisor of num_attention_heads = {H}")
    provenance = {"num_key_value_heads": f"derived: num_attention_heads / {place}.n_heads_in_group"}
    heads = Heads(E, H, H // each, D, D, provenance)
    window = attention.maybe_whole("window_length")
    extent: Extent = Grows() if window is None else Window(window)
    return grouped_layer(index, heads, extent, grouped_projections(heads, biases))


def hunyuan(config: Config) -> Architecture:
    """Hunyuan-Large: with ``use_cla`` one layer in ``cla_share_factor`` keeps keys and values, the others read them."""
    count = count_layers(config)
    heads = read_heads(config, head_dim=("attention_head_dim", "head_dim"))
    factor = config.whole("cla_share_factor") if config.flag("use_cla") else 1
    projections = grouped_projections(heads, Biases.of(config.flag("attention_bias")))
    reading = tuple(each for each in projections if each.name not in ("key", "value"))
    layers = tuple(
        grouped_layer(index, heads, Grows(), reading, owner=index - index % factor)
        if index % factor
        else grouped_layer(index, heads, Grows(), projections)
        for index in range(count)
    )
    return _architecture(config, heads.width, layers, "max_position_embeddings")


def deci(config: Config) -> Architecture:
    """DeciLM: a list of KV heads, one entry for each layer."""
    if config.has("block_configs"):
        return nemotron_nas(config)
    count = count_layers(config)
    E, H = config.whole("hidden_size"), config.whole("num_attention_heads")
    D = config.maybe_whole("head_dim") or divided(config, E, H, "hidden_size", "num_attention_heads")
    keys = config.wholes("num_key_value_heads_per_layer", count, least=1)
    for G in keys:
        if H % G:
            raise config.refuse("num_key_value_heads_per_layer", f"divisors of num_attention_heads = {H}")
    provenance = {"num_key_value_heads": config.provenance["num_key_value_heads_per_layer"]}
    heads = [Heads(E, H, G, D, D, provenance) for G in keys]
    return _mixed(config, heads, [Grows()] * count, Biases())


def _mixed(
    config: Config, heads: Sequence[Heads], extents: Sequence[Extent], biases: Biases, *, gate: bool = False
) -> Architecture:
    """Layers of grouped attention, each with its own widths."""
    layers = tuple(
        grouped_layer(index, each, extent, grouped_projections(each, biases, gate=each.heads if gate else 0))
        for index, (each, extent) in enumerate(zip(heads, extents, strict=True))
    )
    return _architecture(config, heads[0].width, layers, "max_position_embeddings")


def _architecture(config: Config, width: int, layers: tuple[Layer, ...], *context: str) -> Architecture:
    longest = max_context(config, *context)
    return Architecture(config.model_type, width, layers, longest, provenance=dict(config.provenance))
