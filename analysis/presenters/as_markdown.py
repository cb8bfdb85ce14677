"""Markdown pipe tables, through tabulate: one format."""

from __future__ import annotations

import re

from tabulate import tabulate

from ..document import Document, Row, Table
from ..support.text import printable
from . import cell_text

# Characters that would end a cell or start something else in it.
ESCAPED = str.maketrans(
    {character: f"\\{character}" for character in "\\|$`*_[]!~"}
    | {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": " "}
)
# Where viewers make links, and call for people and issues, without any of these: a space without width goes there.
LINKED_UNASKED = re.compile(r"(?i)(?<=:)(?=//)|(?<=\bwww)(?=\.)|(?<=@)(?=[a-z0-9])|(?<=#)(?=\d)")
NOTHING_WIDE = "&#8203;"


def present(document: Document) -> str:
    """Write a document as Markdown, every name in full."""
    parts = [f"**{_safe(document.heading)}**", *([_safe(document.verdict)] if document.verdict else [])]
    for table in cell_text.for_people(document):
        parts += [
            *([_safe(table.lead)] if table.lead else []),
            f"### {_safe(cell_text.title(table))}",
            _pipe_table(table),
            *([_safe(table.caption)] if table.caption else []),
        ]
    parts += [_safe(line) for line in document.accounting]
    parts += [f"> Note: {_safe(note)}" for note in document.notes]
    return "\n\n".join(parts) + "\n"


def _pipe_table(table: Table) -> str:
    rows = [
        [_cell(row, place, text) for place, text in enumerate(line)]
        for row, line in zip(table.rows, cell_text.texts(table), strict=True)
    ]
    aligned = ["right" if cell_text.is_number(column) else "left" for column in table.columns]
    heads = [_safe(head) for head in cell_text.headings(table)]
    return str(tabulate(rows, heads, tablefmt="pipe", colalign=aligned, disable_numparse=True))


def _cell(row: Row, place: int, text: str) -> str:
    text = _safe(text)
    if row.strong and text:
        text = f"**{text}**"
    return "&emsp;" * row.indent + text if place == 0 else text


def _safe(text: str) -> str:
    return LINKED_UNASKED.sub(NOTHING_WIDE, printable(text).translate(ESCAPED))
