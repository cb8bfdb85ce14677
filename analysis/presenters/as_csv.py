"""Comma-separated values: one format, so one small file. Raw numbers, nanoseconds, all tables as one."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from typing import Any

from ..document import Document, as_one

# A spreadsheet treats a cell that begins with these as a formula: some also after spaces, or in full-width forms.
FORMULA_STARTS = ("=", "+", "-", "@")
CONTROL_STARTS = ("\t", "\r")
INVISIBLE = re.compile(r"[\s\u200b\u2060\ufeff]*")


def present(document: Document) -> str:
    """Write the tables of a document; times are in nanoseconds and shares fractions of one."""
    table, out = as_one(document), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows([[_cell(value) for value in row.values] for row in table.rows])
    return out.getvalue()


def _cell(value: Any) -> Any:
    """Return a value's cell; a text that may be taken for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return "" if value is None else value
    begins = unicodedata.normalize("NFKC", INVISIBLE.sub("", value, count=1)[:1])
    may_be_formula = value.startswith(CONTROL_STARTS) or begins.startswith(FORMULA_STARTS)
    return f"'{value}" if may_be_formula else value
