"""Every promise of docs/trust.md names a test that exists."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "docs" / "trust.md").read_text()
NAMED = re.compile(r"`(test_\w+\.py)(?:::(test_\w+))?`")
PROMISE = re.compile(r"^\| (?!promise|---)([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def functions():
    """List (file, test) of all tests."""
    return {
        (path.name, node.name)
        for path in TESTS.rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }


def test_every_test_that_is_named_exists():
    existing = functions()
    files = {file for file, _ in existing}
    named = NAMED.findall(TEXT)
    assert len(named) > 60
    assert [name for name in named if (name if name[1] else name[0]) not in (existing if name[1] else files)] == []


def test_every_promise_names_a_test():
    promises = PROMISE.findall(TEXT)
    assert len(promises) > 35
    assert [promise for promise, held_by in promises if not NAMED.search(held_by)] == []


def test_no_commit_or_seed_is_named():
    assert re.findall(r"\b[0-9a-f]{7,40}\b|seed \d+", TEXT) == []
