"""Between numpy and Arrow without copies, and without pandas. Alone, because it loads pyarrow.

Arrow's own conversions, also of a single Python value (`pa.array`, `pa.scalar`, `pa.repeat`), import pandas, which
takes longer than reading and ranking a small report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def from_numpy(values: NDArray[np.int32] | NDArray[np.int64]) -> pa.Array:
    """View integers as Arrow."""
    type_ = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def integers(values: Sequence[int]) -> pa.Array:
    """Return a few integers as Arrow."""
    return from_numpy(np.array(values, np.int64))


def integer(value: int) -> pa.Scalar:
    """Return one integer as Arrow."""
    return integers([value])[0]


def repeated(value: int, count: int) -> pa.ChunkedArray:
    """Return a column of one integer."""
    return pa.chunked_array([from_numpy(np.full(count, value, np.int64))])


def to_numpy(values: pa.Array) -> NDArray[Any]:
    """View numbers without missing values as numpy; truth values become 0 and 1."""
    view: NDArray[Any] = np.from_dlpack(values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values)
    return view


def binary(texts: Iterable[str]) -> pa.Array:
    """Return texts as an Arrow column of UTF-8 bytes; what cannot be encoded is replaced."""
    raw = [text.encode("utf-8", "replace") for text in texts]
    offsets = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    data = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(raw))]
    return pa.Array.from_buffers(pa.large_binary(), len(raw), data)


def require_texts(table: pa.Table) -> None:
    """Raise ArrowInvalid where a text's number is not in its dictionary; Arrow does not check that as it reads."""
    for column in table.columns:
        for chunk in column.chunks:
            texts = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
            if pa.types.is_dictionary(texts.type):
                low, high = pc.min_max(texts.indices).as_py().values()
                if high is not None and not 0 <= low <= high < len(texts.dictionary):
                    raise pa.ArrowInvalid(f"text {high} of {len(texts.dictionary)}")


def text_bytes(table: pa.Table) -> int:
    """Return how many bytes a table's texts take, each written out, also those of dictionaries and lists."""
    return sum(_text_bytes(chunk) for column in table.columns for chunk in column.chunks)


def _text_bytes(values: pa.Array) -> int:
    if pa.types.is_list(values.type):
        return _text_bytes(values.flatten())
    if pa.types.is_dictionary(values.type):
        lengths = pc.binary_length(values.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(values.indices)).as_py() or 0
    is_text = values.type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
    return pc.sum(pc.binary_length(values)).as_py() or 0 if is_text else 0


@contextmanager
def from_the_system() -> Iterator[None]:
    """Let Arrow allocate memory from the C library in this block.

    Arrow's own pool returns what is freed at once, so that reading a table in parts faults every page in again: a
    big one took a third longer.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
