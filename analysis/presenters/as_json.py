"""JSON of any document's tables, one format: raw values under their columns' keys, times in nanoseconds."""

from __future__ import annotations

import json
from typing import Any

from ..document import Document, Table, seen_by


def present(document: Document) -> str:
    """Write heading, tables, accounting and notes as one object, or the object that the document promises."""
    content = document.promised() if document.promised else _object(document)
    return json.dumps(content, indent=1, ensure_ascii=False, default=_number) + "\n"


def _object(document: Document) -> dict[str, Any]:
    return {
        "heading": document.heading,
        "tables": [_table(table) for table in document.tables],
        "accounting": list(document.accounting),
        "notes": list(document.notes),
    }


def _table(table: Table) -> dict[str, Any]:
    table = seen_by("programs", table)
    keys = [column.key for column in table.columns]
    return {
        "key": table.key,
        "title": table.title.replace("{unit}", "ns"),
        "caption": table.caption,
        "columns": [
            {"key": column.key, "heading": column.heading, "kind": column.kind} for column in table.columns
        ],
        "rows": [dict(zip(keys, row.known, strict=True)) for row in table.rows],
    }


def _number(value: Any) -> Any:
    """Turn a numpy scalar into Python's number."""
    return value.item()
