"""The compiled part, held against what Linux and Python tell; and the door to it where it isn't there."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import headwise
from headwise import native

built = pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
CPU_DESCRIPTION = Path("/proc/cpuinfo")
CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


@pytest.fixture
def without_native(monkeypatch):
    def refuse(name: str):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    native._open.cache_clear()
    monkeypatch.setattr(native, "import_module", refuse)
    yield
    native._open.cache_clear()


@built
@pytest.mark.skipif(not CPU_DESCRIPTION.exists(), reason="only Linux describes its processor in /proc/cpuinfo")
def test_extensions_are_those_that_linux_tells():
    description = CPU_DESCRIPTION.read_text()
    flags = re.search(r"^flags\s*:(.*)$", description, re.MULTILINE)
    if flags is None:
        pytest.skip("this processor has other flags than x86-64 ones")
    source = (Path(__file__).parents[1] / "native" / "cpu_features.cpp").read_text()
    asked = set(re.findall(r'^        \{"(\w+)", ', source, re.MULTILINE))
    assert {"sse4_2", "avx2", "avx512f", "amx_tile"} <= asked
    assert set(native.cpu_features().extensions) == asked & set(flags[1].split())


@built
def test_level_agrees_with_the_extensions():
    features = native.cpu_features()
    levels = {"x86-64": [], "x86-64-v2": ["sse4_2"], "x86-64-v3": ["avx2", "fma"], "x86-64-v4": ["avx512f", "avx512vl"]}
    if features.level not in levels:
        assert features.level in {"aarch64", "riscv", "ppc64", "s390x"}
        return
    assert set(levels[features.level]) <= set(features.extensions)
    higher = list(levels)[list(levels).index(features.level) + 1 :]
    assert all(not set(levels[level]) <= set(features.extensions) for level in higher[:1])


@built
@pytest.mark.skipif(not (CACHE_FOLDER / "index0").exists(), reason="this system does not describe its caches in /sys")
def test_cache_sizes_are_those_that_linux_tells():
    told = {"1": 0, "2": 0, "3": 0}
    for folder in CACHE_FOLDER.glob("index*"):
        if (folder / "type").read_text().strip() != "Instruction":
            kibibytes = re.fullmatch(r"(\d+)K", (folder / "size").read_text().strip())
            told[(folder / "level").read_text().strip()] = int(kibibytes[1]) * 1024
    sizes = native.cache_sizes()
    assert [sizes.l1_data, sizes.l2, sizes.l3] == list(told.values())


@built
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_word_is_read_by_one_thread(threads):
    words, repeats = 1009, 5  # a prime: the parts of the threads differ in length
    module = import_module("headwise._native")
    bytes_read, used, seconds, checksum = module.measure_read_bandwidth(threads, words * 8 + 5, repeats)
    assert (bytes_read, used, len(seconds)) == (words * 8, threads, repeats)
    assert checksum == repeats * sum(range(words))
    assert min(seconds) > 0


@built
@pytest.mark.parametrize("words", [0, 1, 2, 1009, 2**32 + 1, 2**33, 2**61 - 1])
def test_expected_checksum_is_the_sum_of_the_positions(words):
    module = import_module("headwise._native")
    assert module.expected_checksum(words * 8, 3) == 3 * (words * (words - 1) // 2) % 2**64


@built
def test_bandwidth_is_that_of_memory():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    result = native.read_bandwidth()
    assert result.threads == cores
    assert result.bytes_read >= max(256 << 20, 4 * native.cache_sizes().l3)
    # From a slow board to more than any processor of today: wrong units or an empty loop would fall outside.
    assert 0.2 < result.median <= result.best < 4000


@built
def test_other_threads_run_during_the_measurement():
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            ticks.append(time.perf_counter())

    ticker = threading.Thread(target=tick)
    ticker.start()
    start = time.perf_counter()
    native.read_bandwidth(1, buffer_bytes=256 << 20, repeats=9)
    end = time.perf_counter()
    stop.set()
    ticker.join()
    assert len([moment for moment in ticks if start < moment < end]) >= 10


@built
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the memory that the stacks of threads take")
def test_threads_that_the_system_refuses_are_an_error_and_no_wait():
    program = """
