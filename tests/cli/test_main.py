"""The table of subcommands and how the command line fails."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from importlib import import_module
from types import SimpleNamespace

import pytest
import typer

from headwise import __version__
from headwise.cli import main as command_line
from headwise.cli.errors import split_debug
from headwise.cli.main import COMMANDS, main
from headwise.errors import UserError

HEADWISE = [sys.executable, "-m", "headwise.cli.main"]


@pytest.fixture
def failing(monkeypatch):
    """A subcommand `fail` that raises what the test puts into it."""
    box = SimpleNamespace(error=None)

    def fail(note: str = typer.Option("", "--note")) -> None:
        print("before the error")
        raise box.error

    loaded = {"fake": SimpleNamespace(fail=fail)}
    monkeypatch.setattr(command_line, "import_module", lambda name: loaded.get(name) or import_module(name))
    monkeypatch.setitem(COMMANDS, "fail", ("fake", "Fail."))
    monkeypatch.delenv("HEADWISE_DEBUG", raising=False)
    return box


def test_help_lists_every_command_on_one_line(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, (_, summary) in COMMANDS.items():
        assert [line for line in lines if re.search(rf" {name} +{re.escape(summary)}", line)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(name, capsys):
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: headwise {name}" in text
    assert "Examples" in text
    assert f"headwise {name}" in text.split("Examples")[1]


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headwise {__version__}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "headwise: Missing command; headwise --help lists what it takes"),
        (["stduy"], "headwise: No such command 'stduy'. Did you mean 'study'? headwise --help lists what it takes"),
        (["--fast"], "headwise: No such option: --fast; headwise --help lists what it takes"),
        (["doctor", "--fast"], "headwise: doctor: No such option: --fast; headwise doctor --help lists what it takes"),
    ],
)
def test_wrong_words_are_told_in_one_line(words, line, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == line + "\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("study: expected a folder,\n  got a file"), 2, "study: expected a folder, got a file"),
        (
            OSError(errno.ENOSPC, "No space left on device", "out/scores"),
            2,
            "No space left on device: out/scores; free some space, or write to another place",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "out"),
            2,
            "Permission denied: out; change its permissions, or choose another place",
        ),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "m"),
            2,
            "No such file or directory: m; check the spelling",
        ),
        (ConnectionError("no network"), 2, "ConnectionError: no network"),
        (MemoryError(), 2, "this machine is out of memory; close other programs, or ask for less at a time"),
        (
            ModuleNotFoundError("No module named 'plotly'", name="plotly.io"),
            2,
            "expected the package plotly, it is not installed; pip install plotly",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        (typer.Abort(), 130, "interrupted"),
        (
            KeyError("scale"),
            70,
            "this is a bug in headwise: KeyError: 'scale'; run the same command again with --debug to see where",
        ),
        (
            ModuleNotFoundError("No module named 'headwise.zzz'", name="headwise.zzz"),
            70,
            "this is a bug in headwise: ModuleNotFoundError: No module named 'headwise.zzz'; "
            "run the same command again with --debug to see where",
        ),
    ],
)
def test_errors_are_told_in_one_line(error, code, line, failing, capsys):
    failing.error = error
    assert main(["fail"]) == code
    captured = capsys.readouterr()
    assert captured.out == "before the error\n"
    assert captured.err == f"headwise: {line}\n"


@pytest.mark.parametrize("code", [0, 1])
def test_a_command_may_choose_its_exit_code(code, failing, capsys):
    failing.error = typer.Exit(code)
    assert main(["fail"]) == code
    assert capsys.readouterr().err == ""


def test_a_reader_that_has_gone_is_not_told_anything(failing, capsys):
    failing.error = BrokenPipeError()
    assert main(["fail"]) == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", [["--debug", "fail"], ["fail", "--debug"], ["fail", "--debug", "--note", "x"]])
def test_debug_shows_the_traceback_wherever_it_stands(words, failing, capsys):
    failing.error = ValueError("inside")
    assert main(words) == 70
    told = capsys.readouterr().err
    assert told.startswith("Traceback (most recent call last):")
    assert told.endswith("headwise: this is a bug in headwise: ValueError: inside; the traceback is above\n")


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_the_environment_asks_for_the_traceback_too(value, shown, failing, capsys, monkeypatch):
    monkeypatch.setenv("HEADWISE_DEBUG", value)
    failing.error = UserError("study: no")
    assert main(["fail"]) == 2
    assert ("Traceback" in capsys.readouterr().err) is shown


def test_words_after_a_double_dash_are_left_alone(monkeypatch):
    monkeypatch.delenv("HEADWISE_DEBUG", raising=False)
    assert split_debug(["study", "--", "--debug"]) == (["study", "--", "--debug"], False)
    assert split_debug(["--debug", "study", "--", "--debug"]) == (["study", "--", "--debug"], True)


# Python itself writes what is printed only when it ends, or when much has come together; unless it is told not to wait.
WAITING = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
PRINTING = """
import sys
from headwise.cli.errors import report_errors
sys.exit(report_errors(lambda: print("a line"), debug=False))
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", [[*HEADWISE, "--version"], [sys.executable, "-c", PRINTING]])
def test_a_full_disk_behind_standard_output_is_an_error(command):
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=WAITING)
    assert result.returncode == 2
    assert result.stderr == "headwise: No space left on device; free some space, or write to another place\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another shell")
@pytest.mark.parametrize("words", [["--version"], ["doctor", "--json"], ["plan", "nowhere.json", "--debug"]])
def test_a_closed_standard_output_is_told_before_any_work(words):
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *HEADWISE, *words]
    result = subprocess.run(shell, capture_output=True, text=True)
    line = "headwise: standard output is closed, expected one to print to; leave out >&-, or give a file\n"
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.endswith(line)
    assert "AttributeError" not in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another shell")
@pytest.mark.parametrize("words", [["--fast"], ["plan", "nowhere.json", "--debug"]])
def test_an_error_never_goes_to_standard_output(words):
    shell = ["sh", "-c", 'exec "$@" 2>&-', "sh", *HEADWISE, *words]
    result = subprocess.run(shell, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "")


@pytest.mark.parametrize(("command", "option"), [("plan", "--context"), ("study", "--seed"), ("report", "--out")])
def test_an_option_without_its_value_leads_to_the_help_of_its_command(command, option, capsys):
    assert main([command, option]) == 2
    told = f"headwise: {command}: Option '{option}' requires an argument; headwise {command} --help lists what it takes"
    assert capsys.readouterr().err == told + "\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows closes pipes in another way")
@pytest.mark.parametrize("command", [[*HEADWISE, "--version"], [sys.executable, "-c", PRINTING]])
def test_a_closed_pipe_is_quiet(command):
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=WAITING)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_an_interrupt_ends_with_130():
    program = textwrap.dedent(
        """
        import sys, time
        from headwise.cli.errors import report_errors
        def work():
            print("started", flush=True)
            time.sleep(60)
        sys.exit(report_errors(work, debug=False))
        """
    )
    running = subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "started\n"
    time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=20) == ("", "headwise: interrupted\n")
    assert running.returncode == 130
