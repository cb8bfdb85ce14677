"""Names of ranges without PyTorch's suffixes, and their sequence numbers: worked out once per distinct text.

It is `vocabulary.without_suffixes` on Arrow's columns. Texts are seen as bytes, for a name need not be UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..support import arrow
from ..trace import Int32s, Int64s
from ..vocabulary import OPERATOR_SUFFIXES
from .nsys_trace import DOMAIN_TYPE, MARK_TYPE

# RE2 runs in linear time.
SEQUENCE = r", seq = (?P<seq>[0-9]{1,18})(?:[^0-9]|$)"
MOST_DIGITS = 18
NO_SEQUENCE = -1


def with_bare_names(events: pa.Table) -> pa.Table:
    """Return NVTX events with `text` as a dictionary of bare names, and `seq`; missing texts are empty.

    Marks and the names of domains stay whole.
    """
    return pa.Table.from_batches([_bare(batch) for batch in events.to_batches() or [_no_rows(events.schema)]])


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _bare(events: pa.RecordBatch) -> pa.RecordBatch:
    codes, texts = _encoded(events["text"])
    name_of, names, seq_of = _without_suffixes(texts)
    code, seq = name_of[codes], seq_of[codes]
    event = arrow.to_numpy(events["event"])
    meta = np.flatnonzero((event == MARK_TYPE) | (event == DOMAIN_TYPE))
    whole, at = np.unique(codes[meta], return_inverse=True)
    code[meta], seq[meta] = len(names) + at, NO_SEQUENCE
    distinct = pa.concat_arrays([names, texts.take(arrow.from_numpy(whole.astype(np.int64)))])
    text = pa.DictionaryArray.from_arrays(pa.array(code, pa.int32()), as_text(distinct))
    columns = {name: events[name] for name in events.schema.names}
    return pa.RecordBatch.from_pydict({**columns, "text": text, "seq": arrow.from_numpy(seq)})


def _encoded(column: pa.Array) -> tuple[Int32s, pa.Array]:
    """Return each row's position among the distinct texts, and those as bytes."""
    if not len(column):
        column = pa.array([], pa.binary())  # a driver may call a column without values anything
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    texts, indices = pc.fill_null(encoded.dictionary.cast(pa.binary()), b""), encoded.indices.cast(pa.int32())
    if indices.null_count:
        texts = pa.concat_arrays([texts, pa.array([b""], pa.binary())])
        indices = pc.fill_null(indices, len(texts) - 1)
    return arrow.to_numpy(indices), texts


def _without_suffixes(texts: pa.Array) -> tuple[Int32s, pa.Array, Int64s]:
    """Return the number of each text's bare name, those names, and the text's sequence number or -1."""
    before, after = _cut(texts, OPERATOR_SUFFIXES[0])
    seq = np.full(len(texts), NO_SEQUENCE, np.int64)
    if after is not None:
        seq[after.rows] = _numbers(after.texts, texts)
    names = before.dictionary_encode()  # few: what follows costs next to nothing
    bare = names.dictionary
    for suffix in OPERATOR_SUFFIXES[1:]:
        bare, _ = _cut(bare, suffix)
    again = bare.dictionary_encode()
    return arrow.to_numpy(again.indices)[arrow.to_numpy(names.indices)], again.dictionary, seq


@dataclass(frozen=True, slots=True)
class _After:
    """What follows a suffix: the rows that have one, and its text."""

    rows: Int64s
    texts: pa.Array


def _cut(texts: pa.Array, suffix: str) -> tuple[pa.Array, _After | None]:
    """Return what precedes the first suffix in each text, and what follows it; None if no text has one."""
    parts = pc.split_pattern(texts, suffix, max_splits=1)
    if len(parts.values) == len(texts):
        return parts.values, None
    first = arrow.to_numpy(parts.offsets)
    rows = np.flatnonzero(np.diff(first) == 2)
    before = parts.values.take(parts.offsets[:-1])
    return before, _After(rows, parts.values.take(pa.array(first[rows] + 1)))


def _numbers(after: pa.Array, texts: pa.Array) -> Int64s:
    """Return the sequence numbers that follow the suffix; some texts are searched a second time."""
    digits = as_text(_cut(after, ", ")[0])  # what may follow the number
    if pc.all(pc.ascii_is_decimal(digits)).as_py() and pc.max(pc.binary_length(digits)).as_py() <= MOST_DIGITS:
        return arrow.to_numpy(digits.cast(pa.int64()))
    numbered = texts.filter(pc.match_substring(texts, OPERATOR_SUFFIXES[0]))
    found = pc.struct_field(pc.extract_regex(numbered, SEQUENCE), 0)
    return arrow.to_numpy(pc.fill_null(as_text(found).cast(pa.int64()), NO_SEQUENCE))


def as_text(values: pa.Array) -> pa.Array:
    """Treat bytes as text without checking them; decoding repairs what is not UTF-8."""
    return values.view(pa.string())
