"""Fields of published configs, from the files and facts that the tests of the planner keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headwise.plan import Plan, plan
from tests.plan.golden import GOLDEN

__all__ = ["fields_of", "heads_of", "told"]

CONFIGS = Path(__file__).parents[1] / "plan" / "configs"


def fields_of(name: str) -> dict[str, Any]:
    """The config of ``organisation/name``: the published file where there is one, else the fields that decide."""
    file = CONFIGS / f"{name.replace('/', '--')}.json"
    if file.exists():
        fields: dict[str, Any] = json.loads(file.read_text())
        return fields
    return next(dict(each.fields) for each in GOLDEN if each.name == name)


def told(name: str, **asked: Any) -> Plan:
    """What headwise plans for it."""
    return plan(fields_of(name), **{"context": 1024} | asked)


def heads_of(name: str) -> tuple[int, int]:
    """Query heads and KV heads, the same in every layer."""
    layers = told(name).architecture.layers
    (pair,) = {(each.heads, each.kv_heads) for layer in layers for each in layer.attentions}
    return pair
