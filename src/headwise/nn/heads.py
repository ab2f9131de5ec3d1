"""What a layer knows about each of its query heads: how far it looks, its sink, the soft-cap and the scale.

Axes: ``H`` query heads, ``G`` KV heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.attention import validation
from headwise.attention.masks import UNBOUNDED, Span, WindowArgument, head_spans
from headwise.nn.calls import Heads

__all__ = ["HeadSettings", "local"]


class HeadSettings(nn.Module):
    """The part that attention layers share.

    Attributes:
        local_heads: the query heads that this module computes, in order; None for all. Tensor parallelism sets it where
            the projections hold some of the heads only: windows are those of these heads then, and ``sinks`` must hold
            theirs alone (a plain tensor, or a ``DTensor`` whose local part does).
    """

    sinks: nn.Parameter | None

    def __init__(
        self,
        num_heads: int,
        *,
        window: WindowArgument = None,
        sinks: bool = False,
        softcap: float | None = None,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(sinks, bool):
            raise TypeError(f"sinks: expected True or False, got {type(sinks).__name__}; load numbers as a state dict")
        self.num_heads = num_heads
        self.spans = head_spans(window, False, num_heads)
        self.softcap = validation.check_softcap(softcap)
        self.scale = None if scale is None else validation.check_scale(scale, 1)
        self.sinks = nn.Parameter(torch.zeros(num_heads, device=device, dtype=dtype)) if sinks else None
        self.local_heads: range | None = None

    def head_options(self, window: WindowArgument = None) -> Heads:
        """What the heads of this process bring to attention; ``window`` is that of the call.

        Raises:
            ValueError: both the call and the layer have a window.
        """
        own = self._local_spans()
        # All heads' windows, not only those here: with heads spread over processes, all of them must refuse alike.
        if self.spans != (UNBOUNDED,) and window is not None:
            raise ValueError(
                f"window: expected none in a call of a layer with windows of its own, got {window!r}; "
                "build the layer without, or pass a mask"
            )
        chosen = window if self.spans == (UNBOUNDED,) else own[0] if len(own) == 1 else own
        return Heads(chosen, self.scale, self.softcap, None if self.sinks is None else local(self.sinks))

    def _local_spans(self) -> tuple[Span, ...]:
        if self.local_heads is None or len(self.spans) == 1:
            return self.spans
        return head_spans([self.spans[head] for head in self.local_heads], False, len(self.local_heads))

    def told_settings(self) -> dict[str, Any]:
        """What differs from a plain layer, for ``print``."""
        window = None if self.spans == (UNBOUNDED,) else self.spans[0] if len(self.spans) == 1 else list(self.spans)
        told = {"window": window, "softcap": self.softcap, "scale": self.scale, "sinks": self.sinks is not None or None}
        return {name: value for name, value in told.items() if value is not None}


def local(tensor: Tensor) -> Tensor:
    """The part of a ``DTensor`` that lies here; any other tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
