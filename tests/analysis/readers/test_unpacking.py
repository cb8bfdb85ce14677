"""Every reader refuses a small file that unpacks to much, whichever part of it does."""

import gzip

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.ranks.reduce import read_one
from nvtx_kernels.analysis.readers.safety import FLOOR_BYTES, MAX_SIZE
from nvtx_kernels.analysis.summary import file as summaries
from nvtx_kernels.analysis.summary.tables import ALL, COLUMNS
from nvtx_kernels.analysis.summary.totals import summarize

from nvtx_kernels import analysis
from tests.analysis.making import hostile
from tests.analysis.making.hostile import LAUNCHES
from tests.analysis.making.old_summaries import as_old
from tests.analysis.making.parquet_folders import as_parquet

MANY = 3_000_000
LONG = "x" * 100_000


def repeated(table, count, **changed):
    """Return a table whose first row stands there `count` times, with some of its values changed."""
    row = table.slice(0, 1).to_pylist()[0] | changed
    columns = [pa.repeat(pa.scalar(row[field.name], field.type), count) for field in table.schema]
    return pa.Table.from_arrays(columns, schema=table.schema)


def folder_with(table, count=MANY, **changed):
    """Return what makes a Parquet folder in which one table has many equal rows."""

    def make(folder):
        made = as_parquet(hostile.report(folder), folder / "tables")
        path = made / f"{table}.parquet"
        table_before = (
            pq.read_table(path) if path.exists() else pa.table({name: [value] for name, value in changed.items()})
        )
        pq.write_table(repeated(table_before, count, **changed), path)
        return made

    return make


def summary_of(folder):
    attribution = attribute(analysis.read(hostile.report(folder)))
    path = folder / "rank0.summary.sqlite"
    path.write_bytes(summaries.as_sqlite(attribution, summarize(attribution), rank=0, host=""))
    return path


def summary_with(table, count=MANY, **changed):
    """Return what makes a summary of an earlier version in which one table has many equal rows."""

    def make(folder):
        whole = pq.read_table(as_old(summary_of(folder), folder / "old.parquet"))
        row = next(number for number, name in enumerate(whole["table"].to_pylist()) if name == table)
        path = folder / "rank0.parquet"
        pq.write_table(
            repeated(whole.slice(row, 1), count, **changed), path, compression="zstd", row_group_size=count
        )
        return path

    return make


def trace(folder):
    """Write a gzipped trace that is mostly spaces."""
    path = folder / "a.pt.trace.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"traceEvents": [' + b" " * (FLOOR_BYTES + (1 << 20)) + b"]}")
    return path


SMALL_FILES = {
    "trace": (trace, analysis.read),
    "folder, many launches": (folder_with(LAUNCHES, 4 * MANY), analysis.read),
    "folder, many threads": (folder_with("ThreadNames", nameId=1, priority=0, globalTid=1), analysis.read),
    "folder, many texts": (folder_with("StringIds"), analysis.read),
    "summary, many ranges": (summary_with("ranges"), summaries.read_summary),
    "summary, many kernels": (summary_with("kernels"), summaries.read_step_times),
    "summary, many steps": (summary_with("kernels", 3000, step_ns=[1] * 1000), summaries.read_step_times),
    "summary, long names": (summary_with("ranges", 10_000, path=[LONG]), summaries.read_summary),
    "summary, for comparing ranks": (summary_with("ranges", 10_000, path=[LONG]), read_one),
}


@pytest.mark.parametrize("what", SMALL_FILES)
def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, what):
    make, read = SMALL_FILES[what]
    path = make(tmp_path)
    with pytest.raises(NotAReport, match=r"unpacks to more than 268 MB.* allow more: NVTX_KERNELS_MAX_SIZE=\d+G$"):
        read(path)


def saved_summary(folder):
    """Write a summary whose table of steps has 20,000 rows."""
    path = summary_of(folder)
    head, tables = summaries.read_tables(path, COLUMNS, of_all=True)
    steps = tables["steps", ALL]
    tables["steps", ALL] = {name: ["forward" if name == "phase" else None] * 20_000 for name in steps}
    path.write_bytes(summaries.stored(head, tables))
    return path


@pytest.mark.parametrize("make", [summary_with("steps", 20_000, phase="forward"), saved_summary])
def test_a_summary_that_is_trusted_is_read_whole(tmp_path, monkeypatch, make):
    path = make(tmp_path)
    monkeypatch.setenv(MAX_SIZE, "1M")
    with pytest.raises(NotAReport, match="unpacks to more than 1 MB"):
        summaries.read_steps(path)
    monkeypatch.setenv(MAX_SIZE, "1G")
    assert summaries.read_steps(path) == []
    assert msgspec.json.encode(summaries.read_tables(path, {})[0])
