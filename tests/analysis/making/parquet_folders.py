"""Parquet folders as `nsys export --type parquetdir` makes them, of the tables of an SQLite export."""

import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from nvtx_kernels.analysis.readers.operator_names import as_text

# Parquet has integers of any width and texts as dictionaries; nsys chose differently over the years.
NARROW = {"eventType": pa.uint8(), "correlationId": pa.uint32(), "globalTid": pa.uint64(), "domainId": pa.int32()}
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def as_parquet(source, folder, narrow=False):
    """Write each table of an SQLite export as one Parquet file, as nsys does."""
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(source)) as database:
        database.text_factory = bytes
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = database.execute(f'SELECT * FROM "{table.decode()}"')
            names = [column[0] for column in rows.description]
            columns = zip(*rows.fetchall(), strict=True)
            arrays = {
                name: _array(list(values), name, narrow) for name, values in zip(names, columns, strict=False)
            }
            pq.write_table(pa.table(arrays), folder / f"{table.decode()}.parquet")
    return folder


def _array(values, name, narrow):
    if not any(isinstance(value, bytes) for value in values):
        return pa.array(values, NARROW.get(name) if narrow else None)
    texts = pa.array([str(v).encode() if isinstance(v, int) else v for v in values], pa.binary())
    return pc.cast(texts, pa.string()).cast(DICTIONARY) if narrow else as_text(texts)
