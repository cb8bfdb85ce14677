"""Nobody has to read more than 500 lines of a file, or 80 of a function, to know what it does."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    p for name in ("analysis", "model", "nvtx_kernels", "profiling") for p in sorted((ROOT / name).rglob("*.py"))
]
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 500, 80


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_can_be_read_in_one_sitting(source):
    text = source.read_text(encoding="utf-8")
    functions = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    too_long = [node.name for node in functions if node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION]
    assert len(text.splitlines()) <= MOST_LINES_OF_A_FILE
    assert too_long == []
