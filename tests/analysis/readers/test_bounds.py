"""What is too much is refused in one sentence before it fills the memory, and can be allowed."""

import gzip
import io
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nvtx_kernels.analysis.errors import NotAReport, UsageError
from nvtx_kernels.analysis.readers.safety import FLOOR_BYTES, MAX_SIZE, allowed_bytes, require_within
from nvtx_kernels.analysis.readers.sqlite import Database
from nvtx_kernels.analysis.trace import KERNEL

from nvtx_kernels import analysis
from tests.analysis.making import hostile
from tests.analysis.making.building import alter
from tests.analysis.making.hostile import KERNELS, LAUNCHES, RANGES
from tests.analysis.making.kineto import STEP, event, trace_text, write_kineto
from tests.analysis.making.parquet_folders import as_parquet

TOO_MUCH = rf"unpacks to more than 268 MB.* If you trust it, allow more: {MAX_SIZE}=\d+G$"


def squeezed(path, before, filling, times, after):
    """Write a gzipped text that is mostly the same."""
    with gzip.open(path, "wb", compresslevel=1) as file, io.BufferedWriter(file, 1 << 20) as buffered:
        buffered.write(before)
        for _ in range(times):
            buffered.write(filling)
        buffered.write(after)
    return path


MEGABYTE_OF_SPACES, OPENED, CLOSED = b" " * 10**6, b'{"traceEvents": [', b"]}"
EVENTS = b",".join([event("cpu_op", "aten::mm", 1, 1, 5, 9).encode()] * 20_000) + b","
BOMBS = {
    "spaces between events": (OPENED, MEGABYTE_OF_SPACES, 30, CLOSED),
    "spaces in an event": (OPENED + b'{"a": ', MEGABYTE_OF_SPACES, 30, b"1}" + CLOSED),
    "spaces before the events": (b'{"a": 1,', MEGABYTE_OF_SPACES, 30, b'"traceEvents": []}'),
    "spaces after the events": (OPENED + CLOSED[:1], MEGABYTE_OF_SPACES, 30, b"}"),
    "events without end": (OPENED, EVENTS, 12, b""),
    "an event without an end": (OPENED + b'{"name": "', b"x" * 10**6, 30, b""),
}


def refusal_of(path):
    with pytest.raises(NotAReport) as refusal:
        analysis.read(path)
    assert str(refusal.value).startswith(f"{path} ")
    assert str(refusal.value).count("\n") == 0
    return str(refusal.value)


TOO_LONG = {
    "before": (b'{"a": 1,', b'"traceEvents": []}', "no traceEvents in its first 64 MiB"),
    "after": (OPENED + CLOSED[:1], b"}", "more than 64 MiB follow its events"),
}


@pytest.mark.parametrize("where", TOO_LONG)
def test_much_space_around_the_events_is_refused_in_seconds(tmp_path, where):
    before, after, sentence = TOO_LONG[where]
    path = tmp_path / "a.pt.trace.json"
    path.write_bytes(before + MEGABYTE_OF_SPACES * 140 + after)
    began = time.process_time()
    assert sentence in refusal_of(path)
    assert time.process_time() - began < 5  # 20 s if all that was read is searched again after each block


@pytest.mark.parametrize("bomb", BOMBS)
def test_small_trace_of_much_text_is_refused(tmp_path, monkeypatch, bomb):
    monkeypatch.setenv(MAX_SIZE, "26M")
    assert "unpacks to more than 26 MB" in refusal_of(squeezed(tmp_path / "a.pt.trace.json.gz", *BOMBS[bomb]))


def test_small_parquet_file_of_many_equal_rows_is_refused(tmp_path, monkeypatch):
    folder = as_parquet(hostile.report(tmp_path), tmp_path / "tables")
    file = folder / f"{LAUNCHES}.parquet"
    row = pq.read_table(file).slice(0, 1)
    group = pa.table({name: pa.repeat(row[name][0], 1_000_000) for name in row.column_names})
    with pq.ParquetWriter(file, group.schema) as writer:
        for _ in range(8):
            writer.write_table(group)
    with pytest.raises(NotAReport, match=TOO_MUCH):
        analysis.read(folder)
    monkeypatch.setenv(MAX_SIZE, "1G")
    assert len(analysis.read(folder).launches) == 8_000_000


def test_what_may_unpack_is_said_by_the_file_or_by_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "report"
    path.write_bytes(bytes(10**7))
    assert allowed_bytes(path) == 10**9
    monkeypatch.setenv(MAX_SIZE, "1.5 GB")
    assert allowed_bytes(path) == 1_500_000_000
    monkeypatch.setenv(MAX_SIZE, "much")
    with pytest.raises(UsageError, match=r"NVTX_KERNELS_MAX_SIZE='much' is not a size. Use a value such as 8G."):
        require_within(path, FLOOR_BYTES + 1)


