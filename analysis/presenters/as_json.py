"""JSON of any document's tables, one format: raw values under their columns' keys, times in nanoseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..document import Document, Table, records, seen_by


def present(document: Document) -> str:
    """Write heading, tables, accounting and notes as one object, or the object that the document promises."""
    promised = document.promised() if document.promised else content(document)
    return json.dumps(promised, indent=1, ensure_ascii=False, default=_number) + "\n"


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


def _number(value: Any) -> Any:
    """Turn a numpy scalar into Python's number."""
    return value.item()
