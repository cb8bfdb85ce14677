"""Columns that SQLite packs into one number are the columns that it would have given one by one."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.readers.columns import gather
from nvtx_kernels.analysis.readers.nsys_sqlite import NsysSqlite
from nvtx_kernels.analysis.readers.nsys_tables import EVENTS, EVENTS_READ
from nvtx_kernels.analysis.readers.nsys_trace import completed

# A real export's values, those at the limits of the packed columns, and what only damage makes.
EVENT = st.one_of(st.sampled_from(EVENTS_READ), st.sampled_from([0, 127, 128, 315, -1, 35]))
DOMAIN = st.sampled_from([0, 1, 255, 65_535, 65_536, -1, None, 2**40])
TEXT_ID = st.sampled_from([None, 0, -1, -7, 5, 2**32 - 2, 2**32 - 1, 2**32, 2**62, -(2**62), 1.5, "abc", b"abc"])
CATEGORY = st.sampled_from([None, 0, 3, 255, 256, 511, -1])
ROWS = st.lists(st.tuples(EVENT, DOMAIN, TEXT_ID, CATEGORY), min_size=1, max_size=6)


def table_of(path, rows):
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, domainId INTEGER, "
            "textId INTEGER, category INTEGER, globalTid INTEGER, text TEXT)"
        )
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (1, 2, ?, ?, ?, ?, 3, 'relu, seq = 4')", rows)


def read(tables):
    """Return the ranges' columns as plain values, or the refusal."""
    try:
        (found,) = gather([completed(EVENTS, tables.parts(EVENTS))])
    except NotAReport as refusal:
        return str(refusal)
    codes = {name: [one.values[code] for code in one.codes] for name, one in found.codes.items()}
    aside = {name: values.tolist() for name, values in found.aside.numbers.items()}
    return {name: values.tolist() for name, values in found.numbers.items()}, codes, aside


@given(ROWS)
@example([(59, 0, None, None), (34, 1, 5, 3), (75, 65_535, -7, 255)])
def test_packed_columns_are_the_plain_ones(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "packed.sqlite"
    table_of(path, rows)
    plain = NsysSqlite(path)
    plain._fits = False
    assert read(NsysSqlite(path)) == read(plain)


@pytest.mark.parametrize(("text_id", "fits"), [(None, True), (2**31, True), ("abc", False), (2**62, False)])
def test_what_does_not_fit_is_read_plainly(tmp_path, text_id, fits):
    table_of(tmp_path / "a.sqlite", [(59, 0, text_id, 0)])
    tables = NsysSqlite(tmp_path / "a.sqlite")
    read(tables)
    assert tables._fits == fits
