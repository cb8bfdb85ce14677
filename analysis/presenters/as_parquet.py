"""Parquet, one format: raw values of all tables as one, and what they are of in the file's metadata."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..document import Document, as_one


def present(document: Document) -> bytes:
    """Write the tables of a document; times are in nanoseconds and shares fractions of one."""
    table = as_one(document)
    columns = {
        column.key: _column([row.values[place] for row in table.rows])
        for place, column in enumerate(table.columns)
    }
    about = {
        "heading": document.heading,
        "titles": "\n".join(table.title.replace("{unit}", "ns") for table in document.tables),
        "captions": "\n".join(table.caption for table in document.tables if table.caption),
        "accounting": "\n".join(document.accounting),
        "notes": "\n".join(document.notes),
    }
    file = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(about), file)
    return file.getvalue()


def _column(values: list[Any]) -> pa.Array:
    """Return a column as text, integers or, where a fraction is among them, floats."""
    if any(isinstance(value, str) for value in values):
        # A damaged name holds what is not valid UTF-8.
        texts = [None if value is None else str(value).encode("utf-8", "replace").decode() for value in values]
        return pa.array(texts, pa.string())
    if any(isinstance(value, float) for value in values):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array(values)
