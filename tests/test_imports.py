"""What is imported when: the command line starts at once, and the public names are where they are said to be."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headwise
from headwise.cli.main import COMMANDS
from tests.helpers.events import events_of, events_of_an_empty_help

HEAVY = {"torch", "transformers", "pandas", "numpy", "pyarrow", "matplotlib", "plotly", "scipy"}
LIGHT = ["headwise", "headwise.layout", "headwise.errors", "headwise.paths", "headwise.native", "headwise.cli.main"]
LIGHT += ["headwise.plan", "headwise.plan.architectures", "headwise.plan.runtimes", "headwise.plan.source"]
LIGHT += ["headwise.cli.plan", "headwise.cli.plan_tables"]
PACKAGE = Path(headwise.__file__).parent


def loaded_after(statement: str) -> set[str]:
    """The top-level packages that a fresh Python holds after a statement."""
    code = f"{statement}\nimport sys, json; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def modules() -> list[str]:
    found = (info.name for info in pkgutil.walk_packages([str(PACKAGE)], "headwise."))
    return [name for name in found if not name.endswith("._native")]


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module):
    assert not loaded_after(f"import {module}") & HEAVY


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_load_nothing_heavy_before_they_run(command):
    help_of = f"from headwise.cli.main import main; assert main([{command!r}, '--help']) == 0"
    assert not loaded_after(help_of) & HEAVY


def test_help_loads_no_command():
    code = "import sys; from headwise.cli.main import main; assert main(['--help']) == 0; print(sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(result.stdout.splitlines()[-1])
    assert not {module for module, _ in COMMANDS.values()} & set(loaded)


def test_the_check_sees_what_is_heavy():
    assert "numpy" in loaded_after("import numpy")


def test_help_does_little_beside_what_typer_does():
    """A count, not a time; benchmarks/startup.py times it."""
    help_of = "from headwise.cli.main import main; assert main(['--help']) == 0"
    assert events_of(help_of) < 1.25 * events_of_an_empty_help()


@pytest.mark.parametrize("name", headwise.__all__)
def test_public_names_are_there(name):
    assert getattr(headwise, name) is not None
    assert name in dir(headwise)


def test_public_names_are_listed_once_and_sorted():
    assert headwise.__all__ == sorted({"__version__", *headwise._HOMES})


def test_public_names_come_from_where_they_are_said_to_be():
    for name, home in headwise._HOMES.items():
        assert getattr(headwise, name) is getattr(importlib.import_module(home), name)


def test_type_checkers_see_the_same_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {name.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert seen == headwise._HOMES


def test_no_public_name_is_that_of_a_subpackage():
    children = {info.name for info in pkgutil.iter_modules([str(PACKAGE)])}
    assert not children & set(headwise.__all__)


def test_an_unknown_name_is_refused_with_what_there_is():
    message = f"module 'headwise' has no attribute 'atention'; it offers {', '.join(headwise.__all__)}"
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        headwise.atention  # noqa: B018


@pytest.mark.parametrize("name", modules())
def test_all_lists_what_a_module_makes_public(name):
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", None)
    if listed is None:  # an entry for people, such as a module that is only run
        listed = []
    assert len(listed) == len(set(listed))
    assert not [entry for entry in listed if not hasattr(module, entry)]
    if not listed:
        return
    own = {
        entry
        for entry, value in vars(module).items()
        if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == name and entry[0] != "_"
    }
    assert own - set(listed) == set()
