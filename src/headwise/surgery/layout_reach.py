"""To which other numbers of KV heads a model can be brought: the one answer of ``inspect`` that is about surgery.

Nothing is known here about architectures: each number is put to what ``headwise convert`` itself asks before it starts.

Symbols: H query heads, G KV heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwise.errors import UserError
from headwise.models.checkpoint import Checkpoint
from headwise.surgery.convert import Recipe, check_convertible
from headwise.surgery.export import check_exportable
from headwise.surgery.sharing.methods import METHODS

__all__ = ["Reach", "reach_of"]


@dataclass(frozen=True)
class Reach:
    """Numbers of KV heads, the same for every layer.

    Attributes:
        fewer: by method of ``headwise convert`` what ``--kv-heads`` may be; methods that make nothing are left out.
        refusal: why it makes nothing by any method, or None if it does.
        more: to which :func:`headwise.surgery.gauge.degroup` raises them.
    """

    fewer: dict[str, list[int]]
    refusal: str | None
    more: list[int]


def reach_of(checkpoint: Checkpoint) -> Reach:
    """What can be made of a model.

    Args:
        checkpoint: of an architecture that can be reshaped; its weights are not looked at.
    """
    most = max(layout.num_kv_heads for layout in checkpoint.layouts)
    fewer = {
        method: fitting
        for method in METHODS
        if (fitting := [number for number in range(1, most + 1) if _refusal(checkpoint, number, method) is None])
    }
    # The method that takes the most, so that what is told is not what another method would mend.
    return Reach(fewer, None if fewer else _refusal(checkpoint, 1, "first"), _more(checkpoint))


def _refusal(checkpoint: Checkpoint, number: int, method: str) -> str | None:
    try:
        check_convertible(checkpoint, number, Recipe(method).settled())
        check_exportable(checkpoint, [(layout.num_heads, number) for layout in checkpoint.layouts])
    except UserError as error:
        return str(error).removeprefix(f"{checkpoint.name}: ")
    return None


def _more(checkpoint: Checkpoint) -> list[int]:
    """Multiples of every layer's G that divide its H, and are more in some layer."""
    sizes = {(layout.num_heads, layout.num_kv_heads) for layout in checkpoint.layouts}
    least, fewest = min(heads for heads, _ in sizes), min(kv_heads for _, kv_heads in sizes)
    return [
        number
        for number in range(fewest + 1, least + 1)
        if all(heads % number == 0 and number % kv_heads == 0 for heads, kv_heads in sizes)
    ]
