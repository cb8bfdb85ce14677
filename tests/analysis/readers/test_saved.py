"""A saved report is read back as it was; one that does not fit together is refused in a sentence."""

import dataclasses
import json
import os
import re
import sqlite3
from contextlib import closing
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis import join, kernels
from nvtx_kernels.analysis.errors import NoGpuWork, NotAReport
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.saved import save
from sqlite_utils import Database

from tests.analysis.making import building, checks, generated
from tests.analysis.making.bundled import DATA, REPORTS, needs_shared, unpacked
from tests.analysis.making.bundled import SHARED as SHARED_FOLDER
from tests.analysis.making.lined import traced_report
from tests.analysis.making.shaped import Shaped
from tests.conftest import VARIABLE

CASES = 20
TRACES = sorted((SHARED_FOLDER / "failing" / "traces").glob("*.json*"))


def differences(a, b, at="trace"):
    """Return where two traces differ: in a value, a type or the dtype of a column."""
    if isinstance(a, np.ndarray):
        return [] if a.dtype == b.dtype and np.array_equal(a, b) else [at]
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a) if field.name != "file"]
        return [
            place for name in names for place in differences(getattr(a, name), getattr(b, name), f"{at}.{name}")
        ]
    if isinstance(a, list | tuple) and a and dataclasses.is_dataclass(a[0]):
        pairs = zip(a, b, strict=True)
        return [place for n, pair in enumerate(pairs) for place in differences(*pair, f"{at}[{n}]")]
    if isinstance(a, dict | list | tuple) and at != "trace.names":
        return [] if plain(a) == plain(b) else [at]
    return [] if type(a) is type(b) and a == b else [at]


def plain(value):
    """Return a value as JSON has it."""
    return json.loads(msgspec.json.encode(value))


@given(st.integers(0, 10**6))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_generated_program_is_read_back_as_it_was_saved(tmp_path, seed):
    trace = read(building.write(tmp_path / "made.sqlite", generated.Program(seed).run()))
    save(trace, tmp_path / "saved.sqlite")
    assert differences(trace, read(tmp_path / "saved.sqlite")) == []


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_read_back_as_it_was_saved(tmp_path, name):
    trace = read(unpacked(name, tmp_path))
    save(trace, tmp_path / "saved.sqlite")
    assert differences(trace, read(tmp_path / "saved.sqlite")) == []


def with_stacks(folder):
    """Return a trace with the lines, the functions and the shapes of its calls."""
    trace = Shaped()
    product = trace.operator("aten::mm", [[8, 4], [4, 2]], values=["", "é"], inside=[trace.kernel("gemm", 9)])
    return trace.write(folder / "trace.json", trace.frame("train.py(7): main", [trace.block("step", [product])]))


@pytest.mark.parametrize("make", [traced_report, with_stacks])
def test_lines_functions_and_shapes_are_read_back_as_they_were_saved(tmp_path, make):
    trace = read(make(tmp_path))
    assert trace.lines.sources
    save(trace, tmp_path / "saved.sqlite")
    assert differences(trace, read(tmp_path / "saved.sqlite")) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE lines_of_launch SET value = 3", "lines_of_launch.value leads outside of lines_sources"),
        ("UPDATE operators SET call = 1", "operators.call leads outside of operator_calls"),
        ("DELETE FROM lines_before_launch", "lines_before_launch and launches have different numbers of rows"),
    ],
)
def test_lines_and_calls_that_do_not_fit_are_refused(tmp_path, change, says):
    save(read(with_stacks(tmp_path)), tmp_path / "saved.sqlite")
    with closing(sqlite3.connect(tmp_path / "saved.sqlite")) as connection, connection:
        connection.execute(change)
    with pytest.raises(NotAReport, match=says):
        read(tmp_path / "saved.sqlite")


@needs_shared
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_pytorch_trace_gives_the_same_answer_once_it_is_joined(tmp_path, path):
    try:
        before = checks.said(kernels, path, "--format", "csv")
    except NoGpuWork:
        pytest.skip("the trace has no work")
    assert checks.said(join, path, "-o", tmp_path / "joined.sqlite")[0] == before[0]
    if before[0] == 0:
        assert checks.said(kernels, tmp_path / "joined.sqlite", "--format", "csv")[1] == before[1]


