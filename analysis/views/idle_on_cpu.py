"""Show what the program's thread does while it runs no operator, in a report of a CPU."""

from __future__ import annotations

from ..document import Document, Row, Table, headed
from ..measures.idle_on_cpu import outside_operators
from ..summary.selection import naming_for
from . import headings
from .registry import Subject
from .rows import common_length, function_column, label, more, per_step, share


def view(subject: Subject) -> Document:
    """Show the time outside of operators by cause, and by cause and range."""
    report, detail = subject.report, subject.detail
    naming = naming_for(detail, report)
    found = outside_operators(subject.attribution, naming, include_warm_up=report.warm_up_included)
    scope, total_ns = headings.scope(report), found.outside_ns
    causes = [Row((cause, per_step(report, ns), share(ns, found.wall_ns))) for cause, ns in found.by_cause.items()]
    causes.append(
        Row(
            (
                "operators",
                per_step(report, found.wall_ns - total_ns),
                share(found.wall_ns - total_ns, found.wall_ns),
            )
        )
    )
    causes.append(Row(("sum", per_step(report, found.wall_ns), share(found.wall_ns, found.wall_ns)), strong=True))
    caption = "Python: the program's own code, between operators."
    tables = [
        Table(
            "outside",
            f"What the program's thread does, {{unit}} {scope}",
            headed("cause", time_ns="time", share="%"),
            tuple(causes),
            caption,
        )
    ]
    common = 0 if detail.whole else common_length(row.path for row in found.rows)
    has_functions = any(row.function for row in found.rows)
    rows = [
        Row(
            (
                row.cause,
                label(row.path, common),
                row.function,
                per_step(report, row.time_ns),
                share(row.time_ns, total_ns),
                per_step(report, row.pieces),
                row.largest_ns,
            )
        )
        for row in found.rows[: detail.top]
    ]
    columns = (*headed("cause", "range"), function_column(has_functions))
    columns += headed(time_ns="time", share="%", pieces_count="pieces", largest_ns="largest")
    title = f"Time outside of operators by range, {{unit}} {scope}"
    caption = "% is of the time outside of operators."
    caption += more(found.rows, detail.top, "row" if has_functions else "range")
    tables.append(Table("places", title, columns, tuple(rows), caption))
    return headings.answer(report, tables, report.notes)
