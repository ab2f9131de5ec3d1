"""`headwise verify`: two models side by side, as a table, as JSON, as a picture, or as a check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwise.bench.verification.limits import Shortfall
    from headwise.bench.verification.result import Verification
    from headwise.bench.verification.settings import Settings
    from headwise.bench.verification.texts import NamedCorpus

__all__ = ["verify"]

_MODEL = "A local folder, a hub id, a .gguf file, or demo"


def verify(
    first: Annotated[str, typer.Argument(help=f"The model as it was. {_MODEL}.", metavar="A")],
    second: Annotated[str, typer.Argument(help=f"What was made of it. {_MODEL}.", metavar="B")],
    documents: Annotated[
        list[Path] | None,
        typer.Option(
            "--documents",
            help="A corpus: a text file, a folder of them, or JSONL with text. May be given several times; takes the "
            "place of Python's help and docstrings.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Held-out tokens of each corpus.")] = 8_192,
    length: Annotated[int, typer.Option("--length", min=16, help="Tokens of each row.")] = 256,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed draws the same rows.")] = 0,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads for torch.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or bfloat16.")] = "float32",
    no_speed: Annotated[bool, typer.Option("--no-speed", help="Leave latency and peak memory out.")] = False,
    batches: Annotated[str, typer.Option("--batches", metavar="B,...", help="Sequences at once, for latency.")] = "1,8",
    contexts: Annotated[
        str, typer.Option("--contexts", metavar="TOKENS,...", help="Tokens of each, for latency: 512, 8k, ...")
    ] = "512,4k,8k",
    rounds: Annotated[
        int,
        typer.Option("--rounds", min=5, help="How many times each model decodes; of 5, B must win all to be faster."),
    ] = 9,
    prefill_tokens: Annotated[
        int, typer.Option("--prefill-tokens", min=1, help="Prefill of more (batch times context) is not timed.")
    ] = 4_096,
    max_loss_increase: Annotated[
        float | None, typer.Option("--max-loss-increase", help="Exit with 1 if B's loss is higher by more, in nats.")
    ] = None,
    min_agreement: Annotated[
        float | None,
        typer.Option("--min-agreement", min=0, max=1, help="Exit with 1 if fewer tokens are most likely in both."),
    ] = None,
    max_kl: Annotated[
        float | None, typer.Option("--max-kl", min=0, help="Exit with 1 if KL(A || B) is more, in nats.")
    ] = None,
    figure: Annotated[Path | None, typer.Option("--figure", help="Draw the result: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Compare two models: what B lost on text and of copying, what its cache takes, and whether it is faster.

    Only held-out documents are read. A limit holds for the mean over the documents of every corpus. B is called faster
    where a sign test over rounds that the two take by turns shows it at 5 %: 5 of 5 rounds won, or 8 of 9.

    [bold]Examples[/bold]

    headwise verify demo ./smaller

    headwise verify demo ./smaller --no-speed --max-loss-increase 0.1 --json > result.json

    headwise verify org/name ./smaller --documents texts/ --documents more.jsonl --figure result.svg
    """
    from headwise.cli.start import prepare

    settings = _settings(
        tokens=tokens, length=length, seed=seed, speed=not no_speed, batches=batches, contexts=contexts, rounds=rounds,
        prefill_tokens=prefill_tokens,
    )  # fmt: skip
    _check_words(dtype, figure)
    prepare(threads)
    from headwise.bench.verification.limits import Limits, find_shortfalls

    limits = Limits(max_loss_increase, min_agreement, max_kl)
    corpora = _corpora(documents or [])
    result = _run(first, second, corpora, settings, dtype)
    shortfalls = find_shortfalls(result, limits)
    _tell(result, corpora, limits, shortfalls, as_json)
    if figure is not None:  # last, since nothing that goes wrong with it may lose what was measured
        from headwise.report.verify_figure import draw_verification

        typer.echo(f"figure: {draw_verification(result, figure)}", err=True)
    if shortfalls:
        raise typer.Exit(1)


def _settings(*, batches: str, contexts: str, **others: Any) -> Settings:
    from headwise.bench.verification.settings import Settings
    from headwise.plan.units import parse_tokens

    return Settings(
        batches=_whole_numbers(batches),
        contexts=tuple(parse_tokens(word, "--contexts") for word in contexts.split(",")),
        **others,
    )


def _whole_numbers(batches: str) -> tuple[int, ...]:
    from headwise.errors import UserError

    try:
        return tuple(int(word) for word in batches.split(","))
    except ValueError:
        raise UserError(f"--batches: expected numbers of sequences, such as 1,8, got {batches[:60]!r}") from None


def _check_words(dtype: str, figure: Path | None) -> None:
    """What is wrong without any model is told before one is read."""
    from headwise.errors import UserError

    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"--dtype: expected float32 or bfloat16, got {dtype[:60]!r}")
    if figure is not None:
        from headwise.report.verify_figure import check_figure

        check_figure(figure)


def _corpora(documents: list[Path]) -> list[NamedCorpus]:
    from headwise.bench.verification.texts import read_corpora
    from headwise.cli.documents import tell_identical

    corpora = read_corpora(documents)
    for named in corpora if documents else []:
        tell_identical(named.corpus.identical_left_out, named.name)
    return corpora


def _run(first: str, second: str, corpora: list[NamedCorpus], settings: Settings, dtype: str) -> Verification:
    import torch

    from headwise.bench.verify import verify
    from headwise.cli.progress import Bar
    from headwise.models import load

    with Bar() as bar:
        models = []
        for source in (first, second):
            bar.stage(f"loading {source}")
            models.append(load(source, dtype=getattr(torch, dtype)))
        one, other = models
        return verify(one, other, corpora, settings=settings, sources=(first, second), progress=bar)


def _tell(
    result: Verification, corpora: list[NamedCorpus], limits: Any, shortfalls: list[Shortfall], as_json: bool
) -> None:
    if as_json:
        summary = result.summary()
        for told, named in zip(summary["corpora"], corpora, strict=True):
            told["identical_left_out"] = named.corpus.identical_left_out
        checks = {"limits": vars(limits), "shortfalls": [each.record() for each in shortfalls]}
        typer.echo(json.dumps(summary | checks, allow_nan=False))
    else:
        from headwise.cli.verify_tables import show_verification

        show_verification(result)
    for each in shortfalls:
        typer.echo(f"fell short: {each}", err=True)
