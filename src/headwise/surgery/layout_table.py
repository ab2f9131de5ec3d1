"""What a model's layers are made of, and which numbers of heads each format could hold: the data of ``inspect``.

Symbols: H query heads, G KV heads, D head dim, E model width.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.models import load
from headwise.models.checkpoint import Checkpoint
from headwise.models.outline import outline
from headwise.models.packing import PACKINGS
from headwise.models.weight_files import check_weight_files
from headwise.models.weights import Rotary, heads_of, kind_of, rotary_of
from headwise.surgery.formats import FORMATS, NotHeldError, best_format, config_for
from headwise.surgery.layout_reach import Reach, reach_of
from headwise.surgery.training.parameters import trained_names

__all__ = ["Inspection", "LayerLayout", "inspect_layouts"]


@dataclass(frozen=True)
class LayerLayout:
    """One attention layer.

    Attributes:
        num_heads: H.
        num_kv_heads: G.
        head_dim: D.
        value_head_dim: of values, mostly D.
        window: how many keys a query sees, its own included, or None for all.
        rotary: how positions enter, or None if headwise does not know.
        biases: which projections have one, or None if headwise does not know.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int
    window: int | None
    rotary: Rotary | None
    biases: tuple[str, ...] | None


@dataclass(frozen=True)
class Inspection:
    """What :func:`inspect_layouts` found.

    Attributes:
        name: of the model.
        source: what the caller asked for.
        model_type: of its config.
        model_class: of transformers.
        width: E.
        parameters: how many weights there are, tied ones counted once.
        attention_parameters: how many of them attention has: projections, their biases, norms of queries and keys.
        layers: one for each attention layer.
        rotary_base: theta of the rotary embedding, or None.
        rotary_scaling: its kind, for instance ``default`` or ``llama3``, or None.
        packing: how the projections lie in the checkpoint, or None if headwise does not know.
        refusal: why its heads can't be reshaped, or None if they can.
        history: what was done to the model.
        format: the one in which it can be saved as it is.
        holds: by format, the numbers of query heads up to those of now, all layers alike, and for each the numbers of
            KV heads with which the format holds them. ``headwise`` takes others layer by layer besides.
        reach: to which other numbers of KV heads it can be brought, or None if it can't be reshaped.
        config_only: whether its weights were not even looked for, since they are on the hub.
    """

    name: str
    source: str
    model_type: str
    model_class: str
    width: int
    parameters: int
    attention_parameters: int
    layers: tuple[LayerLayout, ...]
    rotary_base: float | None
    rotary_scaling: str | None
    packing: str | None
    refusal: str | None
    history: tuple[dict[str, Any], ...]
    format: str
    holds: dict[str, dict[int, list[int]]]
    reach: Reach | None
    config_only: bool

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return asdict(self)


def inspect_layouts(source: str | Path) -> Inspection:
    """Read a model's layouts, from its config alone where that is enough.

    Args:
        source: as for :func:`headwise.models.load`.

    Raises:
        UserError: nothing readable at ``source``, or a folder without all of its weights.
    """
    try:
        checkpoint, read = outline(source), False
    except UserError:
        # Some architectures must run with numbers for their layers to be seen. What can't be read at all is refused
        # again, in the same words.
        checkpoint, read = load(source, check=False), True
    folder = Path(source).expanduser()
    local = folder.exists() or source == "demo"
    if folder.is_dir() and not read and source != "demo":
        check_weight_files(folder, getattr(checkpoint.model.config, "transformers_weights", None))
    return _inspection(checkpoint, config_only=not local and not read)


def _inspection(checkpoint: Checkpoint, config_only: bool) -> Inspection:
    config = checkpoint.model.config
    packing, refusal = _packing(checkpoint)
    rotary = getattr(config, "rope_parameters", None) or {}
    return Inspection(
        name=checkpoint.name,
        source=checkpoint.source,
        model_type=config.model_type,
        model_class=type(checkpoint.model).__name__,
        width=config.hidden_size,
        parameters=checkpoint.parameters,
        attention_parameters=_attention_parameters(checkpoint),
        layers=tuple(_layer(checkpoint, layer, refusal is None) for layer in range(checkpoint.num_layers)),
        rotary_base=rotary.get("rope_theta"),
        rotary_scaling=rotary.get("rope_type"),
        packing=packing,
        refusal=refusal,
        history=checkpoint.history,
        format="stock" if refusal else best_format(config, _own(checkpoint)),
        holds={} if refusal else _held(config, checkpoint.max_heads),
        reach=None if refusal else reach_of(checkpoint),
        config_only=config_only,
    )


def _attention_parameters(checkpoint: Checkpoint) -> int:
    return sum(checkpoint.model.get_parameter(name).numel() for name in trained_names(checkpoint, "attention"))


def _own(checkpoint: Checkpoint) -> list[tuple[int, int]]:
    return [(layout.num_heads, layout.num_kv_heads) for layout in checkpoint.layouts]


def _packing(checkpoint: Checkpoint) -> tuple[str | None, str | None]:
    """How projections are packed, or why headwise can't change them."""
    kind = checkpoint.model.config.model_type
    if kind not in PACKINGS:
        return None, f"headwise does not know where {kind} keeps its heads"
    return kind_of(checkpoint).name, None


def _layer(checkpoint: Checkpoint, layer: int, known: bool) -> LayerLayout:
    layout = checkpoint.layouts[layer]
    weights = heads_of(checkpoint, layer) if known else None
    return LayerLayout(
        num_heads=layout.num_heads,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        value_head_dim=layout.value_head_dim or layout.head_dim,
        window=_visible(layout.window),
        rotary=rotary_of(checkpoint, layer) if known else None,
        biases=None if weights is None else tuple(
            part for part in ("query", "key", "value", "output") if getattr(weights, f"{part}_bias") is not None
        ),
    )  # fmt: skip


def _visible(window: Any) -> int | None:
    """How many keys a window ``(left, 0)`` lets a query see."""
    return None if window is None else window[0] + 1


def _held(config: Any, most: int) -> dict[str, dict[int, list[int]]]:
    """Every number of heads up to ``most`` is asked for, with each of its divisors."""
    held: dict[str, dict[int, list[int]]] = {form: {} for form in FORMATS}
    for form, counts in held.items():
        for heads in range(1, most + 1):
            if fitting := [kv_heads for kv_heads in _divisors(heads) if _fits(config, heads, kv_heads, form)]:
                counts[heads] = fitting
    return {form: counts for form, counts in held.items() if counts}


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _fits(config: Any, heads: int, kv_heads: int, form: Any) -> bool:
    try:
        config_for(config, [(heads, kv_heads)] * config.num_hidden_layers, form)
    except NotHeldError:
        return False
    return True
