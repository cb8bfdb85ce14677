"""A rank's summary in the format of earlier versions: one Parquet table of the rows of all tables.

`table` says which row it is, and `of` whether it is of all work or of the steps that count. The head stands in the
file's metadata under KEY, as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path as FilePath
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..account.choice import choose
from ..errors import NotAReport
from ..readers.safety import OBJECT_BYTES, require_within
from ..report.evidence import NAMED, STEP
from ..support import arrow
from .tables import COLUMNS, Head

VERSION = 2
KEY = b"nvtx-kernels.summary"
_PLACES = {str: "{}", tuple[str, ...]: "{}.list.element"}
TEXT_COLUMNS = ["table", "of"]
for of_table in COLUMNS.values():
    TEXT_COLUMNS += [_PLACES[kind].format(name) for name, kind in of_table.items() if kind in _PLACES]

#: The rows of one table, of all work or of the steps that count: (table, of, rows).
Rows: TypeAlias = tuple[str, str, pa.Table]


def read_groups(path: FilePath, columns: Mapping[str, Sequence[str]]) -> tuple[Head, list[Rows]]:
    """Return a summary's head, and the columns asked for of some tables (table, of, rows).

    A file's groups of rows are of one table each, so that only those wanted are read.
    Raises NotAReport if it unpacks to more than it may; OSError, ArrowException, LookupError, TypeError or
    ValueError if it is damaged.
    """
    # Texts are read as numbers of a dictionary, and compared only once their length is known.
    with pq.ParquetFile(path, pre_buffer=False, read_dictionary=TEXT_COLUMNS) as file:
        head = msgspec.json.decode((file.schema_arrow.metadata or {})[KEY], type=Head)
        if head.version > VERSION:
            raise NotAReport(f"{path} was written by a later nvtx-kernels; upgrade this one to read it.")
        if head.version <= 1:
            head.reports = {extent: _upgraded(about) for extent, about in head.reports.items()}
        _require_readable_columns(path, file)
        groups = []
        unpacked = 0
        for number in range(file.num_row_groups):
            about = file.metadata.row_group(number)
            require_within(path, unpacked + about.num_rows * OBJECT_BYTES)
            table, extent = _table_of(file, number)
            if table in columns:
                names = columns[table]
                unpacked += _stored_values(about, names) * OBJECT_BYTES
                require_within(path, unpacked)
                rows = file.read_row_group(number, columns=list(names), use_threads=False).select(names)
                rows.validate(full=True)  # that texts are text, and their numbers in their dictionary
                unpacked += arrow.text_bytes(rows)
                require_within(path, unpacked)
                groups.append((table, extent, rows))
        return head, groups


def listed(values: pa.Array) -> list[Any]:
    """Return a column's values as Arrow's `to_pylist` does, in a third of its time: equal texts are one object."""
    if pa.types.is_dictionary(values.type):
        texts = values.dictionary.to_pylist()
        return [None if number is None else texts[number] for number in listed(values.indices)]
    if pa.types.is_list(values.type):
        flat = iter(listed(values.flatten()))
        lengths = listed(values.value_lengths())
        return [None if length is None else list(islice(flat, length)) for length in lengths]
    if values.null_count or not len(values) or pa.types.is_string(values.type):
        items: list[Any] = values.to_pylist()
    else:
        items = arrow.to_numpy(values).tolist()
    return items


def _require_readable_columns(path: FilePath, file: pq.ParquetFile) -> None:
    """Raise ArrowException or OSError where a file's data on a column is damaged.

    Arrow ends the process where that is asked for; before it reads a row ahead, it looks at all columns itself.
    """
    stored = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
    require_within(path, stored)
    with pq.ParquetFile(path, pre_buffer=True, metadata=file.metadata, read_dictionary=TEXT_COLUMNS) as ahead:
        next(ahead.iter_batches(1, row_groups=range(file.num_row_groups), use_threads=False), None)


def _table_of(file: pq.ParquetFile, number: int) -> tuple[str, str]:
    """Return the table and the kind of work of a group's rows; raises ValueError for rows of several."""
    rows = file.read_row_group(number, columns=["table", "of"], use_threads=False)
    arrow.require_texts(rows)
    tables = rows["table"].unique().to_pylist()
    extents = rows["of"].unique().to_pylist()
    if len(tables) != 1 or len(extents) != 1:
        raise ValueError("its groups of rows are not of one table each")
    return tables[0], extents[0]


def _stored_values(about: pq.RowGroupMetaData, names: Sequence[str]) -> int:
    """Return how many values a group of rows has in these columns, those of lists included."""
    count = 0
    for place in range(about.num_columns):
        column = about.column(place)
        name = column.path_in_schema.split(".")[0]
        if name in names:
            count += max(column.num_values, about.num_rows)
    return count


def _upgraded(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report's fields in a file of version 1, which has the times of steps but no account of them."""
    rows = (about.get("step_time") or {}).get("rows", [])
    upgraded = {**about, "counted_steps": about["steps"], "account": None}
    if not rows:
        return upgraded
    of_steps_ns = [row["own_ns"] for row in rows]
    is_known = np.array([not row["first"] for row in rows])
    counted = choose(of_steps_ns, is_known, is_first=True).counted.tolist()
    rows = [{**row, "counted": number in counted} for number, row in enumerate(rows)]
    on_cpu = any(row["busy_ns"] is None for row in rows)
    upgraded["account"] = {"per": STEP, "steps_by": NAMED, "rows": rows, "gpus": [], "on_cpu": on_cpu}
    return upgraded
