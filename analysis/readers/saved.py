"""A `Trace` as a file: SQLite with a table for each of its parts, and views of what people ask by hand.

```
trace (what, value)           what is no table, as JSON; "columns" has each column's dtype, so names what is there
work, launches, ranges, …     a table a part, a row a row, in order: `row` counts from 0
graph_node, captures_at_ns …  a table for what is a single column; a missing value in such a part is in `trace`
names, threads, facts, …      lists: of texts, of records, and of marks as JSON
kernels, named_ranges, …      views in plain words: docs/report_file.md
```

A part or a column that a later version adds needs no line here, and is left when it is not known. What a file
lacks has the default of `Trace`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import AGAIN, NotAReport
from ..support.files import beside
from ..support.threads import at_once
from ..trace import (
    BETWEEN_TEXTS,
    FUNCTION,
    KINDS,
    CallNames,
    CallText,
    Captures,
    Columns,
    Domain,
    Fact,
    Lines,
    Process,
    Thread,
    Trace,
    sorted_ranges,
)
from ..vocabulary.calls import CALL_KINDS
from . import APPLICATION_ID, marks
from .columns import integers
from .sqlite import Database

VERSION = 1
HEAD = "trace"
DTYPES = "columns"
TEXT = "text"
SQLITE_VERSION = slice(96, 100)  # where SQLite's header says which one wrote the file
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
#: The columns of `operator_calls`: its name, and what the profiler wrote of its arguments, as JSON.
OF_CALLS = ("name", "dims", "types", "values", "strides")
MARKS = {
    name: kind for name, kind in vars(marks).items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}
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
VIEWS = """
CREATE VIEW kernels AS
SELECT work.row, names.value AS kernel, start_ns, end_ns, end_ns - start_ns AS duration_ns,
device_id, stream_id, launch FROM work JOIN names ON names.row = name_id WHERE kind = 0;
CREATE VIEW named_ranges AS
SELECT ranges.row, names.value AS name, start_ns, end_ns, end_ns - start_ns AS duration_ns, thread
FROM ranges JOIN names ON names.row = name_id;
CREATE VIEW kernels_by_range AS
SELECT named_ranges.row AS range, named_ranges.name, kernels.row, kernel, kernels.duration_ns
FROM named_ranges JOIN launches ON launches.thread = named_ranges.thread
AND launches.start_ns >= named_ranges.start_ns AND launches.start_ns < named_ranges.end_ns
JOIN kernels ON kernels.launch = launches.row;
"""
Values: TypeAlias = NDArray[Any] | Sequence[Any]


def save(trace: Trace, path: Path) -> None:
    """Write a trace; the file appears at once and whole. Raises OSError or sqlite3.Error where that fails."""
    head: dict[str, Any] = {"version": VERSION}
    dtypes: dict[str, dict[str, str]] = {}
    with beside(path) as unfinished, closing(sqlite3.connect(unfinished)) as connection:
        connection.executescript(
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
        )
        for field in fields(trace):
            value = getattr(trace, field.name)
            tables = dict(_tables(field.name, value)) if value is not None else {}
            for table, columns in tables.items():
                dtypes[table] = {
                    name: str(column.dtype) if isinstance(column, np.ndarray) else TEXT
                    for name, column in columns.items()
                }
                _write(connection, table, columns)
            parts = _parts(field.name, value) if tables else {field.name: value}
            head |= {
                name: msgspec.to_builtins(part, enc_hook=_plain)
                for name, part in parts.items()
                if name not in tables
            }
        head[DTYPES] = dtypes
        texts = [msgspec.json.encode(value, enc_hook=_plain).decode() for value in head.values()]
        _write(connection, HEAD, {"what": list(head), "value": texts})
        connection.executescript(VIEWS)
        connection.commit()


def same_content(a: Path, b: Path) -> bool:
    """Return whether two saved reports are the same to the byte, but for the SQLite that wrote them."""
    contents = a.read_bytes(), b.read_bytes()
    heads = (content[: SQLITE_VERSION.start] + content[SQLITE_VERSION.stop :] for content in contents)
    return len(set(heads)) == 1


def _tables(name: str, value: Any) -> Iterator[tuple[str, dict[str, Values]]]:
    """Yield the tables of a field of a Trace: their columns; none for what is stored as JSON."""
    if name in TABLES:
        yield name, {column: getattr(value, column) for column in value.__match_args__}
    elif name in SINGLE_COLUMNS:
        for place, part in _parts(name, value).items():
            if isinstance(part, np.ndarray) or place == "calls_names":
                yield place, {"value": part}
    elif isinstance(value, np.ndarray) or name in TEXTS:
        yield name, {"value": value}
    elif name in RECORDS:
        yield name, _columns_of(value, [field.name for field in fields(RECORDS[name])])
    elif name == "operator_calls" and value:
        rows = ([operator, *texts.split(BETWEEN_TEXTS)] for operator, texts in value)
        yield name, dict(zip(OF_CALLS, zip(*rows, strict=True), strict=True))
    elif name == "facts":
        table = _columns_of(value, ["at_ns", "thread"])
        table["kind"] = [type(fact.mark).__name__ for fact in value]
        table["mark"] = [msgspec.json.encode(fact.mark).decode() for fact in value]
        yield name, table


def _columns_of(records: Iterable[Any], names: Sequence[str]) -> dict[str, Values]:
    return {name: [*map(attrgetter(name), records)] for name in names}


def _parts(name: str, value: Any) -> dict[str, Any]:
    """Return the parts of a field that is divided into single columns, by their names in the file."""
    names = [field.name for field in fields(value)] if name in SINGLE_COLUMNS else []
    return {f"{name}_{part}": getattr(value, part) for part in names}


def _write(connection: sqlite3.Connection, table: str, columns: Mapping[str, Values]) -> None:
    """Write a table in blocks, so that no second copy of a large one needs to exist as Python's objects."""
    names = ", ".join(f'"{name}"' for name in columns)
    connection.execute(f'CREATE TABLE "{table}" ("row" INTEGER PRIMARY KEY, {names})')
    places = ", ".join("?" * (len(columns) + 1))
    count = len(next(iter(columns.values())))
    for begin in range(0, count, ROWS_AT_ONCE):
        block = [_as_objects(values[begin : begin + ROWS_AT_ONCE]) for values in columns.values()]
        rows = zip(range(begin, count), *block, strict=False)
        connection.executemany(f'INSERT INTO "{table}" VALUES ({places})', rows)  # noqa: S608 - names of ours


