"""Markdown pipe tables, through tabulate."""

from __future__ import annotations

from tabulate import tabulate

from analysis.kernel_names import printable
from analysis.presenters import cells
from analysis.tables import Document, Row, Table

# Characters that would end a cell or start something else in it.
ESCAPED = str.maketrans(
    {"\\": "\\\\", "|": "\\|", "$": "\\$", "<": "&lt;", ">": "&gt;", "`": "\\`", "*": "\\*", "_": "\\_", "\n": " "}
)


def present(document: Document) -> str:
    """Write a document as Markdown, every name in full."""
    parts = [f"**{_safe(document.heading)}**"]
    for table in document.tables:
        parts += [
            f"### {_safe(cells.title(table))}",
            _pipe_table(table),
            *([_safe(table.caption)] if table.caption else []),
        ]
    parts += [_safe(line) for line in document.accounting]
    parts += [f"> Note: {_safe(note)}" for note in document.notes]
    return "\n\n".join(parts) + "\n"


def _pipe_table(table: Table) -> str:
    rows = [
        [_cell(row, place, text) for place, text in enumerate(line)]
        for row, line in zip(table.rows, cells.texts(table), strict=True)
    ]
    aligned = ["right" if cells.is_number(column) else "left" for column in table.columns]
    heads = [_safe(head) for head in cells.headings(table)]
    return str(tabulate(rows, heads, tablefmt="pipe", colalign=aligned, disable_numparse=True))


def _cell(row: Row, place: int, text: str) -> str:
    text = _safe(text)
    if row.strong and text:
        text = f"**{text}**"
    return "&emsp;" * row.indent + text if place == 0 else text


def _safe(text: str) -> str:
    return printable(text).translate(ESCAPED)
