"""Reading what most families share: head counts, widths, and which layers are local."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headwise.plan.architectures.parts import Heads
from headwise.plan.config import MOST_LAYERS, Config
from headwise.plan.errors import PlanError
from headwise.plan.states import Chunk, Extent, Grows, Window

__all__ = [
    "LAYERS_KEY",
    "Pattern",
    "count_layers",
    "divided",
    "every",
    "extents_of",
    "full_layers",
    "heads_by_layer",
    "layer_overrides",
    "layer_types",
    "read_heads",
    "said",
    "sliding_layers",
    "typed_layers",
    "window_provenance",
]

# From a config and a number of layers to what each layer sees.
Pattern = Callable[[Config, int], "tuple[Extent, ...]"]

# Under this headwise lists [query heads, KV heads] of each layer where the config's own words can't say them.
LAYERS_KEY = "headwise_layers"

# Names that older configs use for the same kind of layer.
_ALSO = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
    # Zamba 2's first releases.
    "m": "linear_attention",
    "g": "hybrid",
}


def said(config: Config, *names: str) -> dict[str, str]:
    """Where the values of ``names`` came from, for those that were read."""
    return {name: config.provenance[name] for name in names if name in config.provenance}


def count_layers(config: Config, *names: str) -> int:
    """How many layers the model has, under the first of ``names`` that has a value."""
    return config.whole(*(names or ("num_hidden_layers",)), most=MOST_LAYERS)


def divided(config: Config, whole: int, parts: int, what: str, name: str, advice: str = "") -> int:
    """``whole / parts`` where it is exact.

    Raises:
        PlanError: it isn't; ``name`` is the field to blame.
    """
    if whole % parts:
        raise config.refuse(name, f"a divisor of {what} = {whole}", advice)
    return whole // parts


def read_heads(
    config: Config,
    *,
    width: Sequence[str] = ("hidden_size",),
    heads: Sequence[str] = ("num_attention_heads",),
    kv_heads: Sequence[str] | int | None = ("num_key_value_heads",),
    head_dim: Sequence[str] = ("head_dim",),
    value_dim: Sequence[str] = (),
) -> Heads:
    """The widths of a model whose layers are alike.

    Args:
        config: the fields.
        width: names of ``E``.
        heads: names of ``H``.
        kv_heads: names of ``G``, or the number itself; None, or no value under the names: as many as query heads.
        head_dim: names of ``D``; where none has a value it is ``E / H``.
        value_dim: names of ``Dv``; where none has a value it is ``D``.

    Raises:
        PlanError: a field is missing, or they contradict each other.
    """
    E = config.whole(*width)
    H = config.whole(*heads)
    G = _read_kv_heads(config, kv_heads, H, heads[0])
    D = config.maybe_whole(*head_dim) if head_dim else None
    if D is None:
        advice = f"or give {head_dim[0]}" if head_dim else ""
        D = divided(config, E, H, width[0], heads[0], advice)
        config.derived("head_dim", D, f"{width[0]} / {heads[0]}")
    elif head_dim[0] != "head_dim":
        config.provenance["head_dim"] = config.provenance[head_dim[0]]
    Dv = (config.maybe_whole(*value_dim) if value_dim else None) or D
    provenance = said(config, width[0], heads[0], "num_key_value_heads", "head_dim", *value_dim[:1])
    return Heads(E, H, G, D, Dv, provenance)


def _read_kv_heads(config: Config, names: Sequence[str] | int | None, heads: int, heads_name: str) -> int:
    """``G``; its provenance stands under ``num_key_value_heads`` whatever the config calls it."""
    found = names if isinstance(names, int) else config.maybe_whole(*names) if names else None
    if found is None:
        return config.derived("num_key_value_heads", heads, f"as {heads_name}")
    blamed = "num_key_value_heads"
    if not isinstance(names, int) and names:
        blamed = next((name for name in names if config.has(name)), names[0])
        config.provenance["num_key_value_heads"] = config.provenance[names[0]]
    if heads % found:
        raise config.refuse(blamed, f"a divisor of {heads_name} = {heads}")
    return found


def heads_by_layer(config: Config, heads: Heads, count: int, *, shares: bool) -> list[Heads]:
    """The widths of each layer: alike, unless headwise has listed numbers of heads layer by layer.

    Args:
        config: the fields.
        heads: the widths that hold for all layers.
        count: how many layers there are.
        shares: whether query heads of this architecture can share KV heads.

    Raises:
        PlanError: the list isn't one of layers.
    """
    if not config.has(LAYERS_KEY):
        return [heads] * count
    _check_no_other(config, heads)
    pairs = config.pairs(LAYERS_KEY, count)
    if any(H % G or (H != G and not shares) for H, G in pairs):
        rule = "the first a multiple of the second" if shares else "both the same"
        raise config.refuse(LAYERS_KEY, f"[query heads, KV heads] of each layer, {rule}")
    told = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), config.provenance[LAYERS_KEY])
    provenance = {**heads.provenance, **told}
    return [replace(heads, heads=H, kv_heads=G, provenance=provenance) for H, G in pairs]


def _check_no_other(config: Config, heads: Heads) -> None:
    """Numbers that the user says for all layers would be covered by the list."""
    for name, origin in heads.provenance.items():
        if origin == "override" and name in ("num_attention_heads", "n_head", "num_key_value_heads"):
            raise PlanError(
                f"--set {name}: expected none beside {config.place(LAYERS_KEY)}, which lists heads layer by layer; add "
                f"--set {LAYERS_KEY}=null, or change the list"
            )


def layer_types(config: Config, count: int, *names: str) -> tuple[str, ...] | None:
    """What the config calls each layer, in today's names; None where it doesn't say.

    Entries behind the last layer, which some configs have for layers that predict further tokens, are left out.
    """
    name = next((name for name in names or ("layer_types",) if config.has(name)), None)
    if name is None:
        return None
    types = config.texts(name)
    extra = config.maybe_whole("num_nextn_predict_layers", least=0) or 0
    if len(types) != count and len(types) != count + extra:
        raise config.refuse(name, f"{count} entries, one for each layer", f"it has {len(types)}")
    return tuple(_ALSO.get(entry, entry) for entry in types[:count])


def extents_of(config: Config, types: Sequence[str], name: str = "layer_types") -> tuple[Extent, ...]:
    """What layers of those types see.

    Raises:
        PlanError: a type isn't known, or its window isn't given.
    """
    kinds: dict[str, Callable[[], Extent]] = {
        "full_attention": Grows,
        "sliding_attention": lambda: Window(config.whole("sliding_window")),
        "chunked_attention": lambda: Chunk(config.whole("attention_chunk_size")),
    }
    known: dict[str, Extent] = {}
    for entry in types:
        if entry not in kinds:
            raise PlanError(f"{config.place(name)}: expected {', '.join(kinds)}, got {entry[:60]!r}")
        if entry not in known:
            known[entry] = kinds[entry]()
    return tuple(known[entry] for entry in types)


def full_layers(config: Config, count: int) -> tuple[Extent, ...]:
    """Every layer sees everything."""
    return (Grows(),) * count


def sliding_layers(config: Config, count: int) -> tuple[Extent, ...]:
    """Every layer has the same window, if the config has one."""
    window = config.maybe_whole("sliding_window")
    return (Grows() if window is None else Window(window),) * count


def typed_layers(default: Callable[[Config, int], Sequence[str]]) -> Pattern:
    """Layers after ``layer_types``; where the config has none, after ``default``."""

    def pattern(config: Config, count: int) -> tuple[Extent, ...]:
        types = layer_types(config, count)
        return extents_of(config, types if types is not None else default(config, count))

    return pattern


def every(period: int, *, name: str = "", first: bool = False) -> Callable[[Config, int], Sequence[str]]:
    """One full layer in ``period``, the last of each or the ``first``; the config may give it under ``name``."""

    def types(config: Config, count: int) -> Sequence[str]:
        step = (config.maybe_whole(name) if name else None) or period
        full = 0 if first else step - 1
        how = f"layer {full} of every {step} is full"
        config.derived("layer_types", None, how if not config.has(name) else f"{name}, {how}")
        return ["full_attention" if index % step == full else "sliding_attention" for index in range(count)]

    return types


def layer_overrides(config: Config, count: int, *known: str) -> dict[int, Config]:
    """What ``per_layer_config`` says of single layers; configs saved by transformers 5 have it.

    Raises:
        PlanError: it speaks of a layer that isn't there, or of a field other than ``known``.
    """
    if not config.has("per_layer_config"):
        return {}
    entries = config.data.get("per_layer_config")
    if not isinstance(entries, Mapping) or not all(isinstance(each, Mapping) for each in entries.values()):
        raise config.refuse("per_layer_config", "fields for each of some layers")
    found: dict[int, Config] = {}
    for name, fields in entries.items():
        index = int(name) if str(name).isdecimal() and len(str(name)) < 8 else count
        if index >= count:
            raise config.refuse("per_layer_config", f"layers from 0 to {count - 1}", f"it speaks of {str(name)[:20]}")
        if set(fields) - set(known):
            raise config.refuse("per_layer_config", f"no other fields than {', '.join(known)}", f"in layer {index}")
        found[index] = Config(fields, where=config.place(f"per_layer_config.{name}"))
    return found


def window_provenance(config: Config) -> Mapping[str, str]:
    """Where windows and the order of layers came from."""
    return said(
        config, "layer_types", "sliding_window", "attention_chunk_size", "max_window_layers", "use_sliding_window"
    )
