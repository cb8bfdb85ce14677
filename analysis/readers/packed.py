"""Several small integers of a row as one number, for a driver that takes 50 ns a value.

Short, because it has only two parts: what to select, and how to make columns of it again.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..support import arrow

# The bits of each column, from the lowest; a row in which one does not fit has no number. The last column can be
# negative. It needs no limit but against text, which SQLite takes for larger than any number: where the result is
# beyond 63 bits, SQLite makes a real number of it.
BITS = {"category": 8, "event": 7, "domain": 16}
LAST, LAST_BEYOND = "text_id", 1 << 32
SHIFTS = {"category": 0, "event": 8, "domain": 15, LAST: 31}


def packed_sql(columns: dict[str, str], missing: int) -> str:
    """Return the SQL expression for the number; `columns` are expressions, the last of which may be NULL."""
    fits = [f"{columns[name]} BETWEEN 0 AND {(1 << bits) - 1}" for name, bits in BITS.items()]
    last = columns[LAST]
    terms = [f"{columns[name]} * {1 << SHIFTS[name]}" for name in BITS]
    return (
        f"CASE WHEN {' AND '.join([*fits, f'coalesce({last}, 0) < {LAST_BEYOND}'])} "
        f"THEN {' + '.join([f'coalesce({last}, {missing}) * {1 << SHIFTS[LAST]}', *terms])} END AS packed"
    )


def unpacked(table: pa.Table, events: tuple[int, ...]) -> pa.Table | None:
    """Return the columns in place of `packed`, of the rows with these events; None if a row did not fit."""
    packed = table["packed"]
    if packed.null_count or packed.type != pa.int64():
        return None
    encoded = packed.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    distinct, codes = arrow.to_numpy(encoded.dictionary), encoded.indices
    values = {name: distinct >> SHIFTS[name] & (1 << bits) - 1 for name, bits in BITS.items()}
    values[LAST] = distinct >> SHIFTS[LAST]
    columns = {name: table[name] for name in table.column_names if name != "packed"}
    for name in ("event", "category"):
        columns[name] = arrow.from_numpy(values[name][arrow.to_numpy(codes)])
    for name in ("domain", LAST):
        columns[name] = pa.DictionaryArray.from_arrays(codes, arrow.from_numpy(values[name]))
    rows = pa.table(columns)
    if np.isin(values["event"], events).all():
        return rows
    return rows.filter(pc.is_in(rows["event"], arrow.integers(events)))
