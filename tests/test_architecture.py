"""docs/architecture.md under test: it names every module on the way from a report to an answer, and no other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", PAGE))
FOLDERS = ("analysis", "analysis/presenters", "analysis/views", "analysis/readers", "profiling", "model", "tests")
TABLES = re.findall(r"`([A-Z]+)`, `([\w/]+\.py)`", PAGE)


def test_every_module_of_analysis_is_named():
    modules = {path.name for path in (ROOT / "analysis").glob("[!_]*.py")}
    assert modules - NAMED == set()


def test_every_module_named_exists():
    existing = {path.name for folder in FOLDERS for path in (ROOT / folder).glob("*.py")}
    assert NAMED - existing == set()


@pytest.mark.parametrize(("table", "module"), TABLES)
def test_every_table_named_is_where_it_is_said_to_be(table, module):
    assert re.search(rf"^{table}\b.* = ", (ROOT / module).read_text(), re.MULTILINE)
