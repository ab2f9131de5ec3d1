"""What the commands that reshape a model have in common: rows of text, the loss before and after, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headwise.cli.progress import Bar
from headwise.cli.signs import signed
from headwise.models import Checkpoint

__all__ = ["cache_bytes", "dtype_name", "paired_loss", "totals_table"]

_INTERVAL = ("low", "difference", "high")


def paired_loss(before: Checkpoint, after: Checkpoint, rows: Any, seed: int, bar: Bar) -> dict[str, Any]:
    """Loss on held-out rows of both models, and the paired difference with its interval over documents."""
    from headwise.intervals import bootstrap_interval
    from headwise.models.questions import document_losses

    bar.plan(2 * rows.tokens.numel())
    losses = []
    for name, model in (("before", before), ("after", after)):
        bar.stage(f"held-out loss {name}")
        losses.append(document_losses(model, rows, seed=seed))
        bar.advance(rows.tokens.numel())
    old, new = losses
    low, high = map(float, bootstrap_interval(new - old, seed))
    known = len(old) > 1
    return {
        "before": float(old.mean()),
        "after": float(new.mean()),
        "difference": float((new - old).mean()),
        "low": low if known else None,
        "high": high if known else None,
        "documents": len(old),
        "tokens": rows.tokens.numel(),
    }


def cache_bytes(checkpoint: Checkpoint) -> int:
    """Keys and values of one token in all layers, in the dtype of the model's files."""
    size = (checkpoint.stored_dtype or checkpoint.model.dtype).itemsize
    return sum(layout.num_kv_heads * (layout.head_dim + layout.value_dim) * size for layout in checkpoint.layouts)


def dtype_name(checkpoint: Checkpoint) -> str:
    """The dtype that :func:`cache_bytes` counts in."""
    return str(checkpoint.stored_dtype or checkpoint.model.dtype).removeprefix("torch.")


def totals_table(rows: Sequence[tuple[str, Sequence[int]]], cache: tuple[Sequence[int], str] | None, loss: Any) -> Any:
    """A rich table of counts before and after, cache bytes per token with the dtype they are in, and the loss."""
    from rich.table import Table

    from headwise.plan.units import bytes_text

    table = Table(title="In all", title_justify="left")
    for name in ("", "before", "after", "difference"):
        # Numbers are not split where the terminal is narrow; names and intervals go on in the next line.
        table.add_column(name, justify="left" if not name else "right", no_wrap=name in ("before", "after"))
    for name, counts in rows:
        table.add_row(name, *_count_row(counts))
    if cache is not None:
        (before, after), dtype = cache
        table.add_row(f"cache per token ({dtype})", bytes_text(before), bytes_text(after), _relative(before, after))
    if loss is not None:
        low, middle, high = (None if loss[key] is None else signed(loss[key], "+.3f") for key in _INTERVAL)
        told = f"{middle}" if low is None else f"{middle} ({low} to {high})"
        documents = f"loss, {loss['documents']} held-out document{'s' * (loss['documents'] != 1)} (nats)"
        table.add_row(documents, f"{loss['before']:.3f}", f"{loss['after']:.3f}", told)
    return table


def _count_row(pair: Sequence[int]) -> tuple[str, str, str]:
    """Before, after and the share that went or came."""
    before, after = pair
    return f"{before:,}", f"{after:,}", _relative(before, after)


def _relative(before: int, after: int) -> str:
    return "0" if after == before else signed(after / before - 1, "+.1%")
