"""One value as text, for every presenter of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..document import Column, Document, Row, Table, seen_by
from ..support import units

TEXT: dict[str, Callable[[Any], str]] = {
    "text": str,
    "name": str,
    "count": units.count_text,
    "prose": str,
    "ms": lambda value: f"{value:,.3f}",
    "spread": lambda pair: " ± ".join(f"{value:,.3f}" for value in pair if value is not None),
    "ratio": lambda value: units.digits_text(value, 3),
    "flops": lambda value: units.si_text(value, "FLOP"),
    "flops/s": lambda value: units.si_text(value, "FLOP/s"),
    "bytes": units.bytes_text,
    "bytes/s": lambda value: units.si_text(value, "B/s"),
    "GiB": lambda value: units.digits_text(value / 2**30, 3),
    "MiB": lambda value: units.digits_text(value / 2**20, 4),
}


def for_people(document: Document) -> list[Table]:
    """Return the tables with the columns for text."""
    return [seen_by("people", table) for table in document.tables]


def is_number(column: Column) -> bool:
    """Return whether a column's values are aligned to the right."""
    return column.kind not in ("text", "name", "prose")


def unit_of(table: Table) -> units.TimeUnit:
    """Choose the time unit that suits a whole table."""
    shared = [place for place, column in enumerate(table.columns) if column.kind == "ns" and not column.own_unit]
    return units.time_unit([time for place in shared for time in _times(table, place)])


def units_of(table: Table) -> list[units.TimeUnit]:
    """Return the time unit of each column: the table's, or the column's own."""
    shared = unit_of(table)
    return [
        units.column_unit(_times(table, place)) if column.own_unit and any(_times(table, place)) else shared
        for place, column in enumerate(table.columns)
    ]


def _times(table: Table, place: int) -> list[float]:
    values = [row.values[place] for row in table.rows if row.kind in (None, "ns")]
    return [value for value in values if value not in (None, "")]


def title(table: Table) -> str:
    """Return the title, with the unit of the table's times if it asks for it."""
    return table.title.replace("{unit}", unit_of(table).name)


def headings(table: Table) -> list[str]:
    """Return the headings; those of times name their unit, unless it is the one that the title names."""
    named = unit_of(table) if "{unit}" in table.title else None
    return [
        f"{column.heading} {unit.name}" if column.kind == "ns" and unit != named else column.heading
        for column, unit in zip(table.columns, units_of(table), strict=True)
    ]


def texts(table: Table, *, decimals: int = 1) -> list[list[str]]:
    """Return all values as text; percentages with this many decimals."""
    times = units_of(table)
    return [
        [
            _text(value, row, column, unit, decimals)
            for value, column, unit in zip(row.values, table.columns, times, strict=True)
        ]
        for row in table.rows
    ]


def _text(value: Any, row: Row, column: Column, unit: units.TimeUnit, decimals: int) -> str:
    if value is None:
        return units.ABSENT
    if isinstance(value, str):
        return value
    kind = row.kind or column.kind
    if kind == "share":
        return units.share_text(value, decimals).removesuffix("%" if "%" in column.heading else "")
    return unit.text(value) if kind == "ns" else TEXT[kind](value)
