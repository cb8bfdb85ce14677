"""Typst tables: every text is a string literal, so that nothing in it means anything to Typst."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.kernel_names import printable
from analysis.presenters import cells
from analysis.tables import Document, Row, Table


def present(document: Document) -> str:
    """Write each table as a figure with its caption, ready to be included in a document."""
    parts = ["#show figure: set block(breakable: true)", f"#strong({literal(document.heading)})"]
    parts += ["\n".join(_figure(table)) for table in document.tables]
    parts += [f"#{literal(line)}" for line in document.accounting]
    parts += [f"#{literal(f'Note: {note}')}" for note in document.notes]
    return "\n\n".join(parts) + "\n"


def literal(text: str) -> str:
    """Write a string literal."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _figure(table: Table) -> Iterator[str]:
    aligned = ", ".join("right" if cells.is_number(column) else "left" for column in table.columns)
    heads = ", ".join(f"strong({literal(heading)})" for heading in cells.headings(table))
    yield f"#figure(caption: figure.caption(position: top, {literal(cells.title(table))}),"
    yield from ("  table(", f"    columns: {len(table.columns)},", f"    align: ({aligned},),")
    yield from ("    stroke: none,", "    table.hline(),", f"    table.header({heads}),", "    table.hline(),")
    for row, texts in zip(table.rows, cells.texts(table), strict=True):
        yield "    " + " ".join(f"{_cell(row, place, text)}," for place, text in enumerate(texts))
    yield from ("    table.hline(),", "  ),", ")")
    if table.caption:
        yield f"#text(size: 0.8em, {literal(table.caption)})"


def _cell(row: Row, place: int, text: str) -> str:
    written = f"strong({literal(text)})" if row.strong and text else literal(text)
    return f"h({row.indent}em) + {written}" if place == 0 and row.indent else written
