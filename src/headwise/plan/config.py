"""Reading a ``config.json``: every value checked, and where it came from kept.

A config is someone else's file. Each field is asked for under the names that it goes by, must have its type and a sane
size, and is never guessed: where a class of transformers has a default, a table says so (``defaults.py``); where
nothing does, the error names the field. A null that stands in the config is what it says, not a gap for a default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from headwise.plan.errors import PlanError, shown

__all__ = ["LARGEST", "Config"]

# No size of a model, in heads, elements, layers or tokens, is larger; larger ones are slips, and loops over them hang.
LARGEST = 1 << 40
MOST_LAYERS = 10_000

_Value = TypeVar("_Value")


class Config:
    """The fields of one config, or of a config nested in it.

    Args:
        data: the fields.
        defaults: for fields that the config may omit, the value that the model's class gives them. A value of None
            means: may be absent.
        source: whose defaults these are, such as ``LlamaConfig``.
        where: the name of the nested config, for messages; empty for the outermost.
        overrides: what the user says instead; it wins over the config, null as well.
        asked: names that were asked for so far; a nested config adds to its outer one's.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        *,
        source: str = "",
        where: str = "",
        overrides: Mapping[str, Any] | None = None,
        asked: set[str] | None = None,
    ) -> None:
        self.data, self.where, self.source = data, where, source
        self._defaults, self._overrides = dict(defaults or {}), dict(overrides or {})
        self._asked: set[str] = set() if asked is None else asked
        self._withheld: Collection[str] = ()
        self.provenance: dict[str, str] = {}

    @property
    def model_type(self) -> str:
        """What the config calls its architecture."""
        return self.text("model_type")

    def whole(self, *names: str, least: int = 1, most: int = LARGEST) -> int:
        """A whole number under the first of ``names`` that has one.

        Raises:
            PlanError: none of the names has a value, or it isn't a whole number from ``least`` to ``most``.
        """
        return self._required(names, self._whole(least, most), "a whole number")

    def maybe_whole(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """The same; None where every name is absent or null."""
        return self._optional(names, self._whole(least, most))

    def flag(self, *names: str) -> bool:
        """True or false. Raises PlanError as :meth:`whole`."""
        return self._required(names, _flag, "true or false")

    def maybe_flag(self, *names: str) -> bool | None:
        """The same; None where every name is absent or null."""
        return self._optional(names, _flag)

    def text(self, *names: str) -> str:
        """A non-empty string. Raises PlanError as :meth:`whole`."""
        return self._required(names, _text, "a string")

    def maybe_text(self, *names: str) -> str | None:
        """The same; None where every name is absent or null."""
        return self._optional(names, _text)

    def wholes(self, name: str, count: int | None = None, least: int = 0) -> tuple[int, ...]:
        """A list of whole numbers, of ``count`` entries if that is given. Raises PlanError as :meth:`whole`."""
        each = self._whole(least, LARGEST)
        return self._list(name, each, count, "a list of whole numbers")

    def pairs(self, name: str, count: int) -> tuple[tuple[int, int], ...]:
        """A list of ``count`` pairs of whole numbers from 1. Raises PlanError as :meth:`whole`."""
        each, kind = self._whole(1, LARGEST), "a list of pairs of whole numbers"

        def pair(value: object) -> tuple[int, int]:
            if not isinstance(value, (list, tuple)) or len(value) != 2:
                raise ValueError(kind)
            return each(value[0]), each(value[1])

        return self._list(name, pair, count, kind)

    def texts(self, name: str, count: int | None = None) -> tuple[str, ...]:
        """A list of strings. Raises PlanError as :meth:`whole`."""
        return self._list(name, _text, count, "a list of strings")

    def has(self, name: str) -> bool:
        """Whether the config itself or the user gives a value; a class default doesn't count."""
        self._asked.add(name)
        return self._overrides.get(name, self.data.get(name)) is not None

    def auto(self, name: str) -> bool:
        """Whether the field says ``auto``: to be computed from others."""
        self._asked.add(name)
        value = self._overrides.get(name, self.data.get(name, self._defaults.get(name)))
        return isinstance(value, str) and value == "auto"

    def nested(self, name: str, defaults: Mapping[str, Any] | None = None, *, source: str = "") -> Config:
        """The config that lies under ``name``.

        Raises:
            PlanError: there is none.
        """
        inner = self.data.get(name)
        if not isinstance(inner, Mapping):
            raise PlanError(f"{self.place(name)}: expected a nested config, got {shown(inner)}")
        return self._like(inner, defaults, source, self.place(name))

    def with_defaults(self, defaults: Mapping[str, Any], source: str, withheld: Collection[str] = ()) -> Config:
        """The same fields and overrides, with the defaults of another class; ``withheld`` says which it has besides."""
        made = self._like(self.data, defaults, source, self.where)
        made._withheld = withheld
        return made

    def named(self, model_type: str) -> Config:
        """The same fields under another ``model_type``."""
        return self._like({**self.data, "model_type": model_type}, self._defaults, self.source, self.where)

    def check_overrides(self) -> None:
        """Make sure that all that the user said was asked for: a slip in a name would give a wrong answer.

        Raises:
            PlanError: nothing asked for one of the fields, here or in a nested config.
        """
        for name in self._overrides:
            if name not in self._asked:
                near = get_close_matches(name, sorted(self._asked), n=3, cutoff=0.6)
                advice = f"near it are {', '.join(near)}" if near else "--provenance shows those that are"
                raise PlanError(
                    f"--set: expected a field that is read for this model, got {shown(name)}, which changes nothing; "
                    f"{advice}"
                )

    def place(self, name: str) -> str:
        """How messages call a field."""
        return f"{self.where}.{name}" if self.where else name

    def refuse(self, name: str, expected: str, advice: str = "") -> PlanError:
        """The error for a field whose value contradicts the rest, to be raised."""
        value = self._overrides.get(name, self.data.get(name, self._defaults.get(name)))
        return PlanError(f"{self.place(name)}: expected {expected}, got {shown(value)}{'; ' if advice else ''}{advice}")

    def derived(self, name: str, value: _Value, how: str) -> _Value:
        """Note that ``name`` was computed, and how; gives the value back."""
        self.provenance[name] = f"derived: {how}"
        return value

    def _like(self, data: Mapping[str, Any], defaults: Mapping[str, Any] | None, source: str, where: str) -> Config:
        """Other fields under the same overrides."""
        return Config(data, defaults, source=source, where=where, overrides=self._overrides, asked=self._asked)

    def _required(self, names: Sequence[str], check: Callable[[Any], Any], kind: str) -> Any:
        found = self._find(names)
        if found is None:
            also = f" (also known as {', '.join(names[1:])})" if len(names) > 1 else ""
            why = self._why_no_default(names)
            raise PlanError(f"{self.place(names[0])}: expected {kind}{also}, the config has none and {why}")
        return self._checked(found, check, names[0])

    def _why_no_default(self, names: Sequence[str]) -> str:
        name = next((name for name in names if name in self._withheld), None)
        if name is None:
            return "its class has no default"
        return f"the default of {self.source} is not taken for a size that makes up a model; say it with --set {name}=N"

    def _optional(self, names: Sequence[str], check: Callable[[Any], Any]) -> Any:
        found = self._find(names)
        return None if found is None else self._checked(found, check, names[0])

    def _list(self, name: str, check: Callable[[Any], Any], count: int | None, kind: str) -> tuple[Any, ...]:
        def each(value: object) -> tuple[Any, ...]:
            if not isinstance(value, (list, tuple)):
                raise ValueError(kind)
            if len(value) > MOST_LAYERS or (count is not None and len(value) != count):
                raise ValueError(f"{kind} with {count if count is not None else f'at most {MOST_LAYERS}'} entries")
            return tuple(check(entry) for entry in value)

        return self._required((name,), each, kind)

    def _find(self, names: Sequence[str]) -> tuple[str, Any, str] | None:
        """The field's own name, its value, and where that came from."""
        self._asked.update(names)
        for origin, fields in (("override", self._overrides), ("config", self.data)):
            for name in names:
                if fields.get(name) is not None:
                    return name, fields[name], origin
            if origin == "override" and any(name in fields for name in names):
                return None
        if any(name in self.data for name in names):
            return None
        for name in names:
            if self._defaults.get(name) is not None:
                return name, self._defaults[name], f"class default ({self.source})"
        return None

    def _checked(self, found: tuple[str, Any, str], check: Callable[[Any], Any], known_as: str) -> Any:
        name, value, origin = found
        try:
            checked = check(value)
        except ValueError as expected:
            raise PlanError(f"{self.place(name)}: expected {expected}, got {shown(value)}") from None
        self.provenance[known_as] = origin if origin != "config" else f"config {self.place(name)}"
        return checked

    @staticmethod
    def _whole(least: int, most: int) -> Callable[[Any], int]:
        def check(value: object) -> int:
            # A JSON writer of another language may turn 8 into 8.0, which is the same number.
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                limit = f"at least {least}" if most == LARGEST else f"from {least} to {most}"
                raise ValueError(f"a whole number {limit}" + (f" and at most {LARGEST}" if most == LARGEST else ""))
            return value

        return check


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a non-empty string")
    return value
