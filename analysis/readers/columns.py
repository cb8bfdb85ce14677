"""Arrow columns to numpy ones, and the codes that stand for distinct values."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from analysis.errors import NotAReport
from analysis.trace import Int32s, Int64s

Value = TypeVar("Value", bound=Hashable)


class Interner(Generic[Value]):
    """Numbers values in the order in which they are first seen."""

    def __init__(self) -> None:
        self.ids: dict[Value, int] = {}

    def __call__(self, value: Value) -> int:  # noqa: D102 - the class says it
        return self.ids.setdefault(value, len(self.ids))

    def __iter__(self) -> Any:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


def ints(table: pa.Table, column: str) -> Int64s:
    """Return an integer column.

    Raises NotAReport where the column holds text, fractions or missing values.
    """
    values = table[column]
    try:
        # Fractions are refused here rather than cut off.
        values = values.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise NotAReport(f"The column {column!r} holds something that is no whole number: {error}.") from error
    if values.null_count:
        raise NotAReport(f"The column {column!r} has {values.null_count} missing values. Export the report again.")
    return np.asarray(values.to_numpy(), np.int64)


def encode(values: pa.ChunkedArray | pa.Array | Int64s) -> tuple[Int32s, list[Any]]:
    """Return each row's position among the distinct values, and those; text that is not UTF-8 is repaired."""
    array = pa.chunked_array([values]) if isinstance(values, np.ndarray | pa.Array) else values
    encoded = array.dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], array.type).dictionary_encode()
    distinct = encoded.dictionary
    if pa.types.is_string(distinct.type) or pa.types.is_large_string(distinct.type):
        raw = distinct.cast(pa.large_binary()).to_pylist()
        return _codes(encoded), [text.decode("utf-8", "replace") for text in raw]
    return _codes(encoded), distinct.to_pylist()


def translate(codes: Int32s, distinct: list[Any], number: Callable[[Any], int]) -> Int32s:
    """Replace codes by what `number` says of their values."""
    return np.array([number(value) for value in distinct] or [0], np.int32)[codes]


def _codes(encoded: Any) -> Int32s:
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int32)
