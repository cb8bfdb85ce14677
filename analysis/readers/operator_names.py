"""Names of ranges without PyTorch's suffixes, and their sequence numbers: worked out once per distinct text.

It is `vocabulary.without_suffixes` on Arrow's columns. Texts are seen as bytes, for a name need not be UTF-8. They
lie one after the other in memory, so that the first suffix is searched for in all of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..support import arrow
from ..trace import Int32s, Int64s
from ..vocabulary import OPERATOR_SUFFIXES
from .nsys_tables import DOMAIN_TYPE, MARK_TYPE

# RE2 runs in linear time.
SEQUENCE = r", seq = (?P<seq>[0-9]{1,18})(?:[^0-9]|$)"
MOST_DIGITS = 18
NO_SEQUENCE = -1
# The first suffix has as many bytes as a number, and is compared as one.
SUFFIX = OPERATOR_SUFFIXES[0].encode()
_WORD, _TENS = np.dtype("<u8"), 10 ** np.arange(9)
# Eight bytes at once: all of them 1, all of them the digit 0, and every fourth.
_ONES, _ZEROS, _PAIRS = np.uint64(0x0101010101010101), np.uint64(0x3030303030303030), np.uint64(0x000000FF000000FF)


def with_bare_names(events: pa.Table) -> pa.Table:
    """Return NVTX events with `text` as a dictionary of bare names, and `seq`; missing texts are empty.

    Marks and the names of domains stay whole.
    """
    batches = events.combine_chunks().to_batches() or [_no_rows(events.schema)]
    return pa.Table.from_batches([_bare(batch) for batch in batches])


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _bare(events: pa.RecordBatch) -> pa.RecordBatch:
    codes, column = _encoded(events["text"])
    texts = _Texts.of(column)
    name_of, names, seq_of = _without_suffixes(texts)
    code, seq = (name_of, seq_of) if codes is None else (name_of[codes], seq_of[codes])
    event = arrow.to_numpy(events["event"])
    meta = np.flatnonzero((event == MARK_TYPE) | (event == DOMAIN_TYPE))
    whole, at = np.unique(meta if codes is None else codes[meta], return_inverse=True)
    code[meta], seq[meta] = len(names) + at, NO_SEQUENCE
    distinct = pa.concat_arrays([names, texts.until(texts.end, whole)])
    text = pa.DictionaryArray.from_arrays(arrow.from_numpy(code), as_text(distinct))
    columns = {name: events[name] for name in events.schema.names}
    return pa.RecordBatch.from_pydict({**columns, "text": text, "seq": arrow.from_numpy(seq)})


def _encoded(column: pa.Array) -> tuple[Int32s | None, pa.Array]:
    """Return texts as bytes, and each row's position among them; None where every row has its own."""
    if not len(column):
        return None, pa.array([], pa.binary())  # a driver may call a column without values anything
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.dictionary_encode()  # all of them may be too long for one column of bytes
    if not pa.types.is_dictionary(column.type):
        return None, column.cast(pa.binary())
    texts, indices = column.dictionary.cast(pa.binary()), column.indices.cast(pa.int32())
    if indices.null_count:
        texts = pa.concat_arrays([texts, arrow.binary([""]).cast(pa.binary())])
        indices = pc.fill_null(indices, arrow.integer(len(texts) - 1).cast(pa.int32()))
    return arrow.to_numpy(indices), texts


@dataclass(frozen=True, slots=True)
class _Texts:
    """Bytes, and where in them each text begins and ends; a missing text is empty."""

    data: pa.Buffer
    start: Int32s
    end: Int32s

    @classmethod
    def of(cls, column: pa.Array) -> _Texts:
        """View a column."""
        _, bounds, data = column.buffers()
        if not len(column):
            return cls(pa.py_buffer(b""), np.empty(0, np.int32), np.empty(0, np.int32))
        at = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1]
        end = np.where(arrow.to_numpy(column.is_valid()), at[1:], at[:-1]) if column.null_count else at[1:]
        return cls(data or pa.py_buffer(b""), at[:-1], end)

    def until(self, end: Int32s, rows: NDArray[Any] | None = None) -> pa.Array:
        """Return the texts, of some rows in their order, cut at these places."""
        start, end = (self.start, end) if rows is None else (self.start[rows], end[rows])
        bounds = np.stack([start, end], axis=1).reshape(-1)  # what lies between two texts is a text too
        count = max(0, len(bounds) - 1)
        both = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), self.data])
        return both.take(arrow.from_numpy(np.arange(0, count, 2)))

    def suffixes(self) -> tuple[Int64s, Int32s]:
        """Return the rows that have the first suffix, in their order, and where in the bytes it begins."""
        last = int(self.end[-1]) - len(SUFFIX) if len(self.end) else -1
        if last < 0:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        at = np.flatnonzero(np.frombuffer(self.data, np.uint8, last + 1) == SUFFIX[0]).astype(np.int32)
        at = at[self.words(at) == int.from_bytes(SUFFIX, "little")]
        row = np.searchsorted(self.start, at, "right") - 1
        inside = (row >= 0) & (at + len(SUFFIX) <= self.end[row])
        row, at = row[inside], at[inside]
        first = np.append(True, row[1:] != row[:-1])[: len(row)]
        return row[first], at[first]

    def words(self, at: Int32s | Int64s) -> NDArray[np.uint64]:
        """Return the eight bytes at each place as a number; there are zeros after the last."""
        count = self.data.size - _WORD.itemsize + 1
        data = np.frombuffer(self.data, np.uint8)
        words: NDArray[np.uint64] = np.ndarray((count,), _WORD, data.data, strides=(1,))
        first = np.minimum(at, count - 1)
        whole: NDArray[np.uint64] = words[first] >> ((at - first) * 8).astype(np.uint64)
        return whole


