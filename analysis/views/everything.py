"""All rows of one of a report's tables, for machines: names in full, nothing collapsed, nothing cut."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from analysis.report import KernelRow, RangeRow, Report
from analysis.tables import PATH_SEPARATOR, Column, Document, Row, Table
from analysis.views import provenance


def everything(report: Report, *, by: str | None = None) -> Document:
    """Return the kernels of every path (the default), or one row per range, or per phase and category."""
    if by == "range":
        table = _table("ranges", RangeRow, report.ranges)
    elif by == "category":
        table = _by_category(report)
    else:
        table = _table("kernels", KernelRow, report.kernels)
    return Document(provenance.heading(report), (table,), provenance.accounting(report), report.notes)


def _table(key: str, kind: type[Any], rows: tuple[Any, ...]) -> Table:
    names = [field.name for field in fields(kind)]
    columns = tuple(Column(name, name, "ns" if name.endswith("_ns") else "text") for name in names)
    return Table(key, key, columns, tuple(Row(tuple(_flat(getattr(row, name)) for name in names)) for row in rows))


def _by_category(report: Report) -> Table:
    keys = dict.fromkeys((row.phase, row.category) for row in report.kernels)
    chosen = {key: [row for row in report.kernels if (row.phase, row.category) == key] for key in keys}
    columns = (
        Column("phase", "phase"), Column("category", "category"), Column("count", "count", "count"),
        Column("total_ns", "total_ns", "ns"),
    )  # fmt: skip
    rows = [
        (*key, sum(row.count for row in rows), sum(row.total_ns for row in rows)) for key, rows in chosen.items()
    ]
    rows.sort(key=lambda values: -values[-1])
    return Table("categories", "categories", columns, tuple(map(Row, rows)))


def _flat(value: Any) -> Any:
    return PATH_SEPARATOR.join(value) if isinstance(value, tuple) else value