import resource
from headwise import native
native.is_built()
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    native.read_bandwidth(1000, buffer_bytes=1 << 20, repeats=1)
except RuntimeError as error:
    print("refused:", error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith("refused: Resource temporarily unavailable"), result.stderr


def test_speeds_are_bytes_over_seconds():
    result = native.ReadBandwidth(bytes_read=6_000_000_000, threads=1, seconds=(3.0, 2.0, 6.0))
    assert result.best == 3.0
    assert result.median == 2.0


@built
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"threads": 0}, "threads=0, repeats=7 and buffer_bytes=4096"),
        ({"threads": 1, "repeats": 0}, "threads=1, repeats=0 and buffer_bytes=4096"),
        ({"threads": 513}, "threads=513, repeats=7 and buffer_bytes=4096"),
    ],
)
def test_a_measurement_that_can_not_be_made_is_refused(arguments, told):
    message = f"read_bandwidth: expected at least 1 thread, 1 repeat and a buffer of 8 bytes per thread, got {told}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        native.read_bandwidth(**arguments, buffer_bytes=4096)


@built
def test_the_compiled_part_refuses_it_as_well():
    module = import_module("headwise._native")
    message = "expected at least 1 thread, 1 repeat and 8 bytes per thread, got 0 threads, 1 repeats and 64 bytes"
    with pytest.raises(ValueError, match=message):
        module.measure_read_bandwidth(0, 64, 1)


def test_a_time_without_all_the_reads_is_refused(monkeypatch):
    broken = SimpleNamespace(
        measure_read_bandwidth=lambda threads, buffer_bytes, repeats: (buffer_bytes, threads, [1.0], 41),
        expected_checksum=lambda bytes_read, repeats: 42,
    )
    monkeypatch.setattr(native, "_open", lambda: broken)
    with pytest.raises(RuntimeError, match="the sum of the words read is wrong"):
        native.read_bandwidth(1, buffer_bytes=64, repeats=1)


@pytest.mark.usefixtures("without_native")
def test_without_the_compiled_part_the_door_says_how_to_get_it():
    assert not native.is_built()
    how = "install a C++20 compiler (GCC 11, Clang 14, MSVC 2022 or newer) and install headwise again "
    assert native.status_line().startswith(
        f"native part: not built (this installation was made without it); to get it, {how}"
    )
    tensor = SimpleNamespace(device=SimpleNamespace(type="cpu"), dtype="torch.float32")
    decode = partial(native.decode_attention, tensor, tensor, tensor, tensor, offsets=[0], scale=1.0)
    for question in (native.cpu_features, native.cache_sizes, native.read_bandwidth, native.instruction_sets, decode):
        with pytest.raises(native.NativeMissingError, match=re.escape(how)) as caught:
            question()
        assert str(caught.value).startswith("headwise.native: expected the compiled part headwise._native, got none")


def test_a_compiled_part_that_does_not_load_is_told_with_its_reason(monkeypatch):
    def refuse(name: str):
        raise ImportError("GLIBC_2.99 not found")

    native._open.cache_clear()
    monkeypatch.setattr(native, "import_module", refuse)
    try:
        assert "GLIBC_2.99 not found" in native.status_line()
    finally:
        native._open.cache_clear()


@built
def test_instruction_sets_are_those_that_the_processor_has():
    needed = {"baseline": set(), "avx2": {"avx2", "fma", "f16c"}, "neon": {"neon"}}
    needed["avx512"] = needed["avx2"] | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    needed["avx512_bf16"] = needed["avx512"] | {"avx512_bf16"}
    extensions = set(native.cpu_features().extensions)
    assert set(native.instruction_sets()) == {name for name, needs in needed.items() if needs <= extensions}
    assert native.instruction_sets()[0] == "baseline"


@built
def test_type_checkers_see_what_the_compiled_part_exports():
    stub = ast.parse((Path(headwise.__file__).parent / "_native.pyi").read_text())
    declared = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    exported = {name for name in vars(import_module("headwise._native")) if not name.startswith("_")}
    assert declared == exported