def saved_of(folder, **changes):
    """Save a small report and change it by SQL; return its path."""
    path = folder / "saved.sqlite"
    save(read(building.write(folder / "made.sqlite", generated.Program(3).run())), path)
    with sqlite3.connect(path) as connection:
        for statement in changes.values():
            connection.execute(statement)
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE work SET name_id = 9999", "work.name_id leads outside of names"),
        ("UPDATE launches SET thread = -7", "launches.thread leads outside of threads"),
        ("UPDATE threads SET process = 44", "threads.process leads outside of processes"),
        ("UPDATE work SET kind = 4", "work.kind leads outside of 4"),
        ("UPDATE work SET start_ns = 'soon'", "text for a start_ns"),
        ("UPDATE work SET end_ns = NULL", "missing values"),
        ("UPDATE names SET value = NULL", "names has what is no text"),
        ("DELETE FROM trace WHERE what = 'columns'", "its table 'trace' is not whole"),
        ("UPDATE trace SET value = '{' WHERE what = 'provenance'", "its table 'trace' is not whole"),
        ("UPDATE trace SET value = '99' WHERE what = 'version'", "written by a later nvtx-kernels"),
        ("DROP TABLE names", "no table names"),
    ],
)
def test_a_report_that_does_not_fit_together_is_refused(tmp_path, change, says):
    with pytest.raises(NotAReport, match=says):
        read(saved_of(tmp_path, change=change))


def test_what_a_later_version_adds_is_left(tmp_path):
    path = saved_of(tmp_path, column="ALTER TABLE work ADD COLUMN later", table="CREATE TABLE later (row, value)")
    assert differences(read(tmp_path / "made.sqlite"), read(path)) == []


def test_changed_bytes_are_read_or_refused(tmp_path):
    path, random, answered = saved_of(tmp_path), Random(int(os.environ[VARIABLE])), 0
    whole = path.read_bytes()
    for _ in range(CASES):
        content = bytearray(whole)
        for _ in range(random.choice((1, 4, 40))):
            content[random.randrange(100, len(content))] = random.randrange(256)
        path.write_bytes(content)
        status, _, err = checks.said(kernels, path)
        assert status in (0, 1)
        assert checks.SENTENCE.fullmatch(err) if status else not err, err
        answered += status == 0
    assert answered < CASES


def test_the_views_say_what_the_report_says(tmp_path):
    path = saved_of(tmp_path)
    trace = read(path)
    is_kernel = trace.work.kind == 0
    with sqlite3.connect(path) as connection:
        ((count, total_ns),) = connection.execute("SELECT count(*), sum(duration_ns) FROM kernels")
        ((ranges,),) = connection.execute("SELECT count(*) FROM named_ranges")
        inside = connection.execute("SELECT count(*) FROM kernels_by_range").fetchone()[0]
    assert (count, total_ns) == (is_kernel.sum(), trace.work.duration_ns[is_kernel].sum())
    assert (ranges, inside > 0) == (len(trace.ranges), True)


def test_what_was_written_for_nsys_exports_still_ranks_kernels_and_ranges(tmp_path):
    path = saved_of(tmp_path)
    trace = read(path)
    is_kernel = trace.work.kind == 0
    with sqlite3.connect(path) as connection:
        ((launched, total_ns),) = connection.execute(
            'SELECT count(*), sum(kernel."end" - kernel.start) FROM CUPTI_ACTIVITY_KIND_KERNEL kernel '
            "JOIN CUPTI_ACTIVITY_KIND_RUNTIME call USING (correlationId) "
            "JOIN StringIds ON StringIds.id = kernel.demangledName"
        )
        names = {name for (name,) in connection.execute(
            "SELECT value FROM NVTX_EVENTS JOIN StringIds ON textId = StringIds.id WHERE eventType = 59"
        )}  # fmt: skip
    is_launched = is_kernel & (trace.work.launch >= 0)
    assert (launched, total_ns) == (is_launched.sum(), trace.work.duration_ns[is_launched].sum())
    assert names == {trace.names[name] for name in trace.ranges.name_id.tolist()}


def test_the_documented_query_ranks_kernels(tmp_path):
    page = (DATA.parents[1] / "docs" / "report_file.md").read_text()
    (query,) = re.findall(r'sqlite-utils report.sqlite "(SELECT .*?)" --table', page, re.DOTALL)
    save(read(DATA / "h200_train_fp32.sqlite"), tmp_path / "report.sqlite")
    rows = list(Database(tmp_path / "report.sqlite").query(query))
    assert (len(rows), rows[0]["launches"], round(rows[0]["ms"], 2)) == (5, 146, 17.28)
