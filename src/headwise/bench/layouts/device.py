"""How fast this processor reads its memory and multiplies matrices of the dtype in question: measured now."""

from __future__ import annotations

import torch

from headwise import native
from headwise.plan.devices import Device, measured_here

__all__ = ["measured_device"]


def measured_device(dtype: str) -> Device | str:
    """The speeds behind the roofline, on as many threads as torch uses, or in words why there are none."""
    if not native.is_built():
        return "the compiled part of headwise, which measures how fast memory is read, is missing (headwise doctor)"
    return measured_here(torch.get_num_threads(), dtype)
