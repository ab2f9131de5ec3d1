"""Multi-head latent attention: one latent and one rotary key per token for all heads, with or without an indexer.

The latent is what is kept; keys and values of all heads are computed from it, or its matrix is absorbed into query and
output. It is the same for all heads, so tensor parallelism replicates it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headwise.plan.architectures.dense import Dense, max_context
from headwise.plan.architectures.fields import count_layers, layer_types, said
from headwise.plan.config import Config
from headwise.plan.layers import Architecture, Attention, Layer, Projection
from headwise.plan.states import Extent, Grows, Plane, State, Window

__all__ = ["Indexer", "Latent", "deepseek_v2", "latent_architecture", "latent_layer", "read_latent", "sparse_latent"]


@dataclass(frozen=True)
class Indexer:
    """Small heads that choose which tokens the large ones see; one key per token for all of them."""

    heads: int
    dim: int


@dataclass(frozen=True)
class Latent:
    """The widths of latent attention.

    Attributes:
        width: ``E``.
        heads: ``H``.
        query_rank: elements of the query's latent; None: queries have one matrix.
        rank: elements of the latent of keys and values.
        plain_dim: elements of a head's key that come from the latent.
        rotary_dim: elements of the rotary key, shared by all heads.
        value_dim: ``Dv``.
        bias: whether the projections from and to the model's width add a bias.
        provenance: where they came from.
    """

    width: int
    heads: int
    query_rank: int | None
    rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    bias: bool
    provenance: dict[str, str] = field(default_factory=dict, compare=False)


def read_latent(config: Config) -> Latent:
    """The widths that ``config`` gives."""
    E, H = config.whole("hidden_size"), config.whole("num_attention_heads")
    value_dim = config.maybe_whole("v_head_dim")
    widths = Latent(
        E,
        H,
        config.maybe_whole("q_lora_rank"),
        config.whole("kv_lora_rank"),
        config.whole("qk_nope_head_dim", least=0),
        config.whole("qk_rope_head_dim"),
        E // H if value_dim is None else value_dim,
        config.flag("attention_bias"),
    )
    widths.provenance.update(said(config, "kv_lora_rank", "qk_rope_head_dim"))
    return widths


def latent_layer(index: int, widths: Latent, indexer: Indexer | None = None, *, topk: int | None = None) -> Layer:
    """One layer, with its latent and perhaps the keys of an indexer; ``topk``: how many tokens it sees at most."""
    planes = (Plane("latent", 1, widths.rank, "latent"), Plane("rope key", 1, widths.rotary_dim, "latent"))
    # Chosen tokens are as many as a window's; which ones doesn't matter to the work.
    seen: Extent = Grows() if topk is None else Window(topk)
    states = [State(index, "latent", planes, Grows(), sharding="replicated", provenance=dict(widths.provenance))]
    if indexer:
        keys = (Plane("indexer key", 1, indexer.dim, "indexer"),)
        states.append(State(index, "indexer", keys, Grows(), sharding="replicated", provenance=dict(widths.provenance)))
    score_dim = widths.plain_dim + widths.rotary_dim
    attention = Attention(
        "latent",
        widths.heads,
        widths.heads,
        score_dim,
        widths.value_dim,
        seen,
        True,
        _projections(widths),
        absorbed=(widths.rank + widths.rotary_dim, widths.rank),
    )
    chooser = (_chooser(widths, indexer),) if indexer else ()
    return Layer(index, "latent attention", tuple(states), (attention, *chooser))


def _chooser(widths: Latent, indexer: Indexer) -> Attention:
    """The indexer scores all tokens, and has no values."""
    projections = _indexer_projections(widths, indexer)
    return Attention("indexer", indexer.heads, 1, indexer.dim, 0, Grows(), True, projections)


def _projections(widths: Latent) -> tuple[Projection, ...]:
    queries = widths.heads * (widths.plain_dim + widths.rotary_dim)
    if widths.query_rank is None:
        query: tuple[Projection, ...] = (Projection("query", widths.width, queries),)
    else:
        query = (
            Projection("query down", widths.width, widths.query_rank, widths.bias),
            Projection("query up", widths.query_rank, queries),
        )
    return (
        *query,
        Projection("key value down", widths.width, widths.rank + widths.rotary_dim, widths.bias),
        Projection("key value up", widths.rank, widths.heads * (widths.plain_dim + widths.value_dim)),
        Projection("output", widths.heads * widths.value_dim, widths.width, widths.bias),
    )


def _indexer_projections(widths: Latent, indexer: Indexer) -> tuple[Projection, ...]:
    inputs = widths.width if widths.query_rank is None else widths.query_rank
    return (
        Projection("indexer query", inputs, indexer.heads * indexer.dim),
        Projection("indexer key", widths.width, indexer.dim),
        Projection("indexer weights", widths.width, indexer.heads),
    )


def latent_architecture(config: Config, layers: tuple[Layer, ...] | None = None) -> Architecture:
    """DeepSeek V2 and V3 and their kin: every layer is latent attention."""
    if layers is None:
        widths = read_latent(config)
        layers = tuple(latent_layer(index, widths) for index in range(_count(config)))
    context = max_context(config, "max_position_embeddings", "model_max_length")
    width = config.whole("hidden_size")
    return Architecture(config.model_type, width, layers, context, provenance=dict(config.provenance))


def deepseek_v2(config: Config) -> Architecture:
    """DeepSeek V2; the smallest of its kin say ``use_mla: false`` and then attend as Llama does."""
    if config.maybe_flag("use_mla") is False:
        return Dense(head_dim=(), bias="attention_bias")(config)
    return latent_architecture(config)


def _count(config: Config) -> int:
    """Layers with attention; LongCat has two in each of its layers."""
    if config.model_type.startswith("longcat") and (config.has("num_layers") or not config.has("num_hidden_layers")):
        return 2 * count_layers(config, "num_layers")
    return count_layers(config)


def sparse_latent(config: Config) -> Architecture:
    """DeepSeek V3.2 and GLM-5: latent attention over the tokens that an indexer chooses.

    In GLM-5 a layer may take the choice of the one before, and then has no indexer.
    """
    widths, count = read_latent(config), count_layers(config)
    types = layer_types(config, count)
    if types is not None and set(types) - {"indexed_attention", "full_attention"}:
        raise config.refuse("layer_types", "indexed_attention in every layer")
    indexer = Indexer(config.whole("index_n_heads"), config.whole("index_head_dim"))
    widths.provenance.update(said(config, "index_head_dim"))
    own, topk = _own_indexer(config, count), config.whole("index_topk")
    layers = tuple(latent_layer(index, widths, indexer if own[index] else None, topk=topk) for index in range(count))
    return latent_architecture(config, layers)


def _own_indexer(config: Config, count: int) -> tuple[bool, ...]:
    """Which layers choose tokens by themselves: all, unless the config says otherwise in one of three ways."""
    if config.has("indexer_types"):
        return tuple(kind == "full" for kind in config.texts("indexer_types", count))
    if config.has("index_topk_pattern"):
        pattern = config.data.get("index_topk_pattern")
        letters = list(pattern) if isinstance(pattern, str) else config.texts("index_topk_pattern", count)
        if len(letters) != count or set(letters) - {"F", "S", "full", "shared"}:
            raise config.refuse("index_topk_pattern", f"F or S for each of {count} layers")
        return tuple(letter in ("F", "full") for letter in letters)
    period = config.maybe_whole("index_topk_freq") or 1
    offset = config.maybe_whole("index_skip_topk_offset", least=0)
    start = 2 if offset is None else offset
    return tuple(max(index - start + 1, 0) % period == 0 for index in range(count))
