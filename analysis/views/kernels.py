"""Which kernels take the time: ranked alone, or under the operators that launched them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..document import Document, Row, Table, headed
from ..kernel_names.short import names_by_kernel
from ..measures.operators import OperatorKernel, WorkShapes, kernels_by_operator
from ..report import Number
from . import headings, operators, overview
from .registry import Subject
from .rows import more, require_measured, share

KERNELS_PER_OPERATOR = 3


def view(subject: Subject) -> Document:
    """Rank the kernels, or the operators with the kernels that each launched."""
    report = subject.report
    require_measured(report)
    if subject.by != "operator":
        return overview.overview(report, subject.detail, by="kernel")
    kernels = kernels_by_operator(
        WorkShapes(subject.attribution), steps=operators.steps_of(subject), wanted=operators.part_of(subject)
    )
    return headings.answer(report, [_table(subject, kernels)], report.notes)


def _table(subject: Subject, kernels: Sequence[OperatorKernel]) -> Table:
    """Show operators, longest first, and below each its kernels; programs get a row for each pair."""
    report, detail = subject.report, subject.detail
    total_ns = sum(row.total_ns for row in kernels)
    if detail.whole:
        columns = headed("operator", "kernel", "category", "phase", "total_ns", "share", "count")
        lines = [
            Row((row.operator, row.kernel, row.category, row.phase, row.total_ns, share(row.total_ns, total_ns), row.count))
            for row in kernels
        ]
        return Table("operators", "operators and their kernels", columns, tuple(lines))
    under: defaultdict[str, dict[str, list[Number]]] = defaultdict(dict)
    for row in kernels:
        figures = under[row.operator].setdefault(row.kernel, [0, 0])
        figures[0] += row.total_ns
        figures[1] += row.count
    ranked = sorted(under.items(), key=lambda entry: -sum(time for time, _ in entry[1].values()))
    shown = {operator: _longest(launched) for operator, launched in ranked[: detail.top]}
    names = names_by_kernel([kernel for launched in shown.values() for kernel in launched], detail.full_names)
    lines = []
    for operator, launched in ranked[: detail.top]:
        time_ns, count = (sum(figures) for figures in zip(*launched.values(), strict=True))
        lines.append(Row((operator, time_ns, share(time_ns, total_ns), count), strong=True))
        for kernel in shown[operator]:
            time_ns, count = launched[kernel]
            lines.append(Row((names[kernel], time_ns, share(time_ns, total_ns), count), indent=1))
    title = f"Operators and the kernels that they launched, {{unit}} {headings.scope(report)}"
    caption = f"% is of {headings.kernels(report)}.{more(ranked, detail.top, 'operator')}"
    columns = headed(name="operator and its top kernels", kernel_ns="time", share="%", count="launches")
    return Table("operators", title, columns, tuple(lines), caption)


def _longest(launched: dict[str, list[Number]]) -> list[str]:
    """Return the kernels of an operator with the most time."""
    return sorted(launched, key=lambda kernel: -launched[kernel][0])[:KERNELS_PER_OPERATOR]
