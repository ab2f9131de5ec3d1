"""Measuring: paired times of rival ways to do the same work, and the machine on which they were taken."""

from headwise.bench.environment import environment_record, package_versions
from headwise.bench.timing import PairedTimes, measure_paired

__all__ = ["PairedTimes", "environment_record", "measure_paired", "package_versions"]
