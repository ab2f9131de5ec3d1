"""How the command line fails: one line on standard error and an exit code that says of which kind it was."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import typer

from headwise.errors import UserError

__all__ = ["BUG", "INTERRUPTED", "PIPE_CLOSED", "WRONG_INPUT", "report_errors", "short", "split_debug"]

WRONG_INPUT = 2  # what the person who typed the command can put right: words, files, folders, disk space
BUG = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells report it

# typer has carried this base class under several private paths; its public BadParameter always led up to it:
# BadParameter, then UsageError, then the base class of all that typer wants to tell a person.
_TYPER_MESSAGE: type[Exception] = typer.BadParameter.__mro__[2]


def split_debug(words: Sequence[str]) -> tuple[list[str], bool]:
    """Take `--debug` out of the words, wherever it stands before a `--`, and say whether tracebacks are wanted.

    The variable HEADWISE_DEBUG asks for them too, unless it is empty or 0.
    """
    end = words.index("--") if "--" in words else len(words)
    kept = [word for position, word in enumerate(words) if position >= end or word != "--debug"]
    return kept, len(kept) < len(words) or os.environ.get("HEADWISE_DEBUG", "") not in ("", "0")


def short(value: object) -> str:
    """A value as errors tell it: on one line, and not all of a long one."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def report_errors(action: Callable[[], object], *, debug: bool) -> int:
    """Run `action`; tell an error in one line on standard error; return the exit code.

    Args:
        action: what to run. It ends early, with a code of its own, by raising `typer.Exit`.
        debug: whether the traceback goes before the line.
    """
    try:
        if sys.stdout is None:  # closed, as by `>&-`: told before work whose answer nobody would see
            raise UserError("standard output is closed, expected one to print to; leave out >&-, or give a file")
        action()
        # Here, not when Python ends: a full disk or a closed pipe behind standard output must count as a failure.
        sys.stdout.flush()
        return 0
    except typer.Exit as exit_request:
        return exit_request.exit_code
    except BrokenPipeError:
        return PIPE_CLOSED  # the reader has gone, as in `headwise doctor | head -1`: there is no one to tell
    except (KeyboardInterrupt, typer.Abort):
        _tell("interrupted")
        return INTERRUPTED
    except Exception as error:
        if debug and sys.stderr is not None:
            traceback.print_exc(file=sys.stderr)
        line, code = _explain(error, debug=debug)
        _tell(line)
        return code
    finally:
        _drop_unwritable_output()


def _explain(error: Exception, *, debug: bool) -> tuple[str, int]:
    """The line that tells `error`, and its exit code."""
    if isinstance(error, UserError):
        return str(error), WRONG_INPUT
    if isinstance(error, _TYPER_MESSAGE):
        return _usage_line(error), WRONG_INPUT
    if isinstance(error, OSError):
        return _system_line(error), WRONG_INPUT
    if isinstance(error, MemoryError):
        return "this machine is out of memory; close other programs, or ask for less at a time", WRONG_INPUT
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("headwise"):
        package = str(error.name).partition(".")[0]
        return f"expected the package {package}, it is not installed; pip install {package}", WRONG_INPUT
    advice = "the traceback is above" if debug else "run the same command again with --debug to see where"
    return f"this is a bug in headwise: {type(error).__name__}: {error}; {advice}", BUG


def _usage_line(error: Exception) -> str:
    """typer's message for a wrong word or option, with the help command that lists the right ones."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = "headwise" if context is None else context.command_path
    # After the name of the program that `_tell` puts in front only the subcommand is news.
    subcommand = command.removeprefix("headwise").strip()
    where = f"{subcommand}: " if subcommand else ""
    joint = " " if message.endswith("?") else "; "
    return f"{where}{message.rstrip('.')}{_got(error, message)}{joint}{command} --help lists what it takes"


def _got(error: Exception, message: str) -> str:
    """What was typed, where typer's message leaves it out: it does so for numbers, and keeps the reason as a cause."""
    list_reasons = getattr(error.__cause__, "errors", None)
    reasons = list_reasons() if callable(list_reasons) else []
    if not reasons or "input" not in reasons[0]:
        return ""
    # The first reason is the one in the message.
    told = repr(short(reasons[0]["input"]))
    return "" if told in message else f", got {told}"


def _system_line(error: OSError) -> str:
    """What the operating system refused, for which file, and what helps."""
    advice = {
        errno.ENOSPC: "; free some space, or write to another place",
        errno.EDQUOT: "; free some space, or write to another place",
        errno.EACCES: "; change its permissions, or choose another place",
        errno.EPERM: "; change its permissions, or choose another place",
        errno.EROFS: "; choose a place that can be written",
        errno.ENOENT: "; check the spelling",
    }.get(error.errno or 0, "")
    if error.strerror is None:
        return f"{type(error).__name__}: {error}"
    file = "" if error.filename is None else f": {error.filename}"
    return f"{error.strerror}{file}{advice}"


def _tell(line: str) -> None:
    """Write `headwise: line` to standard error, on one line whatever the message holds."""
    if sys.stderr is None:  # print would take standard output instead
        return
    # Where standard error is closed or full as well, the exit code still tells.
    with contextlib.suppress(OSError):
        print(f"headwise: {' '.join(line.split())}", file=sys.stderr, flush=True)


def _drop_unwritable_output() -> None:
    """Keep Python's last flush from complaining in words of its own about an output that can't be written."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
