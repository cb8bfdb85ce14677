"""Summaries as earlier versions wrote them: one Parquet table. OLD is one that bce37d6's format has, of OURS."""

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from nvtx_kernels.analysis.container import plain
from nvtx_kernels.analysis.summary.file import read_tables
from nvtx_kernels.analysis.summary.parquet import KEY, VERSION
from nvtx_kernels.analysis.summary.tables import COLUMNS

from tests.analysis.making.plain_sql import OURS

OLD = OURS.with_suffix(".summary.parquet")


def as_old(summary, path, change=dict):
    """Write a summary as Parquet, a group of rows for each of its tables; `change` returns the head to write."""
    head, tables = read_tables(summary, COLUMNS, of_all=True)
    head.version = VERSION
    about = change(msgspec.json.decode(msgspec.json.encode(head, enc_hook=plain)))
    schema = pq.read_schema(OLD).with_metadata({KEY: msgspec.json.encode(about)})
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for (table, extent), columns in tables.items():
            count = len(next(iter(columns.values())))
            columns = columns | {"table": [table] * count, "of": [extent] * count}
            arrays = [pa.array(columns.get(field.name, [None] * count), field.type) for field in schema]
            if count:
                file.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return path
