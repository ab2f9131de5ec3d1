"""Turning what transformers, safetensors and the hub raise for a wrong checkpoint into one line.

They raise dozens of types for wrong input, from ``KeyError`` to ``ZeroDivisionError``, and often several lines of
advice for people who write code. A person who typed a path gets who refuses, what is wrong, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headwise.errors import UserError

__all__ = ["NO_TOKENIZER", "one_line", "refusing"]

_LONGEST = 300
# Types whose names would tell a person nothing; the text says it.
_PLAIN = (OSError, ValueError, RuntimeError, ImportError, NotImplementedError)

_OFFLINE = (
    "no local folder, and neither in the local cache nor to be had from the hub (offline, or no answer within two "
    "seconds); check the spelling and the connection, or give a local folder"
)
NO_TOKENIZER = "no tokenizer files there; copy tokenizer.json beside the weights"

# What is looked for in the error and in what it was raised from: names of types, or pieces of text. First hit counts.
_BY_TYPE = {
    "GatedRepoError": "the hub gives it to logged-in users who accepted its terms only; log in with: hf auth login",
    "RepositoryNotFoundError": (
        "no local folder, and no public model of that name on the hub; check the spelling, or log in if it is private"
    ),
    "OfflineModeIsEnabled": _OFFLINE,
    "LocalEntryNotFoundError": _OFFLINE,
    "ConnectError": _OFFLINE,
    "ConnectionError": _OFFLINE,
    "ConnectTimeout": _OFFLINE,
    "ProxyError": _OFFLINE,
    "SafetensorError": "a damaged safetensors file ({text}); copy it again, it may be cut short",
}
_BY_TEXT = {
    "trust_remote_code": (
        "it brings model code of its own, which headwise never runs; only architectures that the installed "
        "transformers has built in are read"
    ),
    "does not recognize this architecture": (
        "an architecture that the installed transformers does not have built in ({text}); "
        "a newer transformers may know it"
    ),
    "Couldn't instantiate the backend tokenizer": NO_TOKENIZER,
    "couldn't find them in the cached files": _OFFLINE,
}


def one_line(error: BaseException) -> str:
    """An error's text on one line of bearable length; with its type where the text alone says nothing."""
    text = " ".join(str(error).split())
    if not isinstance(error, _PLAIN) or not text:
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


@contextmanager
def refusing(name: str, what: str) -> Iterator[None]:
    """Everything that goes wrong inside the block means that the checkpoint's ``what`` cannot be used.

    Args:
        name: what the caller asked for.
        what: which part of it is being read, for instance ``config``.

    Raises:
        UserError: in place of any other exception, raised from it.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{name}: cannot read the {what}: {_explained(error)}") from error


def _explained(error: BaseException) -> str:
    kinds = {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}
    texts = " ".join(str(link) for link in _chain(error))
    hits = [told for kind, told in _BY_TYPE.items() if kind in kinds]
    hits += [told for piece, told in _BY_TEXT.items() if piece in texts]
    return hits[0].format(text=one_line(error)) if hits else one_line(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
