"""Names of ranges without PyTorch's suffixes, and their sequence numbers.

It is `vocabulary.without_suffixes` on Arrow's columns. Texts are seen as bytes, for a name need not be UTF-8, and
split at the suffixes: a regular expression over a million `…, seq = 123` takes several times as long.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..support import arrow
from ..trace import Int32s, Int64s
from ..vocabulary import OPERATOR_SUFFIXES
from .nsys_tables import DOMAIN_TYPE, EVENTS_READ, MARK_TYPE, Part

# RE2 runs in linear time.
SEQUENCE = r", seq = (?P<seq>[0-9]{1,18})(?:[^0-9]|$)"
MOST_DIGITS = 18
NO_SEQUENCE = -1
SUFFIX = OPERATOR_SUFFIXES[0]


def with_bare_names(part: Part) -> pa.Table:
    """Read NVTX events that are of use, `text` as a dictionary of bare names, and `seq`; missing texts are empty.

    Marks and the names of domains stay whole.
    """
    events = part()
    is_read = pc.is_in(events["event"], arrow.integers(EVENTS_READ))
    if not pc.all(is_read).as_py():
        events = events.filter(is_read)
    batches = events.combine_chunks().to_batches()
    if batches:
        return pa.Table.from_batches([_bare(batch) for batch in batches])
    return events


def _bare(events: pa.RecordBatch) -> pa.RecordBatch:
    codes, texts = _encoded(events["text"])
    name, names, seq = _without_suffixes(texts)
    event = arrow.to_numpy(events["event"])
    meta = np.flatnonzero((event == MARK_TYPE) | (event == DOMAIN_TYPE))
    text_of_meta = meta
    if codes is not None:
        name = name[codes]
        seq = seq[codes]
        text_of_meta = codes[meta].astype(np.int64)
    meta_texts, position = np.unique(text_of_meta, return_inverse=True)
    name[meta] = len(names) + position
    seq[meta] = NO_SEQUENCE
    whole_texts = texts.take(arrow.from_numpy(meta_texts))
    distinct = pa.concat_arrays([names, whole_texts])
    text = pa.DictionaryArray.from_arrays(arrow.from_numpy(name), as_text(distinct))
    columns = {name: events[name] for name in events.schema.names}
    return pa.RecordBatch.from_pydict({**columns, "text": text, "seq": arrow.from_numpy(seq)})


def _encoded(column: pa.Array) -> tuple[Int32s | None, pa.Array]:
    """Return texts as bytes, and each row's position among them; None where every row has its own."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.dictionary_encode()  # all of them may be too long for one column of bytes
    codes = None
    texts = column
    if pa.types.is_dictionary(column.type):
        codes = column.indices.cast(pa.int32())
        texts = column.dictionary
        if codes.null_count:
            texts = pa.concat_arrays([texts.cast(pa.binary()), arrow.binary([""]).cast(pa.binary())])
            codes = pc.fill_null(codes, arrow.integer(len(texts) - 1).cast(pa.int32()))
    texts = texts.cast(pa.binary())
    if texts.null_count:
        texts = pc.fill_null(texts, arrow.binary([""]).cast(pa.binary())[0])
    if codes is None:
        return None, texts
    return arrow.to_numpy(codes), texts


def _without_suffixes(texts: pa.Array) -> tuple[Int32s, pa.Array, Int64s]:
    """Return the number of each text's bare name, those names, and the text's sequence number or -1."""
    names, has_suffix, tails = _split(texts, SUFFIX)
    names = names.dictionary_encode()
    bare = names.dictionary  # few: what follows costs next to nothing
    for suffix in OPERATOR_SUFFIXES[1:]:
        bare, _, _ = _split(bare, suffix)
    again = bare.dictionary_encode()
    sequence = np.full(len(texts), NO_SEQUENCE, np.int64)
    first_tails, _, _ = _split(tails, ",")
    numbers = as_text(first_tails)
    is_short = arrow.to_numpy(pc.binary_length(numbers)) <= MOST_DIGITS
    is_decimal = arrow.to_numpy(pc.ascii_is_decimal(numbers))
    if not (is_decimal & is_short).all():
        matches = pc.extract_regex(texts.take(arrow.from_numpy(has_suffix)), SEQUENCE)
        numbers = as_text(pc.struct_field(matches, 0))
    known_numbers = pc.fill_null(numbers.cast(pa.int64()), arrow.integer(NO_SEQUENCE))
    sequence[has_suffix] = arrow.to_numpy(known_numbers)
    bare_of_name = arrow.to_numpy(again.indices)
    name_of_text = arrow.to_numpy(names.indices)
    return bare_of_name[name_of_text], again.dictionary, sequence


def _split(texts: pa.Array, mark: str) -> tuple[pa.Array, Int64s, pa.Array]:
    """Split texts at a mark. Return each text's part before it, the positions with a mark, and the parts after."""
    parts = pc.split_pattern(texts, mark, max_splits=1)
    first = arrow.to_numpy(parts.offsets)
    rows = np.flatnonzero(np.diff(first) == 2)
    before = parts.values.take(parts.offsets[:-1])
    after = parts.values.take(arrow.from_numpy(first[rows] + 1))
    return before, rows, after


def as_text(values: pa.Array) -> pa.Array:
    """Treat bytes as text without checking them; decoding repairs what is not UTF-8."""
    return values.view(pa.string())
