"""One value as text, for every presenter that is read by people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis import units
from analysis.tables import Column, Row, Table

TEXT: dict[str, Callable[[Any], str]] = {
    "text": str,
    "name": str,
    "count": units.count_text,
    "share": units.share_text,
    "ratio": lambda value: f"{value:.3g}",
    "flops": lambda value: units.si_text(value, "FLOP"),
    "flops/s": lambda value: units.si_text(value, "FLOP/s"),
    "bytes": units.bytes_text,
    "bytes/s": lambda value: units.si_text(value, "B/s"),
}


def is_number(column: Column) -> bool:
    """Tell whether a column's values are aligned to the right."""
    return column.kind not in ("text", "name")


def unit_of(table: Table) -> units.TimeUnit:
    """Choose the time unit that suits a whole table."""
    times = [place for place, column in enumerate(table.columns) if column.kind == "ns"]
    values = [row.values[place] for row in table.rows for place in times if row.kind in (None, "ns")]
    return units.time_unit([value for value in values if value not in (None, "")])


def title(table: Table) -> str:
    """Return the title, with the unit of the table's times where it asks for it."""
    return table.title.replace("{unit}", unit_of(table).name)


def headings(table: Table) -> list[str]:
    """Return the headings; those of times name the table's unit, unless its title does."""
    unit = "" if "{unit}" in table.title else unit_of(table).name
    return [
        f"{column.heading} {unit}".strip() if column.kind == "ns" else column.heading for column in table.columns
    ]


def texts(table: Table) -> list[list[str]]:
    """Return all values as people read them."""
    unit = unit_of(table)
    return [
        [_text(value, row, column, unit) for value, column in zip(row.values, table.columns, strict=True)]
        for row in table.rows
    ]


def _text(value: Any, row: Row, column: Column, unit: units.TimeUnit) -> str:
    if value is None:
        return units.ABSENT
    if isinstance(value, str):
        return value
    kind = row.kind or column.kind
    if kind == "share" and "%" in column.heading:
        return TEXT[kind](value).removesuffix("%")
    return unit.text(value) if kind == "ns" else TEXT[kind](value)
