"""The kernels of every range, as the rows of a table."""

from __future__ import annotations

from typing import Any

from analysis.page_parts.names import Names, kernel_texts, path_texts
from analysis.report import KernelRow, Report
from analysis.views import wording

MAX_ROWS = 2_500


def kernel_rows(report: Report) -> dict[str, Any]:
    """Return the longest rows as columns, the names they refer to, and the sum of what is left out.

    Columns: kernel (position in `kernels`), path (position in `paths`), phase, category, ns, count, and the
    shortest and longest single launch.
    """
    rows = sorted((row for row in report.kernels if row.kind == "kernel"), key=lambda row: -row.total_ns)
    shown, rest = rows[:MAX_ROWS], rows[MAX_ROWS:]
    texts = kernel_texts(row.kernel for row in shown)
    kernel, path = Names(), _Paths()
    columns = {
        "kernel": [kernel(row.kernel) for row in shown],
        "path": [path(row) for row in shown],
        "phase": [row.phase for row in shown],
        "category": [wording.category(row.category) for row in shown],
        "ns": [row.total_ns for row in shown],
        "count": [row.count for row in shown],
        "min_ns": [row.min_ns for row in shown],
        "max_ns": [row.max_ns for row in shown],
    }
    return {
        **columns,
        "kernels": [texts[name] for name in kernel.texts()],
        "paths": path.texts,
        "left_out": {"rows": len(rest), "ns": sum(row.total_ns for row in rest)},
        "total_ns": sum(row.total_ns for row in rows),
    }


class _Paths:
    """Numbers paths in the order in which they turn up."""

    def __init__(self) -> None:
        self._number: dict[tuple[str, ...], int] = {}
        self.texts: list[list[str]] = []

    def __call__(self, row: KernelRow) -> int:
        """Return the number of a row's path."""
        if row.path not in self._number:
            self._number[row.path] = len(self.texts)
            self.texts.append(path_texts(row.path))
        return self._number[row.path]
