"""The file of a report: SQLite with a table for each part of a `Trace`, written whole or part by part.

A summary of a rank (`summary/file.py`) has other tables, and a head of its own, in the same container.

```
trace (what, value)           what is no table, as JSON; "columns" has each column's dtype, so names what is there,
                              and "rows" counts what is complete: a killed recording can have begun more
work, launches, ranges, …     a table a part, a row a row, in order: `row` counts from 0
graph_node, captures_at_ns …  a table for what is a single column; a missing value in such a part is in `trace`
names, threads, facts, …      lists: of texts, of records, and of marks as JSON
marks                         only of a recording: what it wrote about itself, which reading makes facts of
kernels, named_ranges, …      views in plain words: docs/report_file.md
```
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, get_args, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from nvtx_kernels import APPLICATION_ID

from .trace import FUNCTION, KINDS, CallNames, Captures, Columns, Domain, Lines, Process, Thread, Trace
from .vocabulary.calls import CALL_KINDS

VERSION = 1
HEAD = "trace"
DTYPES = "columns"
ROWS = "rows"
TEXT = "text"
#: What the head says of a recording, and the table of its marks.
RECORDING = "recording"
MARKS = "marks"
ROWS_AT_ONCE = 200_000
HINTS = get_type_hints(Trace)
#: Parts of a Trace with columns of one length, those with columns of several, lists of records, and of texts.
TABLES = {
    name: kind
    for name, hint in HINTS.items()
    for kind in (hint, *get_args(hint))
    if isinstance(kind, type) and issubclass(kind, Columns)
}
SINGLE_COLUMNS: Mapping[str, type[Any]] = {"captures": Captures, "calls": CallNames, "lines": Lines}
RECORDS: Mapping[str, type[Any]] = {"threads": Thread, "processes": Process, "domains": Domain}
TEXTS = ("names", "frame_names")
#: Columns that are positions in another part or among this many kinds, or -1.
POSITIONS: Mapping[str, Mapping[str, str | int]] = {
    "work": {"name_id": "names", "process": "processes", "launch": "launches", "kind": len(KINDS)},
    "launches": {"thread": "threads"},
    "ranges": {"name_id": "names", "thread": "threads", "domain": "domains", "category": FUNCTION + 1},
    "threads": {"process": "processes"},
    "domains": {"process": "processes"},
    "facts": {"thread": "threads"},
    "memory": {"thread": "threads", "process": "processes"},
    "messages": {"launch": "launches", "collective": "names", "group": "names"},
    "waits": {"call": "launches"},
    "copies": {"work": "work"},
    "overhead": {"thread": "threads"},
    "frames": {"thread": "threads", "name_id": "frame_names"},
    "pauses": {"thread": "threads"},
    "operators": {"thread": "threads", "call": "operator_calls"},
    "lines_of_launch": {"value": "lines_sources"},
    "lines_before_launch": {"value": "lines_sources"},
    "calls_of_launch": {"value": "calls_kind_of_name"},
    "calls_kind_of_name": {"value": len(CALL_KINDS)},
    "captures_thread": {"value": "threads"},
}
#: Columns that have a value for each row of another part.
AS_LONG_AS = {
    "lines_of_launch": "launches",
    "lines_before_launch": "launches",
    "calls_of_launch": "launches",
    "captures_of_work": "work",
    "graph_node": "work",
}
VIEWS = (
    """
CREATE VIEW kernels AS
SELECT work.row, names.value AS kernel, start_ns, end_ns, end_ns - start_ns AS duration_ns,
device_id, stream_id, launch FROM work JOIN names ON names.row = name_id WHERE kind = 0
""",
    """
CREATE VIEW named_ranges AS
SELECT ranges.row, names.value AS name, start_ns, end_ns, end_ns - start_ns AS duration_ns, thread
FROM ranges JOIN names ON names.row = name_id
""",
    """
CREATE VIEW kernels_by_range AS
SELECT named_ranges.row AS range, named_ranges.name, kernels.row, kernel, kernels.duration_ns
FROM named_ranges JOIN launches ON launches.thread = named_ranges.thread
AND launches.start_ns >= named_ranges.start_ns AND launches.start_ns < named_ranges.end_ns
JOIN kernels ON kernels.launch = launches.row
""",
    # As nsys names them, for what is written for its exports; docs/nsys_tables.md.
    "CREATE VIEW StringIds AS SELECT row AS id, value FROM names",
    """
CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS
SELECT start_ns AS start, end_ns AS "end", device_id AS deviceId, stream_id AS streamId, launch AS correlationId,
grid AS gridX, name_id AS demangledName, name_id AS shortName FROM work WHERE kind = 0
""",
    """
CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS
SELECT start_ns AS start, end_ns AS "end", thread AS globalTid, row AS correlationId FROM launches
""",
    """
CREATE VIEW NVTX_EVENTS AS
SELECT start_ns AS start, end_ns AS "end", 59 AS eventType, thread AS globalTid, name_id AS textId, NULL AS text
FROM ranges
""",
)
Values: TypeAlias = NDArray[Any] | Sequence[Any]


class Layout(NamedTuple):
    """A kind of file: its number in SQLite's header, the table of its head, its newest version, and its views."""

    application_id: int
    head: str
    version: int
    views: Sequence[str] = ()


REPORT = Layout(APPLICATION_ID, HEAD, VERSION, VIEWS)


class Container:
    """The tables of a file in a database that is being written.

    `rows` counts the rows of each table. Methods raise sqlite3.Error where writing fails.
    """

    def __init__(self, database: sqlite3.Connection, layout: Layout = REPORT) -> None:
        self.rows: dict[str, int] = {}
        self._layout = layout
        self._database = database
        self._dtypes: dict[str, dict[str, str]] = {}
        # Rows reach the file when they are committed, or are more than a few MiB: a journal would only cost time.
        database.executescript(
            f"PRAGMA application_id = {layout.application_id}; PRAGMA user_version = {layout.version};"
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
        )

    def append(self, table: str, columns: Mapping[str, Values]) -> None:
        """Append rows to a table, in blocks: no second copy of a large one exists as Python's objects."""
        if table not in self.rows:
            self._create(table, columns)
            self._dtypes[table] = {
                name: str(column.dtype) if isinstance(column, np.ndarray) else TEXT
                for name, column in columns.items()
            }
        places = ", ".join("?" * (len(columns) + 1))
        first = self.rows[table]
        count = len(next(iter(columns.values())))
        for begin in range(0, count, ROWS_AT_ONCE):
            block = [_as_objects(values[begin : begin + ROWS_AT_ONCE]) for values in columns.values()]
            rows = zip(range(first + begin, first + count), *block, strict=False)
            self._database.executemany(f'INSERT INTO "{table}" VALUES ({places})', rows)  # noqa: S608 - names of ours
        self.rows[table] = first + count

    def replace(self, table: str, columns: Mapping[str, Values]) -> None:
        """Write rows in place of those that a small table has."""
        if self.rows.get(table):
            self._database.execute(f'DELETE FROM "{table}"')  # noqa: S608 - a name of ours
            self.rows[table] = 0
        self.append(table, columns)

    def commit(self, head: Mapping[str, Any]) -> None:
        """Make a file of the rows so far, with this head: what is no table, by name."""
        table = self._layout.head
        counts = {table: self.rows[table] for table in self._dtypes}
        whole = {"version": self._layout.version, **head, DTYPES: self._dtypes, ROWS: counts}
        texts = [msgspec.json.encode(value, enc_hook=plain).decode() for value in whole.values()]
        if table in self.rows:
            self._database.execute(f"DELETE FROM {table}")  # noqa: S608 - a name of ours
        else:
            self._create(table, {"what": (), "value": ()})
            for view in self._layout.views:
                self._database.execute(view)
        rows = zip(range(len(whole)), whole, texts, strict=True)
        self._database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)  # noqa: S608 - a name of ours
        self._database.commit()

    def _create(self, table: str, columns: Mapping[str, Values]) -> None:
        names = ", ".join(f'"{name}"' for name in columns)
        self._database.execute(f'CREATE TABLE "{table}" ("row" INTEGER PRIMARY KEY, {names})')
        self.rows[table] = 0


def _as_objects(values: Values) -> Sequence[Any]:
    """Return values as SQLite takes them: lists as JSON, text with lone surrogates (no UTF-8) as bytes."""
    if isinstance(values, np.ndarray):
        objects: list[int] = values.astype(np.int64).tolist()
        return objects
    return list(map(_as_object, values))


def _as_object(value: Any) -> Any:
    try:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            value.encode()
        if isinstance(value, tuple | list):
            return msgspec.json.encode(value, enc_hook=plain).decode()
    except UnicodeError:
        if isinstance(value, str):
            return value.encode("utf-8", "surrogatepass")
        return value
    return value


def plain(value: object) -> Any:
    """Return an object that msgspec does not know as one that it knows."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):  # a name that knows how screens write it
        return str(value)
    return value.item()  # type: ignore[attr-defined]
