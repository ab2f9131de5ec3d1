"""How fast each pair of a rotary embedding turns, and how that is stretched for contexts longer than those of training.

Symbols: ``m`` pairs, that is half the rotated width; ``theta_i = base ** (-2 * i / (2 * m))`` radians per position.
Scaling is given as a dictionary in the form of a Hugging Face config (``rope_parameters``, ``rope_scaling``), without
``rope_theta`` and ``partial_rotary_factor``, which are the arguments ``base`` and ``rotary_dim`` here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Frequencies", "Scaling", "rotary_frequencies", "yarn_magnitude"]

# Keys that a scaling of each type needs, and keys that it may have.
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_YARN = ("factor", "original_max_position_embeddings")
_YARN_OPTIONS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "llama3": (_LLAMA3, ()),
    "yarn": (_YARN, _YARN_OPTIONS),
}


class Frequencies(NamedTuple):
    """What a rotary embedding turns by.

    Attributes:
        inverse: ``[m]``, radians per position.
        magnitude: factor of the rotated vectors (YaRN's attention factor), 1 without.
    """

    inverse: Tensor
    magnitude: float


class Scaling:
    """A checked scaling: its type and its numbers.

    Raises:
        TypeError: ``given`` is no dictionary, or a number is none.
        ValueError: the type is unknown, or a key is missing, unknown or out of range.
    """

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"scaling: expected a dictionary such as {{'rope_type': 'llama3', ...}}, got {given!r}")
        numbers = {name: value for name, value in (given or {}).items() if value is not None}
        # Older configs say `type`; newer ones may say both.
        older = numbers.pop("type", "default")
        self.kind = str(numbers.pop("rope_type", older))
        self.numbers = numbers
        self._check_keys()
        for name, number in numbers.items():
            _check_number(name, number)
        low, high = (numbers.get(name) for name in ("low_freq_factor", "high_freq_factor"))
        if low is not None and high is not None and low >= high:
            raise ValueError(f"scaling: expected low_freq_factor below high_freq_factor, got {low} and {high}")

    def _check_keys(self) -> None:
        if self.kind not in _KEYS:
            raise ValueError(
                f"scaling: expected rope_type to be one of {', '.join(_KEYS)}, got {self.kind!r}, which headwise does "
                "not know; run the model through transformers instead"
            )
        needed, possible = _KEYS[self.kind]
        missing = [name for name in needed if name not in self.numbers]
        unknown = [name for name in self.numbers if name not in needed + possible]
        if missing or unknown:
            problem = f"no {', '.join(missing)}" if missing else f"also {', '.join(unknown)}"
            known = ", ".join(needed + possible) or "nothing else"
            raise ValueError(f"scaling: expected {known} with rope_type {self.kind!r}, got {problem}")

    def get(self, name: str, default: Any) -> Any:
        """A number of the scaling, or ``default`` where it isn't given."""
        return self.numbers.get(name, default)


def _check_number(name: str, number: object) -> None:
    if name == "truncate":
        if not isinstance(number, bool):
            raise TypeError(f"scaling: expected {name} to be True or False, got {number!r}")
        return
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"scaling: expected {name} to be a number, got {number!r}")
    # A magnitude of 0 means "not used" in configs; everything else divides or counts.
    size = float(number)
    allowed = size >= 0 if name in ("mscale", "mscale_all_dim") else size > 0
    if not allowed or not math.isfinite(size):
        raise ValueError(f"scaling: expected {name} to be a positive number, got {number!r}")


def rotary_frequencies(width: int, base: float, scaling: Scaling, dtype: torch.dtype = torch.float32) -> Frequencies:
    """The frequencies of the ``width / 2`` pairs, computed on the CPU in ``dtype``.

    Source: Su et al. 2021 (arXiv:2104.09864), section 3.2.2, with pairs counted from 0; position interpolation: Chen
    et al. 2023 (arXiv:2306.15595); YaRN: Peng et al. 2023 (arXiv:2309.00071); Llama 3: Grattafiori et al. 2024
    (arXiv:2407.21783) and the numbers in its checkpoints.
    """
    exponents = torch.arange(0, width, 2, dtype=dtype, device="cpu") / width
    powers = base**exponents  # [m]
    inverse = 1.0 / powers
    if scaling.kind == "linear":
        return Frequencies(inverse / scaling.numbers["factor"], 1.0)
    if scaling.kind == "llama3":
        return Frequencies(_llama3(inverse, scaling), 1.0)
    if scaling.kind == "yarn":
        return Frequencies(_yarn(powers, base, scaling), _yarn_attention_factor(scaling))
    return Frequencies(inverse, 1.0)


def _llama3(inverse: Tensor, scaling: Scaling) -> Tensor:
    """Slow pairs are slowed down by ``factor``, fast ones stay, and those between are blended."""
    factor, low, high, trained = (scaling.numbers[name] for name in _LLAMA3)
    wavelength = 2 * math.pi / inverse
    kept = (trained / wavelength - low) / (high - low)  # 0 where a pair turns `low` times in training, 1 at `high`
    blended = (1 - kept) * inverse / factor + kept * inverse
    slow, fast = wavelength > trained / low, wavelength < trained / high
    return torch.where(slow, inverse / factor, torch.where(fast, inverse, blended))


def _yarn(powers: Tensor, base: float, scaling: Scaling) -> Tensor:
    """Pairs that turn often in training stay, slow ones are interpolated, with a ramp over the pairs between."""
    width = 2 * len(powers)
    factor, trained = (scaling.numbers[name] for name in _YARN)

    def pair_that_turns(times: float) -> float:
        return width * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair_that_turns(scaling.get("beta_fast", 32)), pair_that_turns(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    pairs = torch.arange(len(powers), dtype=powers.dtype, device="cpu")
    kept = 1 - ((pairs - first) / (last - first or 0.001)).clamp(0, 1)  # a ramp of length 0 is a step
    return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept


def _yarn_attention_factor(scaling: Scaling) -> float:
    given = scaling.get("attention_factor", None)
    if given is not None:
        return float(given)
    factor, one, other = (scaling.get(name, 0) for name in ("factor", "mscale", "mscale_all_dim"))
    if one and other:
        return yarn_magnitude(factor, one) / yarn_magnitude(factor, other)
    return yarn_magnitude(factor)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """``0.1 * weight * ln(factor) + 1``, by which YaRN enlarges queries and keys; 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
