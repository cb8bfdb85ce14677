"""Comma-separated values: one format, so one small file. Raw numbers, nanoseconds, all tables as one."""

from __future__ import annotations

import csv
import re
import unicodedata
from typing import Any

from ..document import Document, as_one

# A spreadsheet treats a cell that begins with these as a formula: some also after spaces, or in full-width forms.
FORMULA_STARTS = ("=", "+", "-", "@")
CONTROL_STARTS = ("\t", "\r")
ENDING = "\r\n"
INVISIBLE = re.compile(r"[\s\u200b\u2060\ufeff]*")


def present(document: Document) -> str:
    """Write the tables of a document; times are in nanoseconds and shares fractions of one."""
    table, lines = as_one(document), _Lines()
    writer = csv.writer(lines, lineterminator=ENDING)
    writer.writerow([column.key for column in table.columns])
    writer.writerows([[_cell(value) for value in row.values] for row in table.rows])
    return "".join(lines)


class _Lines(list[str]):
    """Takes lines from a writer that quotes all that may end a line, and ends them by a line feed alone.

    Before Python 3.13, a writer quotes only the characters of its own ending, so not a carriage return in a name.
    """

    def write(self, line: str) -> None:
        """Take a line."""
        self.append(f"{line.removesuffix(ENDING)}\n")


def _cell(value: Any) -> Any:
    """Return a value's cell; a text that may be taken for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return "" if value is None else value
    begins = unicodedata.normalize("NFKC", INVISIBLE.sub("", value, count=1)[:1])
    may_be_formula = value.startswith(CONTROL_STARTS) or begins.startswith(FORMULA_STARTS)
    return f"'{value}" if may_be_formula else value
