"""Typst tables, one format: every text is a string literal, so that nothing in it is markup."""

from __future__ import annotations

from collections.abc import Iterator

from ..document import Document, Row, Table
from ..support.text import printable
from . import cell_text


def present(document: Document) -> str:
    """Write each table as a figure with its caption, ready to be included in a document."""
    parts = ["#show figure: set block(breakable: true)", f"#strong({literal(document.heading)})"]
    parts += [f"#{literal(document.verdict)}"] if document.verdict else []
    for table in cell_text.for_people(document):
        parts += [*([f"#{literal(table.lead)}"] if table.lead else []), "\n".join(_figure(table))]
    parts += [f"#{literal(line)}" for line in document.accounting]
    parts += [f"#{literal(f'Note: {note}')}" for note in document.notes]
    return "\n\n".join(parts) + "\n"


def literal(text: str) -> str:
    """Write a string literal."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _figure(table: Table) -> Iterator[str]:
    aligned = ", ".join("right" if cell_text.is_number(column) else "left" for column in table.columns)
    heads = ", ".join(f"strong({literal(heading)})" for heading in cell_text.headings(table))
    yield f"#figure(caption: figure.caption(position: top, {literal(cell_text.title(table))}),"
    yield from ("  table(", f"    columns: {len(table.columns)},", f"    align: ({aligned},),")
    yield from ("    stroke: none,", "    table.hline(),", f"    table.header({heads}),", "    table.hline(),")
    for row, texts in zip(table.rows, cell_text.texts(table), strict=True):
        yield "    " + " ".join(f"{_cell(row, place, text)}," for place, text in enumerate(texts))
    yield from ("    table.hline(),", "  ),", ")")
    if table.caption:
        yield f"#text(size: 0.8em, {literal(table.caption)})"


def _cell(row: Row, place: int, text: str) -> str:
    written = f"strong({literal(text)})" if row.strong and text else literal(text)
    return f"h({row.indent}em) + {written}" if place == 0 and row.indent else written
