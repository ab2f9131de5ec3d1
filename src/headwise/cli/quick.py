"""Reading the words of a command without what typer loads to check them, which takes longer than planning a model.

Only plain words are read here: known options with plain values, each once. For everything else, help and mistakes
among it, the answer is None, and typer reads the words and says what it says.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

__all__ = ["read_quickly"]

_WHOLE, _NUMBER = re.compile(r"-?[0-9]{1,18}"), re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")


class _Unusual(Exception):
    """Something that is left to typer."""


class _Parameter:
    """One argument or option of a command."""

    def __init__(self, name: str, annotation: Any, default: Any) -> None:
        kind, info = _annotated(annotation)
        self.name, self.default = name, default
        self.repeated = get_origin(kind) is list
        self.type = get_args(kind)[0] if self.repeated else kind
        self.info = info
        # Beside an annotation the first name lies where typer keeps defaults otherwise.
        first = (info.default,) if isinstance(info.default, str) else ()
        self.words = (*first, *(info.param_decls or ()))
        if isinstance(info, OptionInfo) and not self.words and kind is not bool:  # a flag would get a counterpart
            self.words = (f"--{name.replace('_', '-')}",)
        self._check()

    def _check(self) -> None:
        """Only what the commands of headwise use is understood."""
        info, plain = self.info, type(self.info)()
        told = ("param_decls", "help", "metavar", "min", "max", "default", "show_default", "rich_help_panel", "hidden")
        if any(getattr(info, name) != getattr(plain, name) for name in vars(plain) if name not in told):
            raise _Unusual
        if self.type not in (str, int, float, bool, Path):
            raise _Unusual
        if isinstance(info, OptionInfo) and not all(word.startswith("-") and "/" not in word for word in self.words):
            raise _Unusual
        if isinstance(info, OptionInfo) == (not self.words) or (self.repeated and self.type is bool):
            raise _Unusual

    def value(self, word: str) -> Any:
        """The word as the type that the command wants."""
        if self.type in (str, Path):
            return self.type(word)
        pattern = _WHOLE if self.type is int else _NUMBER
        if self.type is bool or not pattern.fullmatch(word):
            raise _Unusual
        number = self.type(word)
        low, high = self.info.min, self.info.max
        if (low is not None and number < low) or (high is not None and number > high):
            raise _Unusual
        return number


def read_quickly(function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments that typer would call ``function`` with; None where that is for typer to say."""
    try:
        return _read(_parameters(function), list(words))
    except _Unusual:
        return None


def _parameters(function: Callable[..., Any]) -> list[_Parameter]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:  # annotations that only type checkers can read
        raise _Unusual from None
    told = inspect.signature(function).parameters.values()
    return [_Parameter(each.name, hints.get(each.name), each.default) for each in told]


def _annotated(annotation: Any) -> tuple[Any, ParameterInfo]:
    """The type, without None, and what typer is told of it."""
    if get_origin(annotation) is Union:  # Python 3.10 puts Optional around the annotation of what defaults to None
        annotation = get_args(annotation)[0]
    extras = [extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, ParameterInfo)]
    if len(extras) != 1:
        raise _Unusual
    kind = get_args(annotation)[0]
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [each for each in get_args(kind) if each is not type(None)]
        kind = kinds[0] if len(kinds) == 1 else None
    return kind, extras[0]


def _read(parameters: list[_Parameter], words: list[str]) -> dict[str, Any]:
    options = {word: each for each in parameters for word in each.words if isinstance(each.info, OptionInfo)}
    places = [each for each in parameters if isinstance(each.info, ArgumentInfo)]
    found: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            if not places:
                raise _Unusual
            each = places.pop(0)
            found[each.name] = each.value(word)
            continue
        name, sign, value = word.partition("=")
        _take(found, options.get(name), value if sign else None, words)
    return {each.name: _result(each, found) for each in parameters}


def _take(found: dict[str, Any], option: _Parameter | None, value: str | None, words: list[str]) -> None:
    """Put the option's value among those found; it may be the next word."""
    if option is None or (option.name in found and not option.repeated):
        raise _Unusual
    if option.type is bool:
        if value is not None:
            raise _Unusual
        found[option.name] = True
        return
    if value is None:
        if not words or words[0].startswith("-"):
            raise _Unusual
        value = words.pop(0)
    if option.repeated:
        found.setdefault(option.name, []).append(option.value(value))
    else:
        found[option.name] = option.value(value)


def _result(parameter: _Parameter, found: dict[str, Any]) -> Any:
    if parameter.name not in found and parameter.default is inspect.Parameter.empty:
        raise _Unusual
    return found.get(parameter.name, parameter.default)
