"""What the package says of itself, and that it can be installed where there is no compiler."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution, entry_points, packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import headwise
from headwise.cli.main import main

ROOT = Path(__file__).parents[1]


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


def requirements() -> list[Requirement]:
    return [Requirement(line) for line in distribution("headwise").requires or []]


def installed() -> list[Requirement]:
    """Those that `make setup` installs: all but those of the site."""
    return [one for one in requirements() if "docs" not in str(one.marker)]


def pinned() -> dict[str, Requirement]:
    """The constraints that hold for this Python, by name."""
    return {canonicalize_name(pin.name): pin for pin in constraints() if pin.marker is None or pin.marker.evaluate()}


def test_the_version_is_the_one_in_the_package():
    assert version("headwise") == headwise.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", headwise.__version__)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{headwise.__version__}]" in changes


def test_metadata():
    metadata = distribution("headwise").metadata
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_command_is_installed():
    [command] = [entry for entry in entry_points(group="console_scripts") if entry.name == "headwise"]
    assert command.load() is main


def test_types_are_shipped():
    assert (Path(headwise.__file__).parent / "py.typed").is_file()


def test_every_requirement_is_pinned_within_its_range():
    pins = pinned()
    for requirement in requirements():
        [pin] = pins[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), requirement
        assert requirement.specifier, f"{requirement} has no lower bound"


def test_constraints_pin_exactly_one_version():
    for pin in constraints():
        [only] = pin.specifier
        assert only.operator == "=="
        # A local part such as +cpu is found in one index only.
        assert "+" not in only.version


def test_what_is_tested_is_what_is_pinned():
    pins = pinned()
    for requirement in installed():
        name = canonicalize_name(requirement.name)
        assert pins[name].specifier.contains(version(name)), f"{name} {version(name)} is installed, not {pins[name]}"


def test_metadata_stays_loose():
    assert not [line for line in distribution("headwise").requires or [] if "==" in line.partition(";")[0]]


def test_what_is_imported_is_required():
    """A package that only comes along with another one may stay away with that one's next version."""
    required = {canonicalize_name(requirement.name) for requirement in requirements() if requirement.marker is None}
    checks = {canonicalize_name(requirement.name) for requirement in requirements()}
    assert distributions_of(ROOT / "src") - required == set()
    # A benchmark may import the file beside it, as a script does.
    beside = {canonicalize_name(file.stem) for file in (ROOT / "benchmarks").glob("*.py")}
    assert distributions_of(ROOT / "tests") | distributions_of(ROOT / "benchmarks") - beside <= checks | {"headwise"}


def distributions_of(folder: Path) -> set[str]:
    """The installed packages that the Python files below a folder import."""
    owners = packages_distributions()
    files = [ast.parse(file.read_text(encoding="utf-8")) for file in folder.rglob("*.py")]
    nodes = [node for tree in files for node in ast.walk(tree)]
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    tops = {name.partition(".")[0] for name in imported} - {"headwise", "tests"} - set(sys.stdlib_module_names)
    return {canonicalize_name(owner) for top in tops for owner in owners.get(top, [top])}


@pytest.mark.parametrize("file", ["pyproject.toml", "constraints.txt", "Makefile", ".ci/run", "CMakeLists.txt"])
def test_no_index_and_no_folder_of_one_machine_is_named(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert not re.search(r"index-url|find-links|/(home|root|Users)/", text)


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "is_built"), [(None, True), ("/bin/false", False)])
def test_installs_with_and_without_a_compiler(compiler, is_built, tmp_path):
    """Into an environment of its own, which borrows the installed build tools and dependencies of this one."""
    result = install(tmp_path, compiler)
    message = "the native part (headwise._native) was built" if is_built else "installed without its native part"
    assert message in result.stdout + result.stderr
    python = scripts(tmp_path) / "python"
    asked = "from headwise import native; print(native.is_built()); print(native.status_line())"
    answer = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert answer.stdout.splitlines()[0] == str(is_built)
    assert ("install a C++20 compiler" in answer.stdout) is not is_built


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "CXX": "/bin/false"})
    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {file for file in files if not file.endswith((".pyc", ".so"))} <= packed


def install(folder: Path, compiler: str | None) -> subprocess.CompletedProcess[str]:
    venv.create(folder, symlinks=True)
    [site_packages] = folder.glob("lib/python*/site-packages")
    borrowed = Path(pytest.__file__).parents[1]
    (site_packages / "borrowed.pth").write_text(f"{borrowed}\n")
    environment = {**os.environ, "CC": compiler, "CXX": compiler} if compiler else dict(os.environ)
    command = [scripts(folder) / "python", "-m", "pip", "install", "-v", "--no-deps", "--no-build-isolation"]
    # Not into the environment that the build tools are borrowed from.
    command += ["--ignore-installed", str(ROOT)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder)


def scripts(folder: Path) -> Path:
    return folder / ("Scripts" if sys.platform == "win32" else "bin")
