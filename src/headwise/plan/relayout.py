"""The same model under another head layout: MHA, GQA, MQA, MLA, or a window.

Only self attention and what it keeps is exchanged; cross attention, convolutions and recurrent states stay. Whether a
model of that layout exists, or is any good, is another question: these are its costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from headwise.plan.config import LARGEST
from headwise.plan.errors import PlanError
from headwise.plan.layers import Architecture, Attention, Layer, Projection
from headwise.plan.states import Chunk, Extent, Grows, Plane, State, Window

__all__ = ["Layout", "layouts_named"]

_FORMS = "mha, gqa:HEADS, mqa, mla:LATENT+ROPE, window:SIZE or window:SIZE/EVERY"
_WORD = re.compile(r"(mha|mqa)|gqa:(\d{1,13})|mla:(\d{1,13})\+(\d{1,13})|window:(\d{1,13})(?:/(\d{1,13}))?", re.ASCII)
_MOST_LAYOUTS = 16
_SELF = ("self", "latent")
DOWN, UP = "key value down", "key value up"


@dataclass(frozen=True)
class Layout:
    """One way to lay out heads.

    Attributes:
        name: as it was typed.
        apply: the architecture under it.
    """

    name: str
    apply: Callable[[Architecture], Architecture]


def layouts_named(text: str) -> tuple[Layout, ...]:
    """The layouts of ``mha,gqa:8,mqa,mla:512+64,window:4096``.

    ``gqa:G`` has ``G`` KV heads. ``mla:N+R`` keeps a latent of ``N`` elements and a rotary key of ``R`` per token.
    ``window:W`` lets every layer see at most ``W`` tokens, ``window:W/N`` all but every ``N``-th layer.

    Raises:
        PlanError: a word is none of these.
    """
    words = [word.strip() for word in text.split(",")]
    if len(words) > _MOST_LAYOUTS:
        raise PlanError(f"--compare: expected at most {_MOST_LAYOUTS} layouts, got {len(words)}")
    return tuple(Layout(word, _layout(word)) for word in words)


def _layout(word: str) -> Callable[[Architecture], Architecture]:
    match = _WORD.fullmatch(word)
    numbers = [] if match is None else [int(each) for each in match.groups()[1:] if each is not None]
    if match is None or any(not 1 <= number <= LARGEST for number in numbers):
        raise PlanError(f"--compare: expected {_FORMS}, got {word[:60]!r}")
    if word.startswith("window"):
        size, every = numbers[0], numbers[1] if len(numbers) > 1 else None
        return lambda architecture: _with_window(architecture, size, every, word)
    if word.startswith("mla"):
        return lambda architecture: _each_layer(architecture, word, lambda each: _as_latent(each, *numbers))
    fixed = {"mha": None, "mqa": 1}.get(word, numbers[0] if numbers else None)
    return lambda architecture: _each_layer(architecture, word, lambda each: _as_grouped(each, fixed, word))


def _each_layer(architecture: Architecture, word: str, change: Callable[[Layer], Layer]) -> Architecture:
    if not any(each.kind in _SELF for layer in architecture.layers for each in layer.attentions):
        raise PlanError(f"--compare {word}: expected a model with self attention, {architecture.model_type} has none")
    return replace(architecture, layers=tuple(map(change, architecture.layers)))


def _as_grouped(layer: Layer, kv_heads: int | None, word: str) -> Layer:
    for each in layer.attentions:
        if each.kind in _SELF and kv_heads is not None and each.heads % kv_heads:
            raise PlanError(
                f"--compare {word}: expected a number of KV heads that divides the {each.heads} heads of layer "
                f"{layer.index}, got {kv_heads}"
            )
    attentions = tuple(_grouped_attention(each, kv_heads or each.heads) for each in layer.attentions)
    return replace(layer, attentions=attentions, states=_states(layer, attentions))


def _grouped_attention(old: Attention, kv_heads: int) -> Attention:
    if old.kind not in _SELF:
        return old
    key, value = kv_heads * old.score_dim, kv_heads * old.value_dim
    if old.kind == "latent":
        width = _named(old, DOWN).inputs
        kept = tuple(each for each in old.projections if each.name not in (DOWN, UP))
        made = (Projection("key", width, key), Projection("value", width, value))
        projections = (*kept[:-1], *made, kept[-1])
    else:
        grown = (kv_heads - old.kv_heads) * old.score_dim, (kv_heads - old.kv_heads) * old.value_dim
        projections = tuple(_resized(each, *grown) for each in old.projections)
    return replace(old, kind="self", kv_heads=kv_heads, projections=projections, absorbed=None)


def _as_latent(layer: Layer, latent: int, rope: int) -> Layer:
    attentions = tuple(_latent_attention(each, latent, rope) for each in layer.attentions)
    return replace(layer, attentions=attentions, states=_states(layer, attentions))


def _latent_attention(old: Attention, latent: int, rope: int) -> Attention:
    """Keys and values from a latent, and one rotary key for all heads, which widens queries and keys by ``rope``."""
    if old.kind not in _SELF:
        return old
    # A latent model has a rotary part already, which is exchanged; others gain one.
    before = old.absorbed[0] - old.absorbed[1] if old.absorbed is not None else 0
    score_dim = old.score_dim - before + rope
    projections = _latent_projections(old, latent, rope, before)
    absorbed = (latent + rope, latent)
    return replace(
        old, kind="latent", kv_heads=old.heads, score_dim=score_dim, projections=projections, absorbed=absorbed
    )


def _latent_projections(old: Attention, latent: int, rope: int, before: int) -> tuple[Projection, ...]:
    keys, values = old.kv_heads * old.score_dim, old.kv_heads * old.value_dim
    made: list[Projection] = []
    last_query = [each.name for each in old.projections if "query" in each.name.split()][-1:]
    for each in old.projections:
        if each.name in (DOWN, UP):
            continue
        words = [word for word in each.name.split() if word not in ("key", "value")]
        left = each if old.kind == "latent" else _resized(each, -keys, -values)
        if [each.name] == last_query:
            left = replace(left, outputs=left.outputs + old.heads * (rope - before))
        if words:
            made.append(replace(left, name=" ".join(words)))
    if not any("key" in each.name.split() for each in old.projections):
        return tuple(made)  # it reads what another layer keeps
    content = old.heads * (old.score_dim - before + old.value_dim)
    width = old.projections[0].inputs
    down, up = Projection(DOWN, width, latent + rope), Projection(UP, latent, content)
    return (*made[:-1], down, up, made[-1])


def _resized(old: Projection, keys: int, values: int) -> Projection:
    """The matrix with that many further outputs for keys and values, if it makes any."""
    words = old.name.split()
    further = (keys if "key" in words else 0) + (values if "value" in words else 0)
    return replace(old, outputs=old.outputs + further)


def _named(attention: Attention, name: str) -> Projection:
    return next(each for each in attention.projections if each.name == name)


def _states(layer: Layer, attentions: tuple[Attention, ...]) -> tuple[State, ...]:
    """What the layer keeps when its self attention is the one given."""
    new = next((each for each in attentions if each.kind in _SELF), None)
    return tuple(
        state if new is None or state.kind not in _SELF else _state(state, new, layer) for state in layer.states
    )


def _state(old: State, attention: Attention, layer: Layer) -> State:
    made = {"provenance": {**old.provenance, "layout": "--compare"}}
    if attention.absorbed is not None:
        wide, latent = attention.absorbed
        planes = (Plane("latent", 1, latent, "latent"), Plane("rope key", 1, wide - latent, "latent"))
        return replace(old, kind="latent", planes=planes, sharding="replicated", **made)  # type: ignore[arg-type]
    planes = (
        Plane("key", attention.kv_heads, attention.score_dim, "key"),
        Plane("value", attention.kv_heads, attention.value_dim, "value"),
    )
    return replace(old, kind="self", planes=planes, sharding="heads", **made)  # type: ignore[arg-type]


def _with_window(architecture: Architecture, size: int, every: int | None, word: str) -> Architecture:
    """Windows on all layers with self attention, or on all but every ``every``-th of them."""
    attending = [layer.index for layer in architecture.layers if any(each.kind in _SELF for each in layer.attentions)]
    kept = set(attending[every - 1 :: every]) if every is not None else set()

    def narrow(layer: Layer) -> Layer:
        if layer.index in kept:
            return layer
        attentions = tuple(
            replace(each, extent=_narrower(each.extent, size)) if each.kind in _SELF else each
            for each in layer.attentions
        )
        states = tuple(
            replace(each, extent=_narrower(each.extent, size)) if each.kind in _SELF else each for each in layer.states
        )
        return replace(layer, attentions=attentions, states=states)

    return _each_layer(architecture, word, narrow)


def _narrower(extent: Extent, size: int) -> Extent:
    """The window, unless what was there is narrower still."""
    if isinstance(extent, Grows):
        return Window(size)
    return Window(size) if isinstance(extent, (Window, Chunk)) and extent.size > size else extent
