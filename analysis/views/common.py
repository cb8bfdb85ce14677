"""What several views need: figures per step, and paths as short as they can be told apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from analysis.errors import ReportError
from analysis.report import Number, Path, Report
from analysis.tables import PATH_SEPARATOR, Column, Table
from analysis.vocabulary import PHASES, phase_of

NOWHERE = "(outside all ranges)"


def require_measured(report: Report) -> None:
    """Raise ReportError where nothing is left to show, saying why."""
    if report.kernels:
        return
    if report.totals.work_ns and report.totals.excluded_ns == report.totals.work_ns:
        raise ReportError("All GPU work is inside warm-up ranges and left out; --include-warmup counts it.")
    raise ReportError(
        "There is no GPU work in what was asked for. Leave --range or --phase out to see what there is."
    )


def per_step(report: Report, value: Number) -> Number:
    """Divide a sum over all steps where the report's figures are per step; whole quotients stay integers."""
    if not report.per_step:
        return value
    return value // report.steps if isinstance(value, int) and value % report.steps == 0 else value / report.steps


def per_step_of_a_gpu(report: Report, value: Number, gpus: int) -> Number:
    """Divide what one of `gpus` did by its own rank's steps, where figures are per step."""
    ranks = max(report.ranks, 1) if gpus > 1 and report.per_step else 1
    return per_step(report, value * ranks)


def common_length(paths: Iterable[Path]) -> int:
    """Return how many ranges all paths begin with, leaving each at least its last."""
    paths = [path for path in paths if path]
    if not paths:
        return 0
    first, last = min(paths), max(paths)
    shared = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return min(shared, min(map(len, paths)) - 1)


def label(path: Path, common: int = 0) -> str:
    """Write a path without the ranges that all paths begin with."""
    return PATH_SEPARATOR.join(path[common:]) or NOWHERE


def level(name: str) -> str:
    """Say of a row among phases what it is of: a phase, the steps or all work."""
    return "phase" if name in PHASES else name


def with_levels(table: Table, levels: Sequence[str]) -> Table:
    """Tell a program of each row what sort it is of."""
    rows = (replace(row, values=(level, *row.values)) for level, row in zip(levels, table.rows, strict=True))
    return replace(table, columns=(Column("level", "level"), *table.columns), rows=tuple(rows))


def in_tree(sizes: Sequence[tuple[Path, Number]], top: int) -> list[int]:
    """Return the positions of a tree's largest paths, of every phase, and of those around them, in order."""
    largest = sorted(range(len(sizes)), key=lambda at: (-sizes[at][1], len(sizes[at][0])))[:top]
    chosen = {*largest, *(at for at, (path, _) in enumerate(sizes) if _opens_a_phase(path))}
    around = {sizes[at][0][:depth] for at in chosen for depth in range(1, len(sizes[at][0]))}
    return [at for at, (path, _) in enumerate(sizes) if at in chosen or path in around]


def _opens_a_phase(path: Path) -> bool:
    """Tell whether the last range of a path is a phase's outermost."""
    return bool(phase_of(path[-1])) and not any(map(phase_of, path[:-1]))


def more(found: Sequence[object], top: int, what: str, each: str = "") -> str:
    """Say how many of `what` (in the singular) a table leaves out, what each is, and how to see them."""
    rest = len(found) - top
    return f" {rest} more {what}{'s' if rest > 1 else ''}{each}: --top {len(found)}." if rest > 0 else ""
