"""The tables of `nsys export --type parquetdir`: a folder with one Parquet file per table.

The files are named after the tables (`NVTX_EVENTS.parquet`) and have the columns and string ids of the SQLite
export. Types differ between versions of nsys: integers of any width, texts plain or as dictionaries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import NotAReport
from ..support import arrow
from ..support.cores import cores
from ..support.progress import expect
from ..trace import Trace
from .nccl_payloads import PayloadEvent
from .nsys_tables import EVENTS, NEVER_ABSENT, STRINGS, NsysTables, Part, Table
from .nsys_trace import read_trace
from .safety import OBJECT_BYTES, require_within

NUMBER_BYTES = 8
TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.null())


class NsysParquet(NsysTables):
    """One folder of Parquet files; raises NotAReport for one that `nsys export` did not write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = {file.stem: file for file in sorted(path.glob("*.parquet"))}
        if STRINGS not in self.files:
            raise NotAReport(f"{path} is a folder of Parquet files, but not one that `nsys export` wrote.")

    def parts(self, table: Table) -> Sequence[Part]:
        """Offer a table in its row groups, to be read on several cores; none if it has no rows."""
        if table.name not in self.files:
            return ()
        numbers = {ours: (theirs, table.missing.get(ours)) for ours, theirs in table.columns.items() if theirs}
        has_texts = numbers.pop("text", None) is not None
        texts = ("text",) if has_texts else ()
        file = _File(self.files[table.name], numbers, texts)
        expect(file.rows)
        return [partial(file.read, [group]) for group in file.groups]

    def rows(self, table: str, **columns: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a small table; a column of values of another type than nsys's is refused."""
        if table not in self.files:
            return []
        texts = [name for name, missing in columns.items() if missing == ""]
        numbers = {name: (name, missing) for name, missing in columns.items() if name not in texts}
        file = _File(self.files[table], numbers, texts)
        if not file.rows or (set(columns) - NEVER_ABSENT) - set(file.columns):
            return []
        require_within(file.path, file.rows * len(columns) * OBJECT_BYTES)
        read = file.read(file.groups)
        require_within(file.path, arrow.text_bytes(read))
        values = [_decoded(read[name]) if name in texts else read[name].to_pylist() for name in columns]
        return list(zip(*values, strict=True))

    def payloads(self) -> Iterable[PayloadEvent]:
        """Yield NCCL's ranges that carry a payload."""
        if EVENTS.name not in self.files:
            return
        columns = {name: EVENTS.columns[name] for name in ("start", "thread", "text_id")}
        numbers = {ours: (theirs, EVENTS.missing.get(ours)) for ours, theirs in columns.items()}
        file = _File(self.files[EVENTS.name], numbers, ("text", "binaryData"))
        unpacked = 0
        for group in file.groups:
            events = file.read([group])
            require_within(file.path, arrow.text_bytes(events.select(["binaryData"])))
            payload = _plain(events["binaryData"])
            length = pc.fill_null(pc.binary_length(payload), 0)
            rows = events.filter(pc.greater(length, 0))
            unpacked += len(rows) * len(rows.column_names) * OBJECT_BYTES + arrow.text_bytes(rows)
            require_within(file.path, unpacked)
            texts = _decoded(rows["text"])
            text_ids = [-1] * len(rows)
            if "text_id" in rows.column_names:
                text_ids = rows["text_id"].to_pylist()
            registered = self.strings({text_id for text_id in text_ids if text_id >= 0})
            names = [text or registered.get(text_id, "") for text, text_id in zip(texts, text_ids, strict=True)]
            starts = rows["start"].to_pylist()
            threads = rows["thread"].to_pylist()
            blobs = _plain(rows["binaryData"]).to_pylist()
            for start, thread, name, blob in zip(starts, threads, names, blobs, strict=True):
                if name.lower().startswith("nccl"):
                    yield PayloadEvent(start, thread, name, blob)

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of these string ids; an id without text is left out."""
        is_asked = pc.is_in(self._strings["id"], arrow.integers(sorted(ids)))
        rows = self._strings.filter(is_asked)
        unpacked = len(rows) * 2 * OBJECT_BYTES + arrow.text_bytes(rows)
        require_within(self.files[STRINGS], unpacked)
        return dict(zip(rows["id"].to_pylist(), _decoded(rows["value"]), strict=True))

    @cached_property
    def _strings(self) -> pa.Table:
        file = _File(self.files[STRINGS], {"id": ("id", None)}, ("value",))
        return file.read(file.groups)


class _File:
    """A table in a Parquet file: `rows` of it in `groups`, of those `columns` that it has.

    Numbers are our names, each with nsys's column and what stands for a missing number (None: it is never
    missing). Raises NotAReport, here and in `read`, if the file is damaged, or has a column twice.
    """

    def __init__(self, path: Path, numbers: Mapping[str, tuple[str, int | None]], texts: Sequence[str]) -> None:
        self.path = path
        self.numbers = numbers
        self.texts = texts
        with self._refusing(), pq.ParquetFile(path) as file:
            self.metadata = file.metadata
            names = file.schema_arrow.names
        self.rows = self.metadata.num_rows
        self.groups = range(self.metadata.num_row_groups)
        read_columns = {*texts}
        for theirs, _ in numbers.values():
            read_columns.update(theirs.split(" * "))
        self.columns = [name for name in names if name in read_columns]
        for name, count in Counter(self.columns).items():
            if count > 1:
                raise NotAReport(f"{path} has several columns {name!r}: it is not nsys's.")
        # The columns' bytes in memory: a number per row each, and texts as the file states. Its statistics of
        # single columns are not read: where they are damaged, Arrow ends the process.
        with self._refusing():
            stored = sum(self.metadata.row_group(group).total_byte_size for group in self.groups)
        of_numbers = self.rows * NUMBER_BYTES * len(self.columns)
        require_within(path, int(max(stored, of_numbers)))

    def read(self, groups: Sequence[int]) -> pa.Table:
        """Return the rows of some groups: numbers as int64 where the file has them, and texts as it has them."""
        few = len(self.groups) < cores()  # then the columns of a group are read side by side
        with (
            self._refusing(),
            pq.ParquetFile(self.path, metadata=self.metadata, read_dictionary=self.texts) as file,
        ):
            raw = file.read_row_groups(groups, columns=self.columns, use_threads=few)
            arrow.require_texts(raw)
        try:
            columns = {ours: self._number(raw, *source) for ours, source in self.numbers.items()}
            columns |= {name: _texts(raw, name) for name in self.texts}
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise NotAReport(f"{self.path} has values of another type than nsys's: {error}.") from error
        return pa.table({name: values for name, values in columns.items() if values is not None})

    def _number(self, raw: pa.Table, theirs: str, missing: int | None) -> pa.ChunkedArray | None:
        """Return a column, or the product of some; None where the file has none."""
        product = None
        for name in theirs.split(" * "):
            if name not in raw.column_names:
                if not self.rows:  # of a table without rows, a file may have no columns
                    return pa.chunked_array([], pa.int64())
                if missing is None or name in NEVER_ABSENT:
                    raise NotAReport(f"{self.path.name} has no column {name!r}: it is not nsys's.")
                return None
            values = pc.cast(raw[name], pa.int64())
            if missing is not None:
                values = pc.fill_null(values, arrow.integer(missing))
            product = values if product is None else pc.multiply(product, values)
        return product

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeError, KeyError) as error:
            text = str(error).strip() or type(error).__name__
            reason = text.splitlines()[0].rstrip(".")
            raise NotAReport(f"{self.path} is damaged: {reason}. Export the report again.") from error


def read(path: Path) -> Trace:
    """Read the folder that `nsys export --type parquetdir` made.

    Raises NotAReport for a folder of other Parquet files, and for a damaged one.
    """
    return read_trace(NsysParquet(path))


def _texts(raw: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a text column, as a dictionary where the file has one; empty where the column is missing."""
    if column not in raw.column_names:
        return pa.chunked_array([pa.repeat(b"", raw.num_rows)])
    type_ = raw[column].type
    stored = type_.value_type if pa.types.is_dictionary(type_) else type_
    if stored not in TEXTS:
        raise pa.ArrowInvalid(f"{stored} in the column {column!r}")
    if pa.types.is_null(stored):
        return raw[column].cast(pa.binary())
    return raw[column]


def _plain(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts or payloads as bytes, also those of a dictionary."""
    if pa.types.is_dictionary(texts.type):
        texts = texts.cast(texts.type.value_type)
    return texts.cast(pa.binary())


def _decoded(texts: pa.ChunkedArray) -> list[str]:
    """Return texts, empty where they are missing, and repaired where they are not UTF-8."""
    return [(raw or b"").decode("utf-8", "replace") for raw in _plain(texts).to_pylist()]
