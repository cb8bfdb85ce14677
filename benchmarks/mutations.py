"""Change a module in one place after another, and count the changes that its tests notice.

    python -m benchmarks.mutations analysis/compare/changes.py tests/analysis/compare --count 30

A change swaps an operator or a comparison, negates a condition, or adds one to a number. Each is made in a copy
of the checkout, in which the named tests then run (those marked slow only with --slow) until one fails. Of all
possible changes, `--count` are taken, spread evenly over the module and the same in each run. The table's last
line is the score; the lines above are the survivors, which no test noticed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "reports"
)
LONGEST_S = 600
#: What stands for each operator after a change.
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """An expression of a module at an offset in its text, and what it becomes."""

    line: int
    start: int
    end: int
    before: str
    after: str


def mutations(source: str) -> Iterator[Mutation]:
    """Yield every change of a module, in the order of its lines; none in annotations, f-strings and docstrings."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = set()
    for node in _changeable(ast.parse(source)):
        for changed in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            before = source.encode()[start:end].decode()
            found.add((node.lineno, start, end, before, f"({ast.unparse(changed)})"))
    yield from (Mutation(*mutation) for mutation in sorted(found))


def _changeable(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that run, outer before inner."""
    left_out = ("annotation", "returns", "decorator_list")
    for name, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if name not in left_out and isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr):
                if isinstance(node, ast.expr):
                    yield node
                yield from _changeable(node)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the mutations of an expression."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[place] = SWAPS[type(operator)]()  # type: ignore[call-overload]
            yield changed
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS:
        changed = copy.deepcopy(node)
        changed.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield ast.Constant(node.value + 1)


def spread(every: Sequence[Mutation], count: int) -> list[Mutation]:
    """Return `count` of the changes, evenly spread."""
    count = min(count, len(every))
    return [every[place * len(every) // count] for place in range(count)]


def passes(checkout: Path, tests: Sequence[str], *, slow: bool) -> bool:
    """Return whether these tests pass in a checkout; tests that do not end do not pass."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    words += [] if slow else ["-m", "not slow"]
    try:
        ended = subprocess.run(words, cwd=checkout, capture_output=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path, help="the file to change, from the checkout's root")
    parser.add_argument("tests", nargs="+", help="files or folders of tests")
    parser.add_argument("--count", type=int, default=30, metavar="N", help="changes to try (%(default)s)")
    parser.add_argument("--lines", metavar="N,…", default="", help="only changes in these lines")
    parser.add_argument("--slow", action="store_true", help="run tests marked slow, too")
    options = parser.parse_args()
    source = (ROOT / options.module).read_text(encoding="utf-8")
    lines = {int(line) for line in options.lines.split(",") if line}
    every = [mutation for mutation in mutations(source) if not lines or mutation.line in lines]
    tried, caught = spread(every, options.count), 0
    with tempfile.TemporaryDirectory() as folder:
        checkout = shutil.copytree(ROOT, Path(folder, "checkout"), ignore=NOT_COPIED)
        if not passes(checkout, options.tests, slow=options.slow):
            sys.exit("The tests fail before anything is changed.")
        for mutation in tried:
            text = source.encode()
            changed = text[: mutation.start] + mutation.after.encode() + text[mutation.end :]
            (checkout / options.module).write_bytes(changed)
            if passes(checkout, options.tests, slow=options.slow):
                print(f"{options.module}:{mutation.line}: {mutation.before} -> {mutation.after}", flush=True)
            else:
                caught += 1
    print(f"{options.module}: {caught} of {len(tried)} changes noticed, of {len(every)} possible")


if __name__ == "__main__":
    main()
