"""Bounds of options that several commands have, told before any of them runs. Nothing heavy is imported here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headwise.cli.errors import short
from headwise.errors import UserError

__all__ = ["LARGEST_SEED", "check_bounds", "most_threads"]

# torch takes 64 bits, and a study seeds with up to 1,000 times its own seed. Numbers up to here also come back exactly
# from every reader of JSON, browsers among them.
LARGEST_SEED = 2**53 - 1

_LEAST_BOUND = 64  # threads that are allowed on the smallest machine
_PER_CORE = 4


def most_threads() -> int:
    """How many threads a command may be asked for: far more than help, and far fewer than end the process."""
    return max(_LEAST_BOUND, _PER_CORE * _cores())


def check_bounds(given: Mapping[str, Any]) -> None:
    """Refuse a seed or a number of threads that would stop the command half-way.

    Args:
        given: the arguments of a command by the names of its parameters; ``seed`` and ``threads`` are looked at.

    Raises:
        UserError: one of them is too large.
    """
    seed, threads = given.get("seed"), given.get("threads")
    if seed is not None and seed > LARGEST_SEED:
        raise UserError(
            f"--seed: expected a whole number from 0 to {LARGEST_SEED} (2**53 - 1), got {short(seed)}; give a smaller "
            "one"
        )
    if threads is not None and threads > most_threads():
        cores = _cores()
        # The library that starts them ends the process without a word when the system gives it no more.
        raise UserError(
            f"--threads: expected at most {most_threads()} on this machine, which has {cores} logical "
            f"{'core' if cores == 1 else 'cores'}, got {short(threads)}; give {cores}, or leave it out"
        )


def _cores() -> int:
    return os.cpu_count() or 1
