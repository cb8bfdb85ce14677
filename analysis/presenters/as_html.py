"""HTML tables through tabulate, one format: a plain file; `analysis.page` writes the page with charts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ..document import Document, Table
from ..support.text import printable
from . import cell_text

#: The `generator` that the head of a page names: only such a file is replaced without being asked for.
PAGE = "nvtx-kernels page"
STYLE = "body{font-family:sans-serif}td,th{padding:0 .5em}caption{text-align:left;font-weight:bold}"


def present(document: Document) -> str:
    """Write a document as one HTML file without scripts, every name in full."""
    title = _safe(document.heading)
    head = f"<!DOCTYPE html>\n<meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
    return f"{head}\n{fragment(document)}"


def fragment(document: Document) -> str:
    """Write a document as a fragment for another page, such as a notebook."""
    parts = cell_text.laid_out(document, _safe, _table, "<p><b>%s</b></p>", "<p>%s</p>")
    return "\n".join(parts) + "\n"


def _table(table: Table) -> Iterator[str]:
    drawn = cell_text.drawn(table, _safe, "<b>%s</b>", "unsafehtml")
    for cell in ("td", "th"):  # a notebook's own style would align names right
        drawn = drawn.replace(f"<{cell}>", f'<{cell} style="text-align: left;">')
    yield drawn.replace("<table>", f"<table>\n<caption>{_safe(cell_text.title(table))}</caption>", 1)
    if table.caption:
        yield f"<p>{_safe(table.caption)}</p>"


def _safe(text: str) -> str:
    return escape(printable(text))
