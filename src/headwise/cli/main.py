"""The command `headwise`: one table of subcommands, each loaded only when it is run.

A subcommand NAME is the function NAME in the module named in the table, with its options as typer annotations. That
module is imported when the subcommand runs or shows its own help, never for `headwise --help`; keep it light all the
same, and import torch and the like inside the functions that need them.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from headwise import __version__
from headwise.cli.bounds import check_bounds
from headwise.cli.errors import report_errors, short, split_debug
from headwise.cli.quick import read_quickly
from headwise.errors import UserError

__all__ = ["COMMANDS", "main"]

# Name -> (module, one line for `headwise --help`), in the order in which help lists them.
COMMANDS = {
    "study": ("headwise.cli.study", "Read every head of a model: what it does, and if it matters."),
    "plan": ("headwise.cli.plan", "Say what a head layout costs: bytes, FLOPs, and how much fits."),
    "inspect": ("headwise.cli.inspect", "Show a model's layouts, and which others each format can hold."),
    "prune": ("headwise.cli.prune", "Remove heads, and write the smaller model."),
    "convert": ("headwise.cli.convert", "Let more query heads share a key and value head."),
    "uptrain": ("headwise.cli.uptrain", "Train a reshaped model shortly against the original."),
    "verify": ("headwise.cli.verify", "Compare two models: loss, copying, cache, speed."),
    "bench": ("headwise.cli.bench", "Put head layouts side by side: cache, FLOPs, latency, memory."),
    "experiment": ("headwise.cli.experiment", "Train small models from many seeds to answer a question."),
    "report": ("headwise.cli.report", "Turn a study into one page that opens without a network."),
    "doctor": ("headwise.cli.doctor", "Show versions, processor, memory bandwidth, what is missing."),
}

_SHOWN = 3  # values of an option that was repeated

app = typer.Typer(
    add_completion=False, rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]}
)


class _Once(TyperCommand):
    """A command that refuses an option of one value that is given twice, where the last would count without a word.

    What is out of bounds for every command is refused here as well.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, list(args))  # first, since it shows help and tells other mistakes
        collecting = copy.copy(self)
        collecting.params = [_collecting(option) for option in self.params]
        found, _, _ = collecting.make_parser(ctx).parse_args(list(args))
        for option in filter(_is_single, self.params):
            values = found.get(option.name) or ()
            if len(values) > 1:
                told = ", ".join(map(short, values[:_SHOWN])) + (", …" if len(values) > _SHOWN else "")
                raise UserError(
                    f"{' / '.join(option.opts)}: expected once, got it {len(values)} times ({told}); keep one of them"
                )
        check_bounds(ctx.params)
        return rest


def _is_single(option: Any) -> bool:
    """Whether it is an option whose value the next one replaces; flags and counts say no more by being repeated."""
    takes_value = option.param_type_name == "option" and not (option.is_flag or option.count)
    return takes_value and not option.multiple


def _collecting(option: Any) -> Any:
    """The same option, which keeps all values that it is given."""
    if not _is_single(option):
        return option
    kept = copy.copy(option)
    kept.multiple = True
    return kept


class _LazyCommand(TyperCommand):
    """Stands for a subcommand in help; imports its module only when the subcommand itself is asked for."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary, short_help=summary)
        self.module = module

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        # The context carries the real command, and the group invokes what the context carries.
        command = self._load()
        try:
            return command.make_context(info_name, args, parent=parent, **extra)
        except Exception as error:
            # An option without its value is found before there is a context, and help would be that of `headwise`.
            if getattr(error, "ctx", parent) is None:
                error.ctx = typer.Context(command, parent=parent, info_name=info_name)  # type: ignore[attr-defined]
            raise

    def _load(self) -> Any:
        name = str(self.name)
        function = getattr(import_module(self.module), name)
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(name, cls=_Once, context_settings={"help_option_names": ["-h", "--help"]})(function)
        return typer.main.get_command(single)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headwise {__version__}")
        raise typer.Exit()


@app.callback(no_args_is_help=False)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; it may also follow the subcommand.")
    ] = False,
) -> None:
    """Size, run, read and reshape the attention heads of transformers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: the words after `headwise`; None: those of this process.

    Returns:
        0 done, 1 a check that was asked for fell short, 2 wrong input, 70 a bug in headwise, 130 interrupted.
    """
    # torch's threads wait for each other by spinning; beside another busy program that costs ten times the work itself.
    # It is read when torch is loaded, so it must be said before any subcommand is.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words, debug = split_debug(sys.argv[1:] if arguments is None else arguments)
    return report_errors(lambda: _dispatch(words), debug=debug)


def _dispatch(words: list[str]) -> None:
    if words and words[0] in COMMANDS:
        function = getattr(import_module(COMMANDS[words[0]][0]), words[0])
        arguments = read_quickly(function, words[1:])
        if arguments is not None:
            check_bounds(arguments)
            function(**arguments)
            return
    group: Any = typer.main.get_command(app)
    for name, (module, summary) in COMMANDS.items():
        group.add_command(_LazyCommand(name, module, summary))
    # `group.main` would print errors in a form of its own and end the process.
    with group.make_context("headwise", words) as context:
        group.invoke(context)


if __name__ == "__main__":
    sys.exit(main())
