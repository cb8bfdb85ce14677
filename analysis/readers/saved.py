"""A `Trace` as a file, and a recording: what `container.py` writes.

A part or a column that a later version adds needs no line here, and is left when it is not known. What a file
lacks has the default of `Trace`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..container import (
    AS_LONG_AS,
    DTYPES,
    HEAD,
    HINTS,
    MARKS,
    POSITIONS,
    RECORDING,
    RECORDS,
    REPORT,
    ROWS_AT_ONCE,
    SINGLE_COLUMNS,
    TABLES,
    TEXT,
    TEXTS,
    Container,
    Values,
    plain,
)
from ..errors import AGAIN, NotAReport
from ..support.files import beside
from ..support.threads import at_once
from ..trace import BETWEEN_TEXTS, CallText, Fact, Trace, sorted_ranges
from . import marks
from .columns import integers
from .recorded import Mark, Recording, as_recorded
from .sqlite import Database
from .stored_head import read_head

SQLITE_VERSION = slice(96, 100)  # where SQLite's header says which one wrote the file
#: The columns of `operator_calls`: its name, and what the profiler wrote of its arguments, as JSON.
OF_CALLS = ("name", "dims", "types", "values", "strides")
FACTS = {
    name: kind for name, kind in vars(marks).items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}


def save(trace: Trace, path: Path) -> None:
    """Write a trace; the file appears at once and whole. Raises OSError or sqlite3.Error where that fails."""
    head: dict[str, Any] = {}
    with beside(path) as unfinished, closing(sqlite3.connect(unfinished)) as database:
        container = Container(database)
        for field in fields(trace):
            value = getattr(trace, field.name)
            tables = dict(_tables(field.name, value)) if value is not None else {}
            for table, columns in tables.items():
                container.append(table, columns)
            parts = _parts(field.name, value) if tables else {field.name: value}
            head |= {
                name: msgspec.to_builtins(part, enc_hook=plain)
                for name, part in parts.items()
                if name not in tables
            }
        container.commit(head)


def same_content(a: Path, b: Path) -> bool:
    """Return whether two saved reports are the same to the byte, but for the SQLite that wrote them."""
    contents = a.read_bytes(), b.read_bytes()
    heads = (content[: SQLITE_VERSION.start] + content[SQLITE_VERSION.stop :] for content in contents)
    return len(set(heads)) == 1


def _tables(name: str, value: Any) -> Iterator[tuple[str, dict[str, Values]]]:
    """Yield the tables of a field of a Trace: their columns; none for what is stored as JSON."""
    if name in TABLES:
        yield name, value.columns()
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


def read(path: Path) -> Trace:
    """Read a saved trace; raises NotAReport for one that is damaged or of a later version."""
    return _Reading(path).trace()


class _Reading:
    """Puts a Trace together from a file's tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path)
        try:
            self.head, self.complete = read_head(self.database, REPORT)
            self.dtypes: dict[str, dict[str, str]] = msgspec.convert(self.head[DTYPES], dict[str, dict[str, str]])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"its table {HEAD!r} is not whole") from error
        self.lengths: dict[str, int] = {}
        self.numbers: dict[tuple[str, str], NDArray[Any]] = {}
        self.lengths |= {name: len(value) for name, value in self.head.items() if isinstance(value, list)}

    def trace(self) -> Trace:
        """Return the trace."""
        try:
            trace = Trace(**{name: self._part(name, hint) for name, hint in HINTS.items() if self._has(name)})
            recording = self.head.get(RECORDING)
            about = None if recording is None else msgspec.convert(recording, Recording)
            log = [*self._marks()]
            if about is not None and self.lengths.get("calls_of_launch", 0) < len(trace.launches):
                trace = replace(trace, calls=None)  # the disk was full before their names were written
                self.lengths.pop("calls_of_launch", None)
            self._require_positions()
            named = replace(trace.provenance, file=self.path.name)
            trace = replace(trace, ranges=sorted_ranges(trace.ranges), provenance=named)
            return trace if about is None else as_recorded(trace, log, about)
        except (LookupError, TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise self._damaged(str(error) or type(error).__name__) from error

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
            if kind in FACTS:  # a later version's are left
                yield Fact(int(at_ns), int(thread), msgspec.json.decode(mark, type=FACTS[kind]))

    def _marks(self) -> Iterator[Mark]:
        """Yield what a recording wrote about itself, in the order of its file."""
        if MARKS in self.dtypes:
            for at_ns, thread, text in self.database.rows(f"SELECT at_ns, thread, text FROM {MARKS} ORDER BY row"):  # noqa: S608 - a name of ours
                if 0 <= thread < self.lengths["threads"]:  # else it was begun when the recording was killed
                    yield Mark(int(at_ns), int(thread), str(_text(text)))

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
            whole = np.concatenate(arrays).astype(dtype) if arrays else np.empty(0, dtype)
            columns[name] = whole[: self.complete.get(table)]
            self.numbers[table, name] = columns[name]
        self.lengths[table] = len(columns[names[0]])
        return columns

    def _damaged(self, reason: str) -> NotAReport:
        return NotAReport(f"{self.path} is not a whole report: {reason.splitlines()[0].rstrip('.')}. {AGAIN}")


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass")
    return value
