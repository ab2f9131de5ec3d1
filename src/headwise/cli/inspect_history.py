"""What was done to a model, in words: one line for each operation that its ``headwise.json`` tells of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headwise.cli.signs import signed

__all__ = ["step_words"]

Step = Mapping[str, Any]
_LONGEST = 60


def step_words(step: Step) -> str:
    """One step of a history, without the name of its operation.

    What headwise does not know, or finds otherwise than it writes it, is told field by field.
    """
    describe = _WORDS.get(str(step.get("operation")))
    if describe is not None:
        try:
            return "; ".join(part for part in describe(step) if part)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            pass
    fields = (f"{name} {_field(told)}" for name, told in step.items() if name not in ("operation", "headwise"))
    return ", ".join(fields)


def _field(told: Any) -> str:
    if isinstance(told, list | dict):
        return f"({len(told):,})"
    text = " ".join(str(told).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _convert(step: Step) -> Iterable[str]:
    yield f"KV heads of a layer {_numbers(step['kv_heads_before'])} → {step['kv_heads']:,}"
    how = [f"method {step['method']}", f"{step['grouping']} groups"]
    how += ["output refitted"] * bool(step["refit"])
    if step["steps"]:
        how.append(f"each layer fitted in {step['steps']:,} steps, rate {step['rate']:g}")
    yield ", ".join(how)
    yield _text(step)
    yield f"seed {step['seed']}, {step['seconds']:,.0f} s"


def _convert_to_latent(step: Step) -> Iterable[str]:
    yield f"keys and values → latents of rank {step['rank']:,} with {step['rope']:,} rotary dimensions"
    yield _text(step)
    yield f"seed {step['seed']}"


def _prune(step: Step) -> Iterable[str]:
    heads, layers = step["heads"], len(step["removed"])
    yield f"{_count(heads, 'query head')} removed from {_count(layers, 'layer')}"
    if "score" in step:
        units = {"group": "KV groups", "head": "query heads"}[step["unit"]]
        spread = ", as many from every layer" * bool(step["uniform"])
        yield f"those {units} that score least by {step['score']}{spread}, seed {step['seed']}"
    else:
        yield "as they were named"
    recovered = [one["share"] for one in step["recovered"].values()]
    if step["compensated"]:
        mean = sum(recovered) / len(recovered)
        yield f"compensated, which recovers {mean:.0%} of what they gave (mean of the layers)"
    else:
        yield "not compensated"
    yield _text(step)


def _uptrain(step: Step) -> Iterable[str]:
    settings, loss = step["settings"], step["loss"]
    what = {"attention": "attention's weights", "all": "all weights"}[settings["params"]]
    yield f"{what} trained against {_field(step['teacher']['name'])} by {settings['loss']}"
    yield f"{_text(step)} in batches of {settings['batch']:,}, rate {settings['rate']:g}, seed {settings['seed']}"
    change = signed(loss["end"]["value"] - loss["start"]["value"], "+.3f")
    start, end, teacher = (f"{loss[name]['value']:.3f}" for name in ("start", "end", "teacher"))
    yield f"held-out loss {start} → {end} ({change}), the teacher's {teacher}"
    yield f"{step['seconds']:,.0f} s"


def _permute(step: Step) -> Iterable[str]:
    yield "heads in another order, the same function"
    yield "orders given" if "orders" in step else f"at random, seed {step['seed']}"


def _rotate(step: Step) -> Iterable[str]:
    if "maps" in step:
        yield "heads in other bases, the same function; maps given"
        return
    changed = [name for name, part in (("queries and keys", "keys"), ("values and outputs", "values")) if step[part]]
    yield f"bases of {' and of '.join(changed) or 'nothing'} changed, the same function"
    yield f"{'stretched too' if step['general'] else 'rotations only'}, at random, seed {step['seed']}"


def _degroup(step: Step) -> Iterable[str]:
    number = step["num_kv_heads"]
    yield f"KV heads of a layer → {'one for each query head' if number is None else number}, the same function"


def _fold_value_bias(_: Step) -> Iterable[str]:
    yield "value biases → output biases, the same function"


_WORDS: dict[str, Callable[[Step], Iterable[str]]] = {
    "convert": _convert,
    "convert_to_latent": _convert_to_latent,
    "prune": _prune,
    "uptrain": _uptrain,
    "permute": _permute,
    "rotate": _rotate,
    "degroup": _degroup,
    "fold_value_bias": _fold_value_bias,
}


def _text(step: Step) -> str:
    """What it was calibrated or trained on."""
    if not step["tokens"]:
        return "without text"
    from headwise.models.copies import is_copies

    rows = sum(is_copies(str(document)) for document in step["documents"])
    texts = _count(len(step["documents"]) - rows, "document")
    copies = f" and {_count(rows, 'row')} of random tokens" if rows else ""
    return f"{step['tokens']:,} tokens of {texts}{copies}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _numbers(numbers: Iterable[int]) -> str:
    different = sorted(set(numbers))
    return f"{different[0]:,}" if len(different) == 1 else f"{different[0]:,} to {different[-1]:,}"
