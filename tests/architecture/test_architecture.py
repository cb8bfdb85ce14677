"""docs/architecture.md under test: what it names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TABLES = re.findall(r"`([A-Z]+)`, `([\w/]+\.py)`", PAGE)


def test_every_file_that_is_named_is_there():
    folders = ("analysis", "model", "nvtx_kernels", "profiling", "tests")
    there = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")}
    assert set(re.findall(r"`(?:\w+/)*(\w+\.py)`", PAGE)) <= there


@pytest.mark.parametrize(("table", "module"), TABLES)
def test_every_table_named_is_where_it_is_said_to_be(table, module):
    assert re.search(rf"^{table}\b.* = ", (ROOT / module).read_text(), re.MULTILINE)
