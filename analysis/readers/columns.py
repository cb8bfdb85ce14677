"""Arrow columns to compact numpy ones: integers as they are, repeated values as codes.

A big table comes in parts. Each part is read and made compact in a thread of its own (SQLite, Arrow and numpy
release Python's lock), and the parts are joined in their order, so that the result does not depend on which was
first. Parts are joined a column at a time in each thread, so that a second copy of a big table need not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import AGAIN, NotAReport
from ..support import arrow
from ..support.heap import give_back
from ..support.progress import advance
from ..support.threads import at_once, threads
from ..trace import Int32s, Int64s
from .nsys_tables import REPEATED, WIDTHS, Part, Table

Value = TypeVar("Value", bound=Hashable)


class Interner(dict[Value, int]):
    """Numbers values in the order in which they are first seen."""

    def __call__(self, value: Value) -> int:  # noqa: D102 - the class says it
        return self.setdefault(value, len(self))


class Names:
    """Numbers names as a trace does, and new ones behind its own."""

    def __init__(self, names: Sequence[str]) -> None:
        self.all = [*names]
        self._number = {name: number for number, name in enumerate(names)}

    def __call__(self, name: str) -> int:  # noqa: D102 - the class says it
        if name not in self._number:
            self._number[name] = len(self.all)
            self.all.append(name)
        return self._number[name]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A column of repeated values: each row's position among the distinct values, and those."""

    codes: Int32s
    values: list[Any]

    def __len__(self) -> int:
        return len(self.codes)

    def where(self, rows: NDArray[Any]) -> Encoded:
        """Return the rows at these positions, or under this mask."""
        return Encoded(self.codes[rows], self.values)

    def numbered(self, number: Callable[[Any], int]) -> Int32s:
        """Replace each value by its `number`, which is called once per distinct value."""
        return np.array([number(value) for value in self.values] or [0], np.int32).take(self.codes)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one table: `numbers` under their names, and `codes` of repeated values.

    `aside` are the rows that are kept apart.
    """

    numbers: dict[str, NDArray[Any]]
    codes: dict[str, Encoded]
    aside: Columns | None = None

    def __len__(self) -> int:
        return len(next(iter(self.numbers.values())))

    def where(self, rows: NDArray[Any]) -> Columns:
        """Return the rows at these positions, or under this mask."""
        return Columns(
            {name: values[rows] for name, values in self.numbers.items()},
            {name: values.where(rows) for name, values in self.codes.items()},
        )

    def keep(self, rows: NDArray[Any]) -> None:
        """Keep only the rows at these positions, or under this mask; free if that is all of them.

        A column of equal values is only cut to its new length.
        """
        if rows.dtype == np.bool_:
            if rows.all():
                return
            rows = np.flatnonzero(rows)

        def keep_number(name: str) -> None:
            values = self.numbers[name]
            equal = values.itemsize == 1 and len(values) and values.min() == values.max()
            self.numbers[name] = values[: len(rows)] if equal else values[rows]

        def keep_codes(name: str) -> None:
            self.codes[name] = self.codes[name].where(rows)

        calls = [partial(keep_number, name) for name in self.numbers]
        at_once([*calls, *(partial(keep_codes, name) for name in self.codes)], len(rows))


def gather(tables: Sequence[tuple[Table, Sequence[Part]]]) -> list[Columns]:
    """Read several tables, each in parts, on all cores."""
    with arrow.from_the_system(), ThreadPoolExecutor(max_workers=threads()) as pool:
        reading = [
            [pool.submit(_compact, table, part) for part in parts or [partial(pa.table, {})]]
            for table, parts in tables
        ]
        try:
            joined = [_joined([part.result() for part in parts], pool) for parts in reading]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    give_back(max(map(len, joined)))
    return joined


def _encode(column: str, array: pa.ChunkedArray) -> Encoded:
    """Encode a column of repeated values; text that is not UTF-8 is repaired."""
    if not (pa.types.is_string(array.type) or pa.types.is_dictionary(array.type)):
        values = integers(column, array)
        if len(values) and values.min() == values.max():
            return Encoded(np.zeros(len(values), np.int32), [int(values[0])])
        array = pa.chunked_array([arrow.from_numpy(values)])
    encoded = array.combine_chunks()
    if not pa.types.is_dictionary(array.type):
        encoded = encoded.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):  # combining no chunks, or too much text for one
        encoded = encoded.unify_dictionaries()
        chunks = encoded.chunks or [pa.array([], array.type).dictionary_encode()]
        codes = np.concatenate([_codes(chunk) for chunk in chunks])
        return Encoded(codes, _decoded(chunks[-1].dictionary))
    return Encoded(_codes(encoded), _decoded(encoded.dictionary))


def integers(column: str, values: pa.ChunkedArray) -> Int64s:
    """Return a column of integers; raise NotAReport if it contains text, fractions or missing values."""
    try:
        values = values.cast(pa.int64())  # refuses fractions rather than cutting them off
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise NotAReport(f"The column {column!r} contains a value that is not an integer: {error}.") from error
    if values.null_count:
        raise NotAReport(f"The column {column!r} has {values.null_count} missing values. {AGAIN}")
    chunks = [arrow.to_numpy(chunk) for chunk in values.chunks]
    if len(chunks) != 1:
        return np.concatenate([*chunks, np.empty(0, np.int64)])
    return chunks[0]


def _compact(table: Table, part: Part) -> Columns:
    """Read a part of a table, with what stands for its missing numbers in columns that the report lacks."""
    rows = part()
    advance(rows.num_rows)
    if not rows.num_rows:  # of no rows, the types can be any
        rows = pa.table(dict.fromkeys(table.columns, arrow.integers([])))
    read = {
        name: rows[name] if name in rows.column_names else arrow.repeated(table.missing[name], rows.num_rows)
        for name in table.columns
    }
    columns = Columns(
        {
            name: integers(name, values).astype(WIDTHS.get(name, "i8"), copy=False)
            for name, values in read.items()
            if name not in REPEATED
        },
        {name: _encode(name, values) for name, values in read.items() if name in REPEATED},
    )
    if table.aside is None:
        return columns
    number, values = table.aside
    column = columns.numbers[number]
    apart = np.logical_or.reduce([column == value for value in values])  # a tenth of what isin takes
    aside = columns.where(np.flatnonzero(apart))
    columns.keep(~apart)
    return Columns(columns.numbers, columns.codes, aside)


def _joined(parts: list[Columns], pool: ThreadPoolExecutor) -> Columns:
    """Join the parts of a table, columns in parallel; each column's parts are freed as it is joined."""
    first = parts[0]
    aside = [part.aside for part in parts if part.aside is not None]
    numbers = {name: [part.numbers.pop(name) for part in parts] for name in list(first.numbers)}
    codes = {name: [part.codes.pop(name) for part in parts] for name in list(first.codes)}
    return Columns(
        dict(zip(numbers, pool.map(_concatenated, numbers.values()), strict=True)),
        dict(zip(codes, pool.map(_same_codes, codes.values()), strict=True)),
        _joined(aside, pool) if aside else None,
    )


def _concatenated(parts: list[NDArray[Any]]) -> NDArray[Any]:
    joined = np.concatenate(parts)
    parts.clear()
    give_back(len(joined))
    return joined


def _same_codes(parts: list[Encoded]) -> Encoded:
    value: Interner[Any] = Interner()
    codes = np.empty(sum(map(len, parts)), np.int32)
    filled = 0
    while parts:
        part = parts.pop(0)
        codes[filled : (filled := filled + len(part))] = part.numbered(value)
    return Encoded(codes, list(value))


def _codes(encoded: Any) -> Int32s:
    return arrow.to_numpy(encoded.indices).astype(np.int32, copy=False)


def _decoded(distinct: pa.Array) -> list[Any]:
    if pa.types.is_string(distinct.type):
        return [raw.decode("utf-8", "replace") for raw in distinct.cast(pa.binary()).to_pylist()]
    return list(distinct.to_pylist())
