"""Layouts of small sizes that are different primes wherever they can be, and a comparison of them."""

from __future__ import annotations

from typing import Any

from headwise.bench.layouts.costs import Load
from headwise.bench.layouts.settings import Settings
from headwise.bench.layouts.specs import LayoutSpec, Shape, parse_layouts
from headwise.plan.devices import Device

# Six heads can be grouped in four ways; widths of heads are twice a prime, since positions turn pairs.
SHAPE = Shape(23, 6, 10)
LOAD = Load(3, 31, "float32")
ALL = "mha,gqa:3,gqa:2,mqa,mla:11+4,window:7,mixed:2@7,mha/3,mqa/3,mla:5+14/2"
DEVICE = Device("here", 7 * 10**9, 11 * 10**9, "made up")


def spec(word: str, shape: Shape = SHAPE) -> LayoutSpec:
    """One layout."""
    return parse_layouts(word, shape)[0]


def settings(words: str = "mha,gqa:2,mla:11+4,window:7,mha/3", load: Load = LOAD, **options: Any) -> Settings:
    """A comparison that is quick."""
    return Settings(parse_layouts(words, SHAPE), load, **{"rounds": 5, "memory": False, **options})