def test_a_virtual_table_is_refused_however_it_calls_itself(tmp_path):
    path = hostile.report(tmp_path, f"ALTER TABLE {KERNELS} RENAME TO theirs")
    alter(path, f"CREATE VIRTUAL TABLE {KERNELS} USING rtree(id, low, high)")
    # As no program of SQLite's does.
    alter(
        path,
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET rootpage = 2, type = 'TABLE' WHERE name = '{KERNELS}'",
    )
    with pytest.raises(NotAReport, match=f"has a virtual table, '{KERNELS}', as no report does"):
        analysis.read(path)


REFUSED = {
    "a view": ("CREATE VIEW theirs AS SELECT 1", "SELECT * FROM theirs", "not authorized"),
    "a file": ("SELECT 1", "SELECT load_extension('x')", "not authorized"),
    "another database": ("SELECT 1", "ATTACH ':memory:' AS other", "not authorized"),
    "no end": (
        "CREATE TABLE many AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 9999) "
        "SELECT x FROM n",
        "SELECT sum(a.x + b.x) FROM many AS a, many AS b", "keeps SQLite busy for longer than a report does",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "query", "sentence"), REFUSED.values(), ids=REFUSED)
def test_sqlite_does_nothing_that_the_files_author_wrote(tmp_path, change, query, sentence):
    database = Database(hostile.report(tmp_path, change))
    with pytest.raises(NotAReport, match=sentence):
        database.rows(query)


OTHER_CASE = {RANGES: ("start", "globalTid", "textId"), KERNELS: ("start", "globalPid", "end"), LAUNCHES: ("end",)}


def test_names_of_columns_may_be_in_other_case(tmp_path):
    path = hostile.report(tmp_path)
    before = analysis.read(path)
    for table, columns in OTHER_CASE.items():
        alter(path, *(f'ALTER TABLE {table} RENAME COLUMN "{name}" TO "{name.upper()}"' for name in columns))
    after = analysis.read(path)
    for column in before.work.__slots__:
        np.testing.assert_array_equal(getattr(before.work, column), getattr(after.work, column), column)
    assert after.work.kind.tolist() == [KERNEL] * 2


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    folder = as_parquet(hostile.report(tmp_path), tmp_path / "tables")
    file = folder / f"{LAUNCHES}.parquet"
    table = pq.read_table(file)
    twice = pa.Table.from_arrays([*table.columns, table["start"]], [*table.column_names, "start"])
    pq.write_table(twice, file)
    with pytest.raises(NotAReport, match=r"has several columns 'start': it is not nsys's\."):
        analysis.read(folder)


SECOND = ('"traceEvents": []', '"traceEvents": [{"ph": "X"}]', '"other": {"traceEvents": [1]}')


@pytest.mark.parametrize("second", SECOND)
def test_a_second_list_of_events_is_refused(tmp_path, second):
    path = tmp_path / "a.json"
    path.write_text(
        trace_text([event("kernel", "k", 0, 7, 0, 5, correlation=1)]).rstrip().removesuffix("}") + f", {second}}}"
    )
    with pytest.raises(NotAReport, match="names traceEvents more than once"):
        analysis.read(path)


def test_text_that_looks_like_a_second_list_of_events_is_text(tmp_path):
    path = write_kineto(tmp_path / "a.json", STEP, comment='"traceEvents": [')
    assert len(analysis.read(path).work)


REAL = Path(__file__).parents[2] / "data" / "h200_train_fp32.sqlite"
OF_RANGES = "UPDATE NVTX_EVENTS SET end = {} WHERE eventType IN (59, 60)"
TANGLED = {
    "lengths at random": OF_RANGES.format("start + abs(random()) % 100000000"),
    "no range ends": OF_RANGES.format("NULL"),
    "all end at once": OF_RANGES.format("(SELECT max(end) FROM NVTX_EVENTS)"),
}


@pytest.mark.parametrize(
    ("tangle", "words"),
    [*((tangle, "rank") for tangle in TANGLED),
     *((next(iter(TANGLED)), words) for words in ("view steps", "timeline -o out.json", "doctor"))],
)  # fmt: skip
def test_ranges_that_cross_everywhere_are_refused_in_seconds(tmp_path, tangle, words):
    path = alter(shutil.copy(REAL, tmp_path / "r.sqlite"), TANGLED[tangle])
    target = [tmp_path / word if word.startswith("out") else word for word in words.split()]
    said = hostile.run(*target, path, module="nvtx_kernels", memory=512 << 20)
    assert (said.status, said.out.count("\n") <= 12) == (1, True), said.err
    assert "cross, or nest without end" in said.err + said.out
    assert said.cpu_s < 10
