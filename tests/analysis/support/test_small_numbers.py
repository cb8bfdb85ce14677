"""Distinct values in linear time are those that numpy finds by sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.support.small_numbers import (
    FEW,
    counted,
    distinct,
    grouped,
    grouped_rows,
    looked_up,
    rows_of_each,
    sorted_by,
)

NUMBERS = st.one_of(st.integers(0, 5), st.integers(-3, 300), st.integers(-(2**62), 2**62))


@given(st.lists(NUMBERS, max_size=50))
def test_distinct_values_counts_and_positions_are_numpys(numbers):
    values = np.array(numbers, np.int64)
    expected, position, count = np.unique(values, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(distinct(values), expected)
    np.testing.assert_array_equal(counted(values)[1], count)
    found, at = grouped(values)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(at, position)


def rows_of(numbers):
    return st.lists(st.tuples(numbers, numbers, st.integers(-1, 1)), max_size=20)


@given(st.one_of(rows_of(st.integers(-3, 40)), rows_of(NUMBERS)))
def test_distinct_rows_are_in_order_with_where_they_are(rows):
    columns = [np.array([row[n] for row in rows], kind) for n, kind in enumerate(("i8", "i8", "i1"))]
    keys, position = grouped_rows(*columns)
    assert [key.dtype for key in keys] == [column.dtype for column in columns]
    each = list(zip(*(key.tolist() for key in keys), strict=True))
    assert each == sorted(set(rows))
    assert [each[number] for number in position] == rows
    where = [(row, [n for n, other in enumerate(rows) if other == row]) for row in each]
    assert [(row, places.tolist()) for row, places in rows_of_each(*columns)] == where


@pytest.mark.parametrize("kind", ["i1", "u1", "i4", "i8"])
def test_narrow_numbers_give_wide_ones(kind):
    values = np.array([7, 3, 7, 0], kind)
    assert distinct(values).dtype == np.int64
    assert distinct(values).tolist() == [0, 3, 7]
    assert grouped(values)[1].tolist() == [2, 1, 2, 0]


def test_large_numbers_take_no_table_of_their_size():
    assert distinct(np.array([0, 2**60 + FEW])).tolist() == [0, 2**60 + FEW]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_rows_are_in_the_order_of_their_values(numbers, data):
    rows = data.draw(st.lists(st.integers(0, len(numbers) - 1), max_size=20))
    ordered = sorted_by(np.array(rows, np.int64), np.array(numbers))
    assert ordered.tolist() == sorted(rows, key=lambda row: numbers[row])


@pytest.mark.parametrize(("kind", "otherwise"), [("i1", -1), ("u1", 0), ("i8", 2**62), ("?", False)])
def test_values_behind_the_last_are_others_of_their_type(kind, otherwise):
    values = np.array([1, 0], kind)
    found = looked_up(values, np.array([1, -1, 2, 0]), otherwise)
    assert found.dtype == values.dtype
    assert found.tolist() == [0, otherwise, otherwise, 1]
    assert looked_up(values[:0], np.array([-1, 0]), otherwise).tolist() == [otherwise] * 2
