"""`headwise plan`: what a head layout costs, from a config alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwise.plan.answers import Plan
    from headwise.plan.compare import Comparison
    from headwise.plan.devices import Device

__all__ = ["plan"]


def plan(
    model: Annotated[
        str,
        typer.Argument(help="A folder, a config.json, a hub id, a .gguf file, or demo.", metavar="MODEL"),
    ] = "demo",
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="TOKENS",
            help="Of a sequence: 8192, or 8k (x 1,024), 1m; the most that the config allows without it.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Sequences at once.")] = 1,
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", help="How keys, values and latents are stored: bf16, f32, fp8, int8, q8_0, ...")
    ] = "bf16",
    value_dtype: Annotated[
        str | None, typer.Option("--value-dtype", help="How values are stored, if otherwise.")
    ] = None,
    state_dtype: Annotated[
        str | None, typer.Option("--state-dtype", help="How convolution and recurrent states are stored.")
    ] = None,
    runtime: Annotated[
        str, typer.Option("--runtime", help="logical, transformers, vllm, llamacpp or sglang.")
    ] = "logical",
    runtime_option: Annotated[
        list[str] | None, typer.Option("--runtime-option", metavar="NAME=VALUE", help="An option of the runtime.")
    ] = None,
    tp: Annotated[int, typer.Option("--tp", help="Ranks of tensor parallelism; bytes are those of one.")] = 1,
    encoder_length: Annotated[
        int | None, typer.Option("--encoder-length", help="Tokens of the encoder, for cross attention.")
    ] = None,
    speculative: Annotated[int, typer.Option("--speculative", help="Draft tokens that a step holds.")] = 0,
    shared_prefix: Annotated[
        int, typer.Option("--shared-prefix", help="Tokens that all sequences have in common.")
    ] = 0,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="SIZE", help="What fits into it? Of one rank, such as 24GiB.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="SIZE", help="All weights: a size, a folder or file, or model for its own."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", help="The least time of a decode step on it: h100-sxm and others, or here."),
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option("--bandwidth", metavar="GB/S", help="Instead of --device: how fast it reads.")
    ] = None,
    flop_rate: Annotated[
        float | None, typer.Option("--flop-rate", metavar="TFLOP/S", help="And how fast it multiplies.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Threads that --device here uses.")] = None,
    layouts: Annotated[
        str | None,
        typer.Option(
            "--compare", metavar="LAYOUTS", help="Layouts side by side: mha, gqa:8, mqa, mla:512+64, window:4096."
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="Of the comparison: table, csv or markdown.")] = "table",
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Draw the comparison into this .png, .svg or .pdf.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A field of the config, said by you.")
    ] = None,
    provenance: Annotated[bool, typer.Option("--provenance", help="Show where each number came from.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Say what a model's attention costs, to the byte: cache, parameters, FLOPs, and how much fits.

    Only the config is read, never the weights. Unknown architectures and missing fields are refused, not guessed.

    [bold]Examples[/bold]

    headwise plan demo --context 8192

    headwise plan ./my-model --runtime vllm --budget 24GiB --weights model

    headwise plan config.json --compare mha,gqa:8,mqa,mla:512+64,window:4096 --figure cache.png

    headwise plan org/name --context 131072 --batch 4 --kv-dtype fp8 --tp 2 --json
    """
    from headwise.plan import plan as make_plan
    from headwise.plan.units import parse_tokens

    _check_words(layouts, form, figure, as_json)
    made = make_plan(
        model,
        context=None if context is None else parse_tokens(context, "--context"),
        batch=batch,
        kv_dtype=kv_dtype,
        value_dtype=value_dtype,
        state_dtype=state_dtype,
        runtime=runtime,
        runtime_options=_pairs(runtime_option, "--runtime-option"),
        tp=tp,
        encoder_length=encoder_length,
        speculative=speculative,
        shared_prefix=shared_prefix,
        budget=budget,
        weights=weights,
        device=_device(device, bandwidth, flop_rate, threads),
        overrides=_pairs(overrides, "--set"),
    )
    comparison = None if layouts is None else _compared(made, layouts, figure)
    if as_json:
        record = made.as_dict() | ({} if comparison is None else {"compare": comparison.records()})
        typer.echo(json.dumps(record, allow_nan=False))
    else:
        _show(made, comparison, form, provenance)


def _check_words(layouts: str | None, form: str, figure: Path | None, as_json: bool) -> None:
    """What is wrong without any model is told before one is read."""
    from headwise.errors import UserError

    if form not in ("table", "csv", "markdown"):
        raise UserError(f"--format: expected table, csv or markdown, got {form[:60]!r}")
    if form != "table" and as_json:
        raise UserError(f"--format {form}: expected one form, got --json as well; leave one out")
    if layouts is None and (form != "table" or figure is not None):
        name = "--figure" if figure is not None else f"--format {form}"
        raise UserError(f"{name}: expected --compare with it; name the layouts, such as --compare mha,gqa:8,mqa")


def _pairs(words: list[str] | None, option: str) -> dict[str, Any]:
    """``NAME=VALUE`` as the types that JSON knows; what isn't JSON is a string."""
    from headwise.errors import UserError

    pairs = {}
    for word in words or ():
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise UserError(f"{option}: expected NAME=VALUE, got {word[:60]!r}")
        try:
            pairs[name] = json.loads(value)
        except (ValueError, RecursionError):
            pairs[name] = value
    return pairs


def _device(name: str | None, bandwidth: float | None, flop_rate: float | None, threads: int | None) -> Device | None:
    from headwise.errors import UserError
    from headwise.plan.devices import Device, device_named

    if threads is not None and name != "here":
        raise UserError("--threads: expected --device here with it, which is what runs on them; leave it out")
    if name is None and bandwidth is None and flop_rate is None:
        return None
    if name is not None:
        if bandwidth is not None or flop_rate is not None:
            raise UserError("--device: expected a device or its --bandwidth and --flop-rate, got both; leave one out")
        return device_named(name, threads)
    if bandwidth is None:
        raise UserError("--flop-rate: expected --bandwidth with it; a decode step mostly reads")
    return Device(
        "given",
        _rate(bandwidth, 10**9, "--bandwidth"),
        None if flop_rate is None else _rate(flop_rate, 10**12, "--flop-rate"),
        "given with --bandwidth" if flop_rate is None else "given with --bandwidth and --flop-rate",
    )


def _rate(value: float, unit: int, option: str) -> int:
    from headwise.errors import UserError

    if not 1e-3 <= value <= 1e9:  # NaN is refused as well
        raise UserError(f"{option}: expected a number from 0.001 to 1000000000, got {value}")
    return round(value * unit)


def _compared(made: Plan, layouts: str, figure: Path | None) -> Comparison:
    from headwise.plan.compare import compare

    comparison = compare(made, layouts)
    if figure is not None:
        from headwise.plan.figure import draw_comparison

        typer.echo(f"figure: {draw_comparison(comparison, figure)}", err=True)
    return comparison


def _show(made: Plan, comparison: Comparison | None, form: str, provenance: bool) -> None:
    if comparison is not None and form != "table":
        typer.echo(comparison.csv() if form == "csv" else comparison.markdown(), nl=False)
        return
    from headwise.cli.plan_tables import show_comparison, show_plan, show_provenance

    if comparison is None:
        show_plan(made)
    else:
        show_comparison(comparison)
    if provenance:
        show_provenance(made)
