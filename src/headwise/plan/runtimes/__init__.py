"""Policies of runtimes: how states become allocated bytes."""

from headwise.plan.runtimes.table import RUNTIMES, runtime_named

__all__ = ["RUNTIMES", "runtime_named"]
