"""HTML tables through tabulate, one format: a plain file; `analysis.page` writes the page with charts."""

from __future__ import annotations

from html import escape

from tabulate import tabulate

from ..document import Document, Row, Table
from ..support.text import printable
from . import cell_text

STYLE = "body{font-family:sans-serif}td,th{padding:0 .5em}caption{text-align:left;font-weight:bold}"


def present(document: Document) -> str:
    """Write a document as one HTML file without scripts, every name in full."""
    title = _safe(document.heading)
    head = f"<!DOCTYPE html>\n<meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
    return f"{head}\n{fragment(document)}"


def fragment(document: Document) -> str:
    """Write a document as a fragment for another page, such as a notebook."""
    parts = [f"<p><b>{_safe(document.heading)}</b></p>"]
    parts.append(f"<p>{_safe(document.verdict)}</p>" if document.verdict else "")
    for table in cell_text.for_people(document):
        parts += [f"<p>{_safe(table.lead)}</p>" if table.lead else ""]
        parts += [_table(table), f"<p>{_safe(table.caption)}</p>" if table.caption else ""]
    parts += [f"<p>{_safe(line)}</p>" for line in document.accounting]
    parts += [f"<p>Note: {_safe(note)}</p>" for note in document.notes]
    return "\n".join(filter(None, parts)) + "\n"


def _table(table: Table) -> str:
    rows = [
        [_cell(row, place, text) for place, text in enumerate(line)]
        for row, line in zip(table.rows, cell_text.texts(table), strict=True)
    ]
    aligned = ["right" if cell_text.is_number(column) else "left" for column in table.columns]
    heads = [_safe(head) for head in cell_text.headings(table)]
    drawn = str(tabulate(rows, heads, tablefmt="unsafehtml", colalign=aligned, disable_numparse=True))
    return drawn.replace("<table>", f"<table>\n<caption>{_safe(cell_text.title(table))}</caption>", 1)


def _cell(row: Row, place: int, text: str) -> str:
    text = f"<b>{_safe(text)}</b>" if row.strong and text else _safe(text)
    return "&emsp;" * row.indent + text if place == 0 else text


def _safe(text: str) -> str:
    return escape(printable(text))