def _as_objects(values: Values) -> Sequence[Any]:
    """Return values as SQLite takes them; text with lone surrogates, which is no UTF-8, as bytes."""
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
    except UnicodeError:
        if isinstance(value, str):
            return value.encode("utf-8", "surrogatepass")
        return value
    return value


def _plain(value: object) -> Any:
    """Return an object that msgspec does not know as one that it knows."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value.item()  # type: ignore[attr-defined]


def read(path: Path) -> Trace:
    """Read a saved trace; raises NotAReport for one that is damaged or of a later version."""
    return _Reading(path).trace()


class _Reading:
    """Puts a Trace together from a file's tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path)
        try:
            rows = self.database.rows(f"SELECT what, value FROM {HEAD}")  # noqa: S608 - a name of ours
            self.head = {key: msgspec.json.decode(value) for key, value in rows}
            self.dtypes: dict[str, dict[str, str]] = msgspec.convert(self.head[DTYPES], dict[str, dict[str, str]])
            version = int(self.head["version"])
        except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
            raise self._damaged(f"its table {HEAD!r} is not whole") from error
        if version > VERSION:
            raise NotAReport(f"{path} was written by a later nvtx-kernels; upgrade this one to read it.")
        self.lengths: dict[str, int] = {}
        self.numbers: dict[tuple[str, str], NDArray[Any]] = {}
        self.lengths |= {name: len(value) for name, value in self.head.items() if isinstance(value, list)}

    def trace(self) -> Trace:
        """Return the trace."""
        try:
            trace = Trace(**{name: self._part(name, hint) for name, hint in HINTS.items() if self._has(name)})
        except (KeyError, TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise self._damaged(str(error) or type(error).__name__) from error
        self._require_positions()
        named = replace(trace.provenance, file=self.path.name)
        return replace(trace, ranges=sorted_ranges(trace.ranges), provenance=named)

    def _require_positions(self) -> None:
        """Raise NotAReport where a column leads outside of a part, or has another length than it must."""
        for (table, name), positions in self.numbers.items():
            target = POSITIONS.get(table, {}).get(name)
            if target is None or not len(positions):
                continue
            count = target if isinstance(target, int) else self.lengths.get(target, 0)
            if int(positions.min()) < -1 or int(positions.max()) >= count:
                raise self._damaged(f"{table}.{name} leads outside of {target}")
        for table, other in AS_LONG_AS.items():
            if self.lengths.get(table, self.lengths.get(other)) != self.lengths.get(other):
                raise self._damaged(f"{table} and {other} have different numbers of rows")

    def _has(self, name: str) -> bool:
        return name in self.head or any(table == name or table.startswith(f"{name}_") for table in self.dtypes)

    def _part(self, name: str, hint: Any) -> Any:
        """Return the value of one field of the Trace."""
        if name in self.head:
            return self._of_kind(name, hint)
        if name in TABLES:
            columns = self._columns(name, TABLES[name].__match_args__)
            return TABLES[name](**columns)
        if name in SINGLE_COLUMNS:
            kind = SINGLE_COLUMNS[name]
            hints = get_type_hints(kind)
            parts = {part: f"{name}_{part}" for part in hints if self._has(f"{name}_{part}")}
            return kind(**{part: self._part(place, hints[part]) for part, place in parts.items()})
        if name in RECORDS:
            kind = RECORDS[name]
            return [msgspec.convert(record, kind) for record in self._records(name, kind)]
        if name == "facts":
            return tuple(self._facts())
        if name == "operator_calls":
            return tuple(self._operator_calls())
        return self._single(name)

    def _of_kind(self, name: str, hint: Any) -> Any:
        """Return the fields stored as JSON, or in a table as a single column."""
        if name not in self.head:
            return self._single(name)
        value = msgspec.convert(self.head[name], hint)
        if isinstance(value, tuple):
            self.lengths[name] = len(value)
        return value

    def _single(self, table: str) -> Any:
        """Return the values of a single column: an array, or texts as the Trace has them."""
        if self.dtypes[table]["value"] != TEXT:
            return self._columns(table, ("value",))["value"]
        texts = [_text(value) for (value,) in self.database.rows(f'SELECT value FROM "{table}" ORDER BY row')]  # noqa: S608
        self.lengths[table] = len(texts)
        if not all(isinstance(text, str) for text in texts):
            raise self._damaged(f"{table} has what is no text")
        if table == "names":
            return texts
        return tuple(texts)

    def _records(self, table: str, kind: type[Any]) -> Iterator[dict[str, Any]]:
        names = [field.name for field in fields(kind) if field.name in self.dtypes[table]]
        rows = self.database.rows(f'SELECT {", ".join(names)} FROM "{table}" ORDER BY row')  # noqa: S608
        self.lengths[table] = len(rows)
        for name in POSITIONS.get(table, {}):
            self.numbers[table, name] = np.array([row[names.index(name)] for row in rows], np.int64)
        for row in rows:
            yield {name: _text(value) for name, value in zip(names, row, strict=True)}

    def _operator_calls(self) -> Iterator[CallText]:
        columns = ", ".join(f'"{column}"' for column in OF_CALLS)
        rows = self.database.rows(f"SELECT {columns} FROM operator_calls ORDER BY row")  # noqa: S608 - names of ours
        self.lengths["operator_calls"] = len(rows)
        for name, *texts in rows:
            raw = [text if isinstance(text, bytes) else str(text).encode() for text in texts]
            yield str(_text(name)), BETWEEN_TEXTS.join(raw)

    def _facts(self) -> Iterator[Fact]:
        rows = self.database.rows("SELECT at_ns, thread, kind, mark FROM facts ORDER BY row")
        self.numbers["facts", "thread"] = np.array([thread for _, thread, _, _ in rows], np.int64)
        for at_ns, thread, kind, mark in rows:
            if kind in MARKS:  # a later version's are left
                yield Fact(int(at_ns), int(thread), msgspec.json.decode(mark, type=MARKS[kind]))

    def _columns(self, table: str, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return columns of numbers, read in parts on all cores; a table that is missing has no rows."""
        some = ", ".join(f'"{name}"' for name in names)
        statement = f'SELECT {some} FROM "{table}" WHERE {{}} ORDER BY row'  # noqa: S608 - names of ours
        parts = self.database.parts(table, statement, ROWS_AT_ONCE)
        read: list[pa.Table] = at_once(parts, ROWS_AT_ONCE if len(parts) > 1 else 0)
        columns: dict[str, NDArray[Any]] = {}
        for place, name in enumerate(names):
            arrays = [integers(name, part.column(place)) for part in read]
            dtype = np.dtype(self.dtypes[table][name])
            columns[name] = np.concatenate(arrays).astype(dtype) if arrays else np.empty(0, dtype)
            self.numbers[table, name] = columns[name]
        self.lengths[table] = len(columns[names[0]])
        return columns

    def _damaged(self, reason: str) -> NotAReport:
        return NotAReport(f"{self.path} is not a whole report: {reason.splitlines()[0].rstrip('.')}. {AGAIN}")


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass")
    return value
