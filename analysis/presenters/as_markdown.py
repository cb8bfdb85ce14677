"""Markdown pipe tables, through tabulate: one format."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..document import Document, Table
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
    return "\n\n".join(cell_text.laid_out(document, _safe, _table, "**%s**", remark="> %s")) + "\n"


def _table(table: Table) -> Iterator[str]:
    yield f"### {_safe(cell_text.title(table))}"
    yield cell_text.drawn(table, _safe, "**%s**", "pipe")
    yield from filter(None, [_safe(table.caption)])


def _safe(text: str) -> str:
    return LINKED_UNASKED.sub(NOTHING_WIDE, printable(text).translate(ESCAPED))
