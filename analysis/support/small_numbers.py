"""Rows by non-negative integers such as positions, threads and ids of names: distinct values, sums and bounds.

Distinct values of small numbers take linear time; `np.unique` sorts or hashes, and takes three to twenty times as
long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)
# A table by value may have this many entries for each number, and this many for few of them.
PER_NUMBER, FEW = 4, 1 << 16
#: Later than any time: the lowest value of no rows, and the highest with a minus.
NEVER = 2**63 - 1


def distinct(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the distinct values (n,) in their order, int64 (k,)."""
    if _are_equal(values):
        return values[:1].astype(np.int64)
    if not _are_small(values):
        return ordered(values).astype(np.int64)
    occurs = np.zeros(int(values.max()) + 1, np.bool_)
    occurs[values] = True
    return np.flatnonzero(occurs)


def ordered(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values (n,) in their order, of any integers; `np.unique` alone loads `numpy.ma`."""
    values = np.sort(values)
    if not len(values):
        return values
    distinct_values: NDArray[Any] = values[np.append(True, values[1:] != values[:-1])]
    return distinct_values


def sorted_by(rows: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.int64]:
    """Return some rows in the order of their values; rows with equal ones stay in their order."""
    return rows[np.argsort(values[rows], kind="stable")]


def looked_up(values: NDArray[Scalar], positions: NDArray[Any], otherwise: object) -> NDArray[Scalar]:
    """Return the values (n,) at some positions, and `otherwise`, in the values' type, at -1 and at n."""
    values_there: NDArray[Scalar] = np.append(values, np.array(otherwise, values.dtype))[positions]
    return values_there


def positions_between(begin: NDArray[Any], end: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all positions from each begin (k,) to its end, exclusive, and first which of the k each is of."""
    length = end - begin
    number = np.repeat(np.arange(len(begin)), length)
    shift = begin - np.cumsum(length) + length
    return number, np.arange(len(number)) + shift[number]


def last_marked(marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the position of the last mark at or before each place, -1 for none: int64 (n,)."""
    latest: NDArray[np.int64] = np.maximum.accumulate(np.where(marks, np.arange(len(marks)), -1))
    return latest


def next_marked(marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the position of the first mark at or behind each place, n for none: int64 (n,)."""
    count = len(marks)
    following: NDArray[np.int64] = np.minimum.accumulate(np.where(marks, np.arange(count), count)[::-1])[::-1]
    return following


def begins_of(marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where the marks in a row begin that each mark is among: int64 (n,); behind itself where none is."""
    return last_marked(~marks) + 1


def covered(begin: NDArray[Any], end: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Mark the places from each `begin` to before its `end`, of `count` places: bool (count,)."""
    edges = np.zeros(count + 1, np.int64)
    np.add.at(edges, begin, 1)
    np.add.at(edges, end, -1)
    marks: NDArray[np.bool_] = np.cumsum(edges)[:-1] > 0
    return marks


def medians(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the median of each row of numbers (…, n), float64 (…,); `np.median` alone loads `numpy.ma`."""
    values, count = np.sort(values), values.shape[-1]
    lower = values[..., (count - 1) // 2]
    upper = values[..., count // 2]
    middle: NDArray[np.float64] = (lower + upper) / 2
    return middle


def quartiles(values: Sequence[float] | NDArray[Any]) -> NDArray[np.float64]:
    """Return the three quartiles of some numbers, float64 (3,); `np.quantile` alone loads `numpy.ma`."""
    values = np.sort(values)
    places = (len(values) - 1) * np.array([0.25, 0.5, 0.75])
    between: NDArray[np.float64] = np.interp(places, np.arange(len(values)), values)
    return between


def median_of_each(group: NDArray[Any], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the high median of the values (n,), none negative, in each group (n,): int64 (count,); 0 of none.

    Values over 2**63 / `count` are compared without their last bits.
    """
    width = max(1, int(values.max(initial=0))).bit_length()
    lost = max(0, width + int(count).bit_length() - 62)
    width -= lost
    keys = group.astype(np.int64) << width | values >> lost
    keys = np.sort(keys)  # three times as fast as a lexical sort
    size = np.bincount(group, minlength=count)
    first = np.cumsum(size) - size
    median = np.zeros(count, np.int64)
    has = np.flatnonzero(size)
    middle = keys[first[has] + size[has] // 2]
    median[has] = (middle & ((1 << width) - 1)) << lost
    return median


def counted(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values (n,) in their order, int64 (k,), and how often each occurs, int64 (k,)."""
    if _are_equal(values):
        return values[:1].astype(np.int64), np.array([len(values)])
    if not _are_small(values):
        ordered, counts = np.unique(values, return_counts=True)
        return ordered.astype(np.int64), counts
    of_each = np.bincount(values)
    ordered = np.flatnonzero(of_each)
    return ordered, of_each[ordered]


def grouped(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values (n,) in their order, int64 (k,), and the position of each row in them (n,)."""
    if _are_equal(values):
        return values[:1].astype(np.int64), np.zeros(len(values), np.int64)
    if not _are_small(values):
        ordered, position = np.unique(values, return_inverse=True)
        return ordered.astype(np.int64), position
    ordered = distinct(values)
    position = np.empty(int(ordered[-1]) + 1, np.int64)
    position[ordered] = np.arange(len(ordered))
    return ordered, position[values]


def grouped_rows(*columns: NDArray[Any]) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """Return the distinct rows of columns (n,) in their order, as columns (k,), and each row's position there."""
    lowest = [int(column.min(initial=0)) for column in columns]
    highest = [int(column.max(initial=0)) for column in columns]
    widths = [high - low + 1 for low, high in zip(lowest, highest, strict=True)]
    if prod(widths) <= _most_in_table(len(columns[0])):
        keys, position = _grouped_by_number(columns, lowest, widths)
    else:
        keys, position = _grouped_by_column(columns)
    typed = [key.astype(column.dtype) for key, column in zip(keys, columns, strict=True)]
    return typed, position


def _grouped_by_number(
    columns: Sequence[NDArray[Any]], lowest: Sequence[int], widths: Sequence[int]
) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """Group rows of which each that could be is one small number."""
    row = np.zeros(len(columns[0]), np.int64)
    for column, low, width in zip(columns, lowest, widths, strict=True):
        if width > 1:
            row *= width
            row += column
            row -= low
    rows, position = grouped(row)
    places = np.unravel_index(rows, widths)
    return [place + low for place, low in zip(places, lowest, strict=True)], position


def _grouped_by_column(columns: Sequence[NDArray[Any]]) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """Group rows by one column after another."""
    values, position = grouped(columns[0])
    keys = [values]
    for column in columns[1:]:
        values, number = grouped(column)
        pairs, position = grouped(position * len(values) + number)
        before, last = np.divmod(pairs, max(1, len(values)))
        keys = [*(key[before] for key in keys), values[last]]
    return keys, position


def each_row(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of columns (n,), as Python's own numbers."""
    return zip(*(column.tolist() for column in columns), strict=True)


def rows_of_each(*columns: NDArray[Any]) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """Yield the distinct rows of columns (n,) in their order, each with the positions where it is, int64 (m,)."""
    keys, position = grouped_rows(*columns)
    order = np.argsort(position.astype(np.min_scalar_type(len(keys[0]))), kind="stable")  # of few, a radix sort
    parts = np.split(order, np.cumsum(np.bincount(position))[:-1])
    return zip(each_row(*keys), parts, strict=False)


def summed(group: NDArray[Any], values: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Add integers (n,) by group (n,), exactly: int64 (count,)."""
    total = np.zeros(count, np.int64)
    np.add.at(total, group, values)
    return total


def bounds(
    group: NDArray[Any], low: NDArray[np.int64], high: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lowest of the low values (n,) and the highest of the high ones in each group, int64 (count,)."""
    lowest = np.full(count, NEVER)
    highest = np.full(count, -NEVER)
    np.minimum.at(lowest, group, low)
    np.maximum.at(highest, group, high)
    return lowest, highest


def _are_equal(values: NDArray[Any]) -> bool:
    return bool(len(values) and values[0] == values[-1] and (values == values[0]).all())


def _are_small(values: NDArray[Any]) -> bool:
    return bool(len(values) and values.min() >= 0 and values.max() < _most_in_table(len(values)))


def _most_in_table(numbers: int) -> int:
    return PER_NUMBER * numbers + FEW
