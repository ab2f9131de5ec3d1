"""The sizes of a model that is there: of its first layer with self attention, from its config alone."""

from __future__ import annotations

from headwise.bench.layouts.specs import Shape
from headwise.errors import UserError
from headwise.plan import plan
from headwise.plan.layers import Attention
from headwise.plan.states import Grows

__all__ = ["shape_like"]


def shape_like(model: str) -> tuple[Shape, str, list[str]]:
    """Width, heads and their width, the layout that the model has by name, and what was left out of it.

    Args:
        model: a folder, a ``config.json``, a hub id, a ``.gguf`` file, or ``demo``.

    Raises:
        UserError: there is no such model, it has no self attention, or its heads are of a kind that isn't measured.
    """
    architecture = plan(model, context=1).architecture
    found = [
        (layer.index, each)
        for layer in architecture.layers
        for each in layer.attentions
        if each.kind in ("self", "latent")
    ]
    if not found:
        raise UserError(
            f"--like {model}: expected a model with self attention, {architecture.model_type} has none; "
            "give --width and --heads"
        )
    index, first = found[0]
    notes = []
    if any(_sizes(each) != _sizes(first) for _, each in found):
        notes.append(f"the layers of {model} differ; the sizes are those of layer {index}, the first with attention")
    if not isinstance(first.extent, Grows):
        notes.append(
            f"layer {index} of {model} sees a part of the context only, which is left out; window:KEYS stands for it"
        )
    if first.kind == "latent":
        return _latent(model, architecture.width, first, notes)
    if first.score_dim != first.value_dim:
        raise UserError(
            f"--like {model}: expected keys and values of one width, got {first.score_dim} and {first.value_dim}; give "
            "--width and --heads"
        )
    shape = Shape(architecture.width, first.heads, first.score_dim)
    return shape, _grouped_name(first.heads, first.kv_heads), notes


def _latent(model: str, width: int, attention: Attention, notes: list[str]) -> tuple[Shape, str, list[str]]:
    assert attention.absorbed is not None  # which is what makes it latent
    wide, latent = attention.absorbed
    rope = wide - latent
    if attention.score_dim - rope != attention.value_dim:
        raise UserError(
            f"--like {model}: expected values as wide as the part of a key without position, got "
            f"{attention.value_dim} and {attention.score_dim - rope}; give --width and --heads"
        )
    if any("down" in each.name and "query" in each.name for each in attention.projections):
        notes.append(f"the queries of {model} have a latent of their own; here they are projected at once")
    return Shape(width, attention.heads, attention.value_dim), f"mla:{latent}+{rope}", notes


def _grouped_name(heads: int, kv_heads: int) -> str:
    return "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else f"gqa:{kv_heads}"


def _sizes(attention: Attention) -> tuple[object, ...]:
    return attention.kind, attention.heads, attention.kv_heads, attention.score_dim, attention.value_dim
