"""Comma-separated values: raw numbers, nanoseconds, one table after another with a blank line between."""

from __future__ import annotations

import csv
import io
from typing import Any

from analysis.tables import Document, Table

# A spreadsheet takes a cell that begins so for a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def present(document: Document) -> str:
    """Write the tables of a document; times are in nanoseconds and shares fractions of one."""
    return "\n".join(_table(table) for table in document.tables)


def _table(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([[_cell(value) for value in row.values] for row in table.rows])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return "'" + value
    return "" if value is None else value
