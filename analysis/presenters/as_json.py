"""JSON of any document's tables, one format: raw values under their columns' keys, times in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..container import plain
from ..document import Document, Table, records, seen_by


def present(document: Document) -> str:
    """Write heading, tables, accounting and notes as one object, or the object that the document promises."""
    promised = document.promised() if document.promised else content(document)
    encoded = msgspec.json.encode(promised, enc_hook=plain)
    return msgspec.json.format(encoded, indent=1).decode() + "\n"


def content(document: Document) -> Mapping[str, Any]:
    """Return heading, tables, accounting and notes as one object."""
    return {
        "heading": document.heading,
        "tables": [_table(table) for table in document.tables],
        "accounting": document.accounting,
        "notes": document.notes,
    }


def _table(table: Table) -> dict[str, Any]:
    table = seen_by("programs", table)
    return {
        "key": table.key,
        "title": table.title.replace("{unit}", "ns"),
        "caption": table.caption,
        "columns": [
            {"key": column.key, "heading": column.heading, "kind": column.kind} for column in table.columns
        ],
        "rows": records(table),
    }
