"""Typst tables, one format: every text is a string literal, so that nothing in it is markup."""

from __future__ import annotations

from collections.abc import Iterator

from ..document import Document, Table
from ..support.text import printable
from . import cell_text


def present(document: Document) -> str:
    """Write each table as a figure with its caption, ready to be included in a document."""
    parts = cell_text.laid_out(document, literal, _figure, "#strong(%s)", "#%s")
    return "\n\n".join(("#show figure: set block(breakable: true)", *parts)) + "\n"


def literal(text: str) -> str:
    """Write a string literal."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _figure(table: Table) -> Iterator[str]:
    aligned = ", ".join("right" if cell_text.is_number(column) else "left" for column in table.columns)
    heads = ", ".join(f"strong({literal(heading)})" for heading in cell_text.headings(table))
    rows = cell_text.grid(table, literal, "strong(%s)", lambda depth: f"h({depth}em) + " if depth else "")
    lines = [
        f"#figure(caption: figure.caption(position: top, {literal(cell_text.title(table))}),",
        "  table(",
        f"    columns: {len(table.columns)},",
        f"    align: ({aligned},),",
        "    stroke: none,",
        "    table.hline(),",
        f"    table.header({heads}),",
        "    table.hline(),",
        *("    " + " ".join(f"{cell}," for cell in cells) for cells in rows),
        "    table.hline(),",
        "  ),",
        ")",
    ]
    yield "\n".join([*lines, *([f"#text(size: 0.8em, {literal(table.caption)})"] if table.caption else [])])
