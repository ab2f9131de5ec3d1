"""Experiments of a bounded size: a question, runs from many seeds, and what their numbers allow to say.

An experiment is a module here that ends in ``EXPERIMENT = Experiment(...)``, and one line in the table below. What
would make it long stands in modules beside it: ``NAME_task`` (conditions, settings, data), ``NAME_model``,
``NAME_findings``. The framework does the rest: it runs every condition at every seed, keeps each run in a file of its
own so that a killed experiment goes on to the same numbers, puts intervals over seeds on everything, tests paired
differences, prints, draws, writes. The parts:

* ``experiment``: what an experiment is made of. ``Experiment(name, question, task, held_out, settings, conditions,
  measures, run, ...)``, with ``Measure``, ``Curve``, ``Comparison``, the panels ``Dots``, ``Lines`` and ``Plane`` for
  the figure, and ``Finding``.
* ``training``: ``seed_of`` and ``seeded`` (random numbers that depend on nothing else), ``Decoder`` (a small model
  around attention layers of headwise), ``train``, ``split_of`` (which rows are held out, by their content).
* ``run``: ``run_experiment(experiment, seeds=..., settings=..., partial=...)`` gives a ``Result``.
* ``summary``: rows, differences and curves over seeds, and the rule by which a difference is called shown.
* ``findings``: sentences from a difference, in both directions and for none.

How to write one:

1. A frozen dataclass of settings (sizes, steps, learning rates), with defaults that take 5 minutes or less on two cores
   for ten seeds. Tests replace them by tiny ones. All of it must be JSON: numbers, strings, booleans, tuples of them.
2. ``run(condition, seed, settings) -> dict``: a pure function of its arguments, with no random number but from
   ``seed_of(seed, ...)``. It returns numbers (None where there is none; NaN and infinity become None) and, for curves,
   lists of numbers. Runs go seed by seed, all conditions of a seed one after the other, so what conditions of a seed
   share (a trained model) may be kept by ``functools.lru_cache(maxsize=1)`` on ``(seed, settings)``.
3. ``Measure(key, title, form)`` for every number to show, ``Comparison(key, title, first, second)`` for every
   paired difference, where ``first`` and ``second`` are ``(condition, measure)``; the difference is second − first.
   Declare only those that answer the question: the q-values count all of them.
4. ``findings(summary) -> list[Finding]``: kinds ``FOUND``, ``NOT_SHOWN`` and ``NO_CONCLUSION`` ("does not follow").
   Take numbers only from the summary: ``summary.mean(condition, measure)``, ``summary.values(...)`` by seed,
   ``summary.difference(key)``; ``findings.compare`` words a difference for all three outcomes.
5. What is chosen (a learning rate, a head) is chosen on validation rows and judged on test rows. ``split_of`` gives
   disjoint splits by construction. A text corpus adds its digest by ``inputs=lambda: {"corpus": digest}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from headwise.errors import UserError

if TYPE_CHECKING:
    from headwise.bench.experiments.experiment import Experiment

__all__ = [
    "ENOUGH_SEEDS", "EXPERIMENTS", "FIGURE", "MANIFEST", "MOST_SEEDS", "RUNS", "SUMMARY", "check_name",
    "check_seed_count", "check_seeds", "load_experiment",
]  # fmt: skip

ENOUGH_SEEDS = 10
MOST_SEEDS = 1_000

# What a finished folder holds.
RUNS, SUMMARY, FIGURE, MANIFEST = "runs.jsonl", "summary.json", "figure.png", "manifest.json"

# Name -> one line for the list; the module of the same name holds EXPERIMENT and is loaded when it is asked for.
EXPERIMENTS = {
    "heads": "One head against four of the same width: memorising, several retrievals, a single one.",
    "induction": "When induction heads form in two layers, what they do, and why one layer has none.",
    "sharing": "MHA, GQA, MQA and MLA at equal width and at equal parameters: held-out loss against cache bytes.",
    "windows": "Local and global heads in one layer: recall from near and far against cache bytes and pairs.",
    "pruning": "How many heads go before the loss moves, one at a time and jointly; zeroed against cut out.",
}


def check_name(name: str) -> None:
    """Refuse a name that is none.

    Raises:
        UserError: there is no such experiment.
    """
    if name not in EXPERIMENTS:
        raise UserError(f"experiment: expected one of {', '.join(EXPERIMENTS)}, got {name[:60]!r}")


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse what gives no interval, and what never ends.

    Raises:
        UserError: fewer than two different seeds, or more than a thousand.
    """
    # Those of a range differ: no need to make a set, which memory may not hold.
    check_seed_count(len(seeds) if isinstance(seeds, range) else len(set(seeds)))


def check_seed_count(count: int) -> None:
    """The same, for so many different seeds.

    Raises:
        UserError: fewer than two, or more than a thousand.
    """
    if count < 2:
        raise UserError(
            f"experiment: expected 2 seeds or more, for intervals over them, got {count}; give --seeds {ENOUGH_SEEDS}"
        )
    if count > MOST_SEEDS:
        raise UserError(
            f"experiment: expected {MOST_SEEDS:,} seeds or fewer, since all their runs are held in memory and take "
            f"seconds to minutes a seed, got {count}; give --seeds {ENOUGH_SEEDS}, or {MOST_SEEDS} at most"
        )


def load_experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        UserError: there is none.
    """
    check_name(name)
    experiment: Experiment = import_module(f"{__name__}.{name}").EXPERIMENT
    return experiment
