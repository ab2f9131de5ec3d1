"""The runtimes by name. Each is imported when it is asked for: one question needs one policy."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from typing import Any

from headwise.plan.allocation import Runtime
from headwise.plan.errors import PlanError, shown

__all__ = ["RUNTIMES", "runtime_named"]

# Name -> (module, class).
RUNTIMES = {
    "logical": ("headwise.plan.runtimes.logical", "LogicalRuntime"),
    "transformers": ("headwise.plan.runtimes.transformers", "TransformersRuntime"),
    "vllm": ("headwise.plan.runtimes.vllm", "VllmRuntime"),
    "llamacpp": ("headwise.plan.runtimes.llamacpp", "LlamacppRuntime"),
    "sglang": ("headwise.plan.runtimes.sglang", "SglangRuntime"),
}


def runtime_named(name: str, /, **options: Any) -> Runtime:
    """The policy of that name.

    Args:
        name: one of ``RUNTIMES``.
        options: its own, such as ``block_size`` for ``vllm``; None stands for its default.

    Raises:
        PlanError: there is no such runtime, it has no such option, or the option's value is out of range.
    """
    if not isinstance(name, str) or name not in RUNTIMES:
        raise PlanError(f"--runtime: expected one of {', '.join(RUNTIMES)}, got {shown(name)}")
    module, kind = RUNTIMES[name]
    maker = getattr(import_module(module), kind)
    known = [option for option in signature(maker).parameters if option != "self"]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in known:
            offered = f"an option of it, one of {', '.join(known)}" if known else "no options, it has none"
            raise PlanError(f"{name}: expected {offered}, got {option}")
    runtime: Runtime = maker(**given)
    return runtime
