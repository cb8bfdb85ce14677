"""JSON of any document's tables, one format: raw values under their columns' keys, times in nanoseconds."""

from __future__ import annotations

import json
from typing import Any

from ..document import Document, Row, Table, seen_by


def present(document: Document) -> str:
    """Write heading, tables, accounting and notes as one object, or the object that the document promises."""
    whole = document.promised() if document.promised else _object(document)
    return json.dumps(whole, indent=1, ensure_ascii=False, default=_number) + "\n"


def _object(document: Document) -> dict[str, Any]:
    return {
        "heading": document.heading,
        "tables": [_table(table) for table in document.tables],
        "accounting": list(document.accounting),
        "notes": list(document.notes),
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
        "rows": [_row(table, row) for row in table.rows],
    }


def _row(table: Table, row: Row) -> dict[str, Any]:
    return {
        column.key: None if value == "" else value for column, value in zip(table.columns, row.values, strict=True)
    }


def _number(value: Any) -> Any:
    """Turn a numpy scalar into Python's number."""
    return value.item()
