"""The tables of `nsys export --type parquetdir`: a folder with one Parquet file per table.

The files are named after the tables (`NVTX_EVENTS.parquet`) and have the columns and string ids of the SQLite
export, so this reader gives the tables of `nsys_sqlite`, made with Arrow instead of SQL. Types differ between
versions of nsys: integers of any width, texts plain or as dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.errors import NotAReport
from analysis.readers.columns import Part
from analysis.readers.nsys_events import (
    DOMAIN_TYPE,
    MARK_TYPE,
    NEVER_CLOSED,
    PUSH_POP_TYPES,
    START_END_TYPES,
)
from analysis.readers.nsys_trace import read_trace
from analysis.trace import GRAPH, KERNEL, MEMCPY, MEMSET, Trace
from analysis.vocabulary import OPERATOR_SUFFIXES

# Ours: (nsys's column, what stands for a missing value). A column without a stand-in must be there.
Columns = Mapping[str, tuple[str, int | None]]

RANGES: Columns = {
    "start": ("start", None),
    "end": ("end", NEVER_CLOSED),
    "event": ("eventType", None),
    "thread": ("globalTid", 0),
    "domain": ("domainId", 0),
    "text_id": ("textId", -1),
}
LAUNCHES: Columns = {
    "start": ("start", None),
    "end": ("end", None),
    "thread": ("globalTid", 0),
    "correlation": ("correlationId", -1),
    "event_class": ("eventClass", 0),
}
WORK: Columns = {
    "start": ("start", None),
    "end": ("end", None),
    "process": ("globalPid", 0),
    "correlation": ("correlationId", -1),
    "device": ("deviceId", 0),
    "stream": ("streamId", 0),
}
# What a kind of work has besides those, and its table. Columns of this name that no table has are filled in.
WORK_TABLES: Mapping[int, tuple[str, Columns]] = {
    KERNEL: (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        {"name": ("demangledName", -1), "x": ("gridX", 0), "y": ("gridY", 0), "z": ("gridZ", 0)},
    ),
    MEMCPY: ("CUPTI_ACTIVITY_KIND_MEMCPY", {"name": ("copyKind", -1)}),
    MEMSET: ("CUPTI_ACTIVITY_KIND_MEMSET", {}),
    GRAPH: ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", {}),
}
# Every export has these, though single rows may not: without one, all work would be nobody's.
NEVER_ABSENT = frozenset({"globalTid", "correlationId", "domainId", "deviceId", "streamId"})
EVENTS_READ = (*PUSH_POP_TYPES, *START_END_TYPES, MARK_TYPE, DOMAIN_TYPE)
CUDA_EVENT_CLASSES = (0, 1)
METADATA_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")

# RE2 runs in linear time. Its patterns see bytes, for a name need not be UTF-8.
_SUFFIXES = "|".join(suffix.strip(", =") for suffix in OPERATOR_SUFFIXES)
BARE_NAME = rf"(?s)^(?P<name>.*?)(?:, (?:{_SUFFIXES}) = .*)?$"
SEQUENCE = r", seq = (?P<seq>[0-9]{1,18})(?:[^0-9]|$)"


class NsysParquet:
    """One folder of Parquet files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = {file.stem: file for file in sorted(path.glob("*.parquet"))}

    def is_export(self) -> bool:
        """Tell whether this folder is nsys's rather than somebody else's."""
        return "StringIds" in self.files

    def ranges(self) -> Sequence[Part]:
        """Return NVTX ranges, marks and domain names."""
        return _parts(self._integers("NVTX_EVENTS", RANGES, texts=("text",)), _events)

    def launches(self) -> Sequence[Part]:
        """Return CUDA API calls, the runtime's and the driver's."""
        return _parts(self._integers("CUPTI_ACTIVITY_KIND_RUNTIME", LAUNCHES), _calls)

    def work(self, kind: int) -> Sequence[Part]:
        """Return the GPU work of one kind."""
        table, extra = WORK_TABLES[kind]
        return _parts(self._integers(table, {**WORK, **extra}), partial(_work, extra))

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of these string ids; an id without text is left out."""
        if self._strings is None:
            return {}
        wanted = self._strings.filter(pc.is_in(self._strings["id"], pa.array(sorted(ids), pa.int64())))
        return dict(zip(wanted["id"].to_pylist(), _decoded(wanted["value"]), strict=True))

    def thread_names(self) -> list[tuple[int, str]]:
        """Return (global thread id, name) rows; a thread may have several."""
        rows = self._integers("ThreadNames", {"thread": ("globalTid", -1), "name": ("nameId", -1)})
        if rows is None:
            return []
        names = self.strings(rows["name"].to_pylist())
        pairs = zip(rows["thread"].to_pylist(), rows["name"].to_pylist(), strict=True)
        return [(thread, names[name]) for thread, name in pairs if thread >= 0 and name in names]

    def gpus(self) -> tuple[str, ...]:
        """Return the names of the GPUs in the machine, each once."""
        table = self._integers("TARGET_INFO_GPU", {}, texts=("name",))
        return tuple(dict.fromkeys(filter(None, _decoded(table["name"])))) if table is not None else ()

    def metadata(self) -> dict[str, str]:
        """Return the export's own description of itself."""
        tables = (self._integers(name, {}, texts=("name", "value")) for name in METADATA_TABLES)
        found = [(_decoded(table["name"]), _decoded(table["value"])) for table in tables if table is not None]
        return {name: value for names, values in found for name, value in zip(names, values, strict=True)}

    @cached_property
    def _strings(self) -> pa.Table | None:
        return self._integers("StringIds", {"id": ("id", None)}, texts=("value",))

    def _integers(self, table: str, columns: Columns, texts: Iterable[str] = ()) -> pa.Table | None:
        """Return integer columns under our names, and text ones as bytes under theirs; None without rows."""
        raw = self._read(table, {*texts, *(theirs for theirs, _ in columns.values())})
        if raw is None or not raw.num_rows:
            return None
        try:
            whole = {ours: _filled(raw, table, *source) for ours, source in columns.items()}
            return pa.table({**whole, **{name: _as_bytes(raw, name) for name in texts}})
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise NotAReport(f"{self.files[table]} holds values of another kind than nsys's: {error}.") from error

    def _read(self, table: str, columns: set[str]) -> pa.Table | None:
        if table not in self.files:
            return None
        try:
            with pq.ParquetFile(self.files[table]) as file:
                return file.read(columns=[name for name in file.schema_arrow.names if name in columns])
        except (pa.ArrowException, OSError, UnicodeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise NotAReport(f"{self.files[table]} is damaged: {reason}. Export the report again.") from error


def read(path: Path) -> Trace:
    """Read the folder that `nsys export --type parquetdir` made.

    Raises NotAReport for a folder of other Parquet files, and for a damaged one.
    """
    tables = NsysParquet(path)
    if not tables.is_export():
        raise NotAReport(f"{path} is a folder of Parquet files, but not one that `nsys export` wrote.")
    return read_trace(tables)


def _parts(table: pa.Table | None, finish: Callable[[pa.Table], pa.Table]) -> Sequence[Part]:
    """Offer a table as one part; none if it has no rows."""
    return [partial(finish, table)] if table is not None else ()


def _events(events: pa.Table) -> pa.Table:
    events = events.filter(pc.is_in(events["event"], pa.array(EVENTS_READ, pa.int64())))
    whole = pc.is_in(events["event"], pa.array((MARK_TYPE, DOMAIN_TYPE), pa.int64()))
    name, seq = _without_suffixes(events["text"])
    name = pc.if_else(whole, events["text"], name)
    return _with(events, text=_as_text(name), seq=pc.if_else(whole, -1, seq))


def _calls(calls: pa.Table) -> pa.Table:
    cuda = pc.is_in(calls["event_class"], pa.array(CUDA_EVENT_CLASSES, pa.int64()))
    return _with(calls, foreign_class=pc.cast(pc.invert(cuda), pa.int64()))


def _work(extra: Columns, work: pa.Table) -> pa.Table:
    zero = pa.chunked_array([pa.repeat(0, work.num_rows)])
    grid = pc.multiply(pc.multiply(work["x"], work["y"]), work["z"]) if "x" in extra else zero
    return _with(work, name=work["name"] if "name" in extra else zero, grid=grid)


def _filled(raw: pa.Table, table: str, column: str, missing: int | None) -> pa.ChunkedArray:
    if column in raw.column_names:
        values = pc.cast(raw[column], pa.int64())
        return values if missing is None else pc.fill_null(values, missing)
    if missing is None or column in NEVER_ABSENT:
        raise NotAReport(f"{table}.parquet has no column {column!r}: it is not nsys's.")
    return pa.chunked_array([pa.repeat(missing, raw.num_rows)])


def _as_bytes(raw: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a text column as bytes, empty where it is missing."""
    if column not in raw.column_names:
        return pa.chunked_array([pa.repeat(b"", raw.num_rows)])
    values = raw[column]
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    return pc.fill_null(pc.cast(values, pa.binary()), b"")


def _as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Call bytes a text without checking them; whoever decodes them repairs what is no UTF-8."""
    return pa.chunked_array([chunk.view(pa.string()) for chunk in values.chunks], pa.string())


def _decoded(values: pa.ChunkedArray) -> list[str]:
    return [raw.decode("utf-8", "replace") for raw in values.to_pylist()]


def _without_suffixes(text: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Split PyTorch's suffixes off operators' names, as `vocabulary.without_suffixes` does of one."""
    name = pc.struct_field(pc.extract_regex(text, BARE_NAME), 0)
    seq = pc.struct_field(pc.extract_regex(text, SEQUENCE), 0)
    return name, pc.fill_null(pc.cast(_as_text(seq), pa.int64()), -1)


def _with(table: pa.Table, **columns: Any) -> pa.Table:
    """Return the table with these columns added or replaced."""
    kept = {name: table[name] for name in table.column_names if name not in columns}
    return pa.table({**kept, **columns})