def _without_suffixes(texts: _Texts) -> tuple[Int32s, pa.Array, Int64s]:
    """Return the number of each text's bare name, those names, and the text's sequence number or -1."""
    rows, at = texts.suffixes()
    seq, end = np.full(len(texts.start), NO_SEQUENCE, np.int64), texts.end.copy()
    seq[rows], end[rows] = _numbers(texts, rows, at + len(SUFFIX)), at
    names = texts.until(end).dictionary_encode()  # few: what follows costs next to nothing
    bare = names.dictionary
    for suffix in OPERATOR_SUFFIXES[1:]:
        parts = pc.split_pattern(bare, suffix, max_splits=1)
        bare = parts.values.take(parts.offsets[:-1])
    again = bare.dictionary_encode()
    return arrow.to_numpy(again.indices)[arrow.to_numpy(names.indices)], again.dictionary, seq


def _numbers(texts: _Texts, rows: Int64s, at: Int32s) -> Int64s:
    """Return the numbers of some rows that begin at these places; where there is none, look further."""
    number, digits = _digits(texts, at, texts.end[rows])
    other = np.flatnonzero((digits == 0) | (digits > MOST_DIGITS))
    if len(other):
        numbered = texts.until(texts.end, rows[other])
        found = as_text(pc.struct_field(pc.extract_regex(numbered, SEQUENCE), 0)).cast(pa.int64())
        number[other] = arrow.to_numpy(pc.fill_null(found, arrow.integer(NO_SEQUENCE)))
    return number


def _digits(texts: _Texts, at: Int32s, end: Int32s) -> tuple[Int64s, Int64s]:
    """Return the numbers that begin at these places and end before those, and how many digits they have."""
    number, digits = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    rows = np.arange(len(at))
    while len(rows) and digits[rows[0]] <= MOST_DIGITS:
        count, value = _first_digits(texts.words(at[rows] + digits[rows]), end[rows] - at[rows] - digits[rows])
        number[rows] = number[rows] * _TENS[count] + value
        digits[rows] += count
        rows = rows[count == _WORD.itemsize]
    return number, digits


def _first_digits(word: NDArray[np.uint64], most: Int64s) -> tuple[Int64s, Int64s]:
    """Return how many digits eight bytes begin with, up to `most`, and the number that these are."""
    digit = word ^ _ZEROS  # 0 to 9 for a digit
    # The highest bit of others, of which only the first need be right.
    others = (digit + _ONES * np.uint64(0x76) | digit) & _ONES << np.uint64(7)
    before = (others & ~others + np.uint64(1)) - np.uint64(1)
    count = np.minimum((before >> np.uint64(7) & _ONES) * _ONES >> np.uint64(56), most.clip(0).astype(np.uint64))
    digit <<= np.uint64(64) - count * np.uint64(8)  # zeros in front, up to eight digits
    pairs = digit * np.uint64(10) + (digit >> np.uint64(8))
    even, odd = pairs & _PAIRS, pairs >> np.uint64(16) & _PAIRS
    value = even * np.uint64(100 + (1_000_000 << 32)) + odd * np.uint64(1 + (10_000 << 32)) >> np.uint64(32)
    return count.astype(np.int64), value.astype(np.int64)


def as_text(values: pa.Array) -> pa.Array:
    """Treat bytes as text without checking them; decoding repairs what is not UTF-8."""
    return values.view(pa.string())
