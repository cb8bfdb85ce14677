"""docs/architecture.md under test: it has every room and module, in its place, and no other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TABLES = re.findall(r"`([A-Z]+)`, `([\w/]+\.py)`", PAGE)
PACKAGES = ("analysis", "profiling")


def modules(folder):
    return {path.name for path in folder.glob("[!_]*.py")}


def named(text):
    return set(re.findall(r"`(?:\w+/)*(\w+\.py)`", text))


def section(package):
    return PAGE.split(f"## {package}")[1].split("\n## ")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_of_a_package_is_a_row_with_all_its_modules(package):
    rooms = {path.parent for path in (ROOT / package).rglob("*.py") if path.parent.name != package}
    rows = {room: row for row in section(package).splitlines() for room in re.findall(r"^\| `(\w+)/` \|", row)}
    assert {room.name: modules(room) for room in rooms} == {room: named(row) for room, row in rows.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_at_a_root_is_named_and_no_other_file(package):
    rows = [row for row in section(package).splitlines() if not row.startswith("| `")]
    assert modules(ROOT / package) <= named("\n".join(rows))
    there = {path.name for place in (package, "model") for path in (ROOT / place).rglob("*.py")}
    assert named(section(package)) <= there


@pytest.mark.parametrize(("table", "module"), TABLES)
def test_every_table_named_is_where_it_is_said_to_be(table, module):
    assert re.search(rf"^{table}\b.* = ", (ROOT / module).read_text(), re.MULTILINE)


def test_few_files_stand_at_the_roots():
    assert {package: len(modules(ROOT / package)) <= 12 for package in PACKAGES} == dict.fromkeys(PACKAGES, True)
