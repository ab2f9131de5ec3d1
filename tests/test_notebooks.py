"""The notebooks: each is what its page makes today, and run in an empty folder it prints what the page shows."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.helpers.pages import blocks_of, commands_in, python_in, shows

DOCS = Path(__file__).parents[1] / "docs"
_MAKE = importlib.util.spec_from_file_location("headwise_notebooks", DOCS / "notebooks" / "make.py")
assert _MAKE is not None
assert _MAKE.loader is not None
MAKE = importlib.util.module_from_spec(_MAKE)
_MAKE.loader.exec_module(MAKE)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")

PAGE = """# A title

See [one](other.md#there), [two](../plan.md), [three](#here) and [four](https://example.org/a.md).

```json title="a.json"
{"a": 1}
```

```console
$ headwise plan a.json
one
$ headwise plan a.json --json
two
```

```python
print(3)
```

```text
3
```

Between.

```
headwise study demo
```

```python
x = 4
```

```text
stays
```
"""


def page_of(name: str) -> str:
    return (DOCS / "how-to" / f"{name}.md").read_text(encoding="utf-8")


def written(name: str) -> str:
    return (DOCS / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")


def printed(cell: NotebookNode) -> str:
    """What a code cell printed, as plain text; nothing else may have come of it, but for warnings of other packages."""
    assert all(one.output_type == "stream" for one in cell.outputs), cell.outputs
    text = "".join(one.text for one in cell.outputs if one.name == "stdout")
    return _COLOUR.sub("", text).replace("\r\n", "\n")


def executed(name: str, folder: Path) -> list[NotebookNode]:
    """The code cells of a notebook after it was run in a folder, in a kernel of this Python and of no other."""
    notebook = nbformat.reads(written(name), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, timeout=300)
    specs = client.create_kernel_manager().kernel_spec_manager
    specs.kernel_dirs = []  # what is left is ipykernel's own kernel, which starts this Python
    assert specs.get_kernel_spec("python3").argv[0] == sys.executable
    client.execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture
def alone(tmp_path, monkeypatch) -> Path:
    """An empty folder; the kernel keeps its own files elsewhere, and finds the commands of this Python."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_a_page_becomes_cells():
    notebook = MAKE.notebook_of(PAGE, "a-page")
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    assert [cell.id for cell in notebook.cells] == [f"cell-{place}" for place in range(len(cells))]
    assert cells[0][1].startswith("# A title\n")
    assert "(../how-to/a-page.md)" in cells[0][1]
    links = (
        "See [one](../how-to/other.md#there), [two](../plan.md), [three](#here) and [four](https://example.org/a.md)."
    )
    assert cells[1:] == [
        ("markdown", links),
        ("code", '%%writefile a.json\n{"a": 1}'),
        ("code", "!headwise plan a.json"),
        ("code", "!headwise plan a.json --json"),
        ("code", "print(3)"),
        ("markdown", "Between.\n\n```\nheadwise study demo\n```"),
        ("code", "x = 4"),
    ]
    outputs = [printed(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert outputs == ["Writing a.json\n", "one\n", "two\n", "3\n", "stays\n"]


@pytest.mark.parametrize("name", MAKE.NOTEBOOKS)
def test_a_notebook_is_what_its_page_makes(name, tmp_path):
    [made] = [path for path in MAKE.make(tmp_path) if path.stem == name]
    assert made.read_text(encoding="utf-8") == written(name), "make notebooks"
    nbformat.validate(nbformat.reads(written(name), as_version=4))


def test_every_notebook_has_its_page():
    assert {path.stem for path in (DOCS / "notebooks").glob("*.ipynb")} == set(MAKE.NOTEBOOKS)


@pytest.mark.parametrize("name", MAKE.NOTEBOOKS)
def test_links_of_a_notebook_lead_somewhere(name):
    cells = nbformat.reads(written(name), as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\((?!\w+:)([^)#\s]+)", text)
    assert targets
    assert not [target for target in targets if not (DOCS / "notebooks" / target).exists()]


@pytest.mark.parametrize("name", MAKE.NOTEBOOKS)
def test_a_notebook_prints_what_its_page_shows(name, alone):
    page = page_of(name)
    told = {code.strip(): output for code, output in python_in(page)}
    told |= {f"!{command}": output for command, output in commands_in(page) if output}
    files = {block.title: block.text for block in blocks_of(page) if block.title}
    for cell in executed(name, alone):
        if cell.source.startswith("%%writefile"):
            title = cell.source.split()[1]
            assert (alone / title).read_text(encoding="utf-8") == files.pop(title)
        else:
            output = printed(cell)
            assert shows(told.pop(cell.source), output), f"{cell.source}\nprints\n{output}"
    assert not told
    assert not files
