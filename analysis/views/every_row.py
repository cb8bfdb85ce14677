"""All rows of one of a report's tables, for programs: full names, nothing merged, nothing cut.

If a table has rows of several sorts, such as phases and their categories, its first column, `level`, is the sort
of a row.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

from ..document import Column, Document, Row, Table
from ..report import KernelRow, RangeRow, Report, added
from ..report.plain import as_object
from ..vocabulary import PATH_SEPARATOR
from . import headings
from .rows import RANKED, longest_first, share, time_of


def everything(report: Report, *, by: str | None = None) -> Document:
    """Return the kernels of every path (the default), or rank kernels or categories by phase, or all ranges."""
    if by == "range":
        table = _table("ranges", RangeRow, report.ranges)
    elif by == "category":  # graphs launched whole are one of their own
        table = _ranking(report, "categories", ("category", "kind", "phase"), ())
    elif by == "kernel":  # and graphs launched whole, wherever they were launched
        extremes = ("mean_ns", "min_ns", "max_ns")
        table = _ranking(report, "kernels", ("kernel", "category", "kind", "phase"), extremes)
    else:
        table = _table("kernels", KernelRow, report.kernels)
    return Document(
        headings.heading(report),
        (table,),
        headings.accounting_of(report),
        report.notes,
        partial(as_object, report),
    )


def _table(key: str, kind: type[Any], rows: tuple[Any, ...]) -> Table:
    names = [field.name for field in fields(kind)]
    columns = tuple(Column(name, name, "ns" if name.endswith("_ns") else "text") for name in names)
    lines = []
    for row in rows:
        values = (getattr(row, name) for name in names)
        lines.append(
            Row(tuple(PATH_SEPARATOR.join(value) if isinstance(value, tuple) else value for value in values))
        )
    return Table(key, key, columns, tuple(lines))


def _ranking(report: Report, key: str, keys: tuple[str, ...], extremes: tuple[str, ...]) -> Table:
    """Add up what is ranked, longest first; `share` is of all kernel time, which excludes graphs."""
    ranked = longest_first(added((row for row in report.kernels if row.kind in RANKED), keys))
    total_ns = time_of(row for row in ranked if row.kind == "kernel")
    columns = (
        *(Column(name, name, "name" if name == "kernel" else "text") for name in keys),
        Column("total_ns", "total_ns", "ns"),
        Column("share", "share", "share"),
        Column("count", "count", "count"),
        *(Column(name, name, "ns") for name in extremes),
    )
    rows = []
    for row in ranked:
        part = share(row.total_ns, total_ns) if row.kind == "kernel" else None
        each = {"mean_ns": row.total_ns / row.count, "min_ns": row.min_ns, "max_ns": row.max_ns}
        named = (getattr(row, name) for name in keys)
        rows.append(Row((*named, row.total_ns, part, row.count, *(each[name] for name in extremes))))
    return Table(key, key, columns, tuple(rows))
