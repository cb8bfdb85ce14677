"""The words of an answer: a GPU runs kernels that are launched, a CPU operators that are called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from analysis.provenance import Provenance
from analysis.report import Report
from analysis.tables import Document, Table
from analysis.views import provenance

ON_CPU = {
    "kernel": "operator", "kernels": "operators", "launch": "call", "launches": "calls", "launched": "called",
    "launching": "calling",
}  # fmt: skip
_WORDS = re.compile(rf"(?<![\w:-])(?:{'|'.join(sorted(ON_CPU, reverse=True))})(?!::|[\w-])", re.IGNORECASE)


def category(name: str) -> str:
    """Write a category as people do; programs get it as it is."""
    return "GEMM" if name == "gemm" else name


def worded(text: str, source: Provenance) -> str:
    """Return a text in the words that suit what a report is of."""
    return on_cpu(text) if source.unit_of_work == "CPU" else text


def on_cpu(text: str) -> str:
    """Return a text about kernels in the words for a CPU's operators."""
    return _WORDS.sub(_other_word, text)


def _other_word(found: re.Match[str]) -> str:
    word = ON_CPU[found[0].lower()]
    return word.capitalize() if found[0][0].isupper() else word


def answer(
    report: Report, tables: Iterable[Table], notes: Iterable[str], *, accounting: Iterable[str] | None = None
) -> Document:
    """Put a report's answer together, in the words that suit what the report is of."""
    accounted = provenance.accounting(report) if accounting is None else accounting
    return document(report.provenance, provenance.heading(report), tables, accounted, notes)


def document(
    source: Provenance, heading: str, tables: Iterable[Table], accounting: Iterable[str], notes: Iterable[str]
) -> Document:
    """Put an answer together, in the words that suit what the report is of; values and notes stay as they are."""
    return Document(
        heading,
        tuple(_worded(table, source) for table in tables),
        tuple(worded(line, source) for line in accounting),
        tuple(notes),
    )


def _worded(table: Table, source: Provenance) -> Table:
    columns = tuple(replace(column, heading=worded(column.heading, source)) for column in table.columns)
    return replace(
        table, title=worded(table.title, source), caption=worded(table.caption, source), columns=columns
    )
