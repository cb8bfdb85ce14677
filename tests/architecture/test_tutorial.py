"""docs/tutorial.ipynb under test: its cells run in order, each in the names of those before."""

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def value_of(cell, names):
    """Run a cell and return the value of its last line, as a notebook would show it; None where it has none."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_every_cell_runs_and_shows_something(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    names: dict = {}
    shown = [value_of(cell, names) for cell in CODE]
    assert [value is None for value in shown] == [True, *[False] * (len(CODE) - 1)]
    assert "forward" in shown[1]._repr_html_()
    assert (tmp_path / "tutorial.sqlite").exists()


def test_notebook_is_stored_without_outputs():
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
