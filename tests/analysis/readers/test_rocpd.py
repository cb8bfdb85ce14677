"""Databases of rocprofv3's, written by rocprofiler-sdk's documented columns (making/rocpd_database.py)."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis import doctor
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import NoGpuWork, NotAReport
from nvtx_kernels.analysis.readers import read, reader_of
from nvtx_kernels.analysis.summary.totals import summarize

import nvtx_kernels as nk
from tests.analysis.attribution.test_attribution_by_brute_force import conserves, expected, found
from tests.analysis.making.building import AUTOGRAD, MAIN, START_END, Launch, Range, Rows, Work, alter, launched
from tests.analysis.making.generated import Program, chaos, programs
from tests.analysis.making.rocpd_database import COPIES, GUID, create, sayable, write, write_all
from tests.analysis.making.traces import attributed

TABLE = f"rocpd_{{}}_{GUID.replace('-', '_')}"
STEP = Rows(
    ranges=[Range("step", 0, 1000), Range("forward", 10, 400), Range("layer 0", 20, 200)],
    **launched((30, 40), (210, 220), (500, 510), (2000, 2010)),
)
PLACED = ["own: step > forward > layer 0", "own: step > forward", "own: step", "outside"]


@pytest.fixture
def database(tmp_path):
    return write(tmp_path / "12_results.db", STEP)


def says_the_same(folder, rows):
    """Hold a database against the definitions of attribution, and conservation."""
    attribution = attribute(read(write_all(folder / "any_results.db", rows)))
    return found(attribution) == expected(rows) and conserves(summarize(attribution))


def test_a_program_of_two_processes_is_answered_as_defined(tmp_path):
    rows = next(rows for rows in map(sayable, (Program(seed).run() for seed in range(99))) if processes(rows) == 3)
    assert says_the_same(tmp_path, rows)


def processes(rows):
    return len({row.thread >> 24 for row in rows.ranges})


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(rows=st.one_of(chaos(), programs).map(sayable))
def test_databases_say_the_same_as_the_rows_they_hold(tmp_path, rows):
    assert says_the_same(tmp_path, rows)


def test_work_is_in_the_range_around_its_call(database):
    assert attributed(database) == PLACED


def test_without_calls_work_is_in_the_range_that_rocprofv3_gives_it(tmp_path):
    path = write(tmp_path / "12_results.db", STEP, hip=False)
    assert attributed(path) == PLACED
    assert "no HIP calls" in " ".join(read(path).notes)
    assert {*nk.idle(path)["places"]["cause"]} == {"unknown"}


def test_names_of_kernels_are_whole_though_displayed_short(tmp_path):
    name = "void at::native::vectorized_elementwise_kernel<4>(int)"
    work = [replace(work, name=name) for work in STEP.work]
    trace = read(write(tmp_path / "12_results.db", replace(STEP, work=work)))
    assert {trace.names[number] for number in trace.work.name_id} == {name}
    assert trace.work.grid.tolist() == [16 * 1 * 2] * 4  # of 1000, 64 and 128 work-items, 64 to a group
    assert trace.provenance.gpus == ("AMD Instinct MI300X",)
    assert trace.provenance.tool == "rocprofv3"


def test_directions_of_copies_are_by_their_agents(tmp_path):
    calls = [Launch(number, number, number + 1) for number in COPIES]
    copies = [Work(number, 50, 60, number, "memcpy") for number in COPIES]
    trace = read(write(tmp_path / "12_results.db", Rows(launches=calls, work=copies)))
    names = [trace.names[number].removeprefix("[CUDA memcpy ") for number in trace.work.name_id]
    whole = ["Host-to-Device]", "Device-to-Host]", "Device-to-Device]", "Host-to-Host]", "Peer-to-Peer]"]
    assert names == whole
    assert trace.work.device_id.tolist() == [0, 0, 0, 0, 1]


def test_autograds_numbers_and_ranges_of_no_thread_are_read(tmp_path):
    ranges = [
        Range("step", 0, 1000),
        Range("aten::mm, seq = 7, op_id = 3", 10, 20),
        Range("job", 0, 900, event=START_END),
        Range("MmBackward0, seq = 7", 400, 500, AUTOGRAD),
    ]
    trace = read(write(tmp_path / "12_results.db", Rows(ranges, **launched((410, 420, AUTOGRAD)))))
    said = {trace.names[name]: (seq, style) for name, seq, style in zip(
        trace.ranges.name_id.tolist(), trace.ranges.seq.tolist(), trace.ranges.style.tolist(), strict=True
    )}  # fmt: skip
    assert said == {"step": (-1, 0), "aten::mm": (7, 0), "job": (-1, 1), "MmBackward0": (7, 0)}


def test_it_is_known_by_its_tables_whatever_it_is_called(tmp_path, database):
    other = database.rename(tmp_path / "report.sqlite")
    assert reader_of(other).format == "rocprofv3 database"


REFUSED = {
    "no event": ([f"DROP TABLE `{TABLE.format('event')}`"], "no table"),
    "no dispatches' table": ([f"DROP TABLE `{TABLE.format('kernel_dispatch')}`"], "dispatches"),
    "a column less": ([f"ALTER TABLE `{TABLE.format('event')}` RENAME COLUMN stack_id TO other"], "stack_id"),
    "text for a time": ([f"UPDATE `{TABLE.format('kernel_dispatch')}` SET start = 'now'"], "damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_tables_are_refused_in_a_sentence(database, case):
    statements, said = REFUSED[case]
    views = [f"DROP VIEW `{TABLE.format(name)[:-37]}`" for name in ("event", "kernel_dispatch")]
    with pytest.raises(NotAReport, match=said):
        read(alter(database, *views, *statements))


def test_ranges_without_readable_text_have_no_name(database):
    alter(database, f"UPDATE `{TABLE.format('event')}` SET extdata = '{{\"mess' WHERE extdata LIKE '%forward%'")
    assert attributed(database)[1] == "own: step > "


def test_ranges_alone_are_refused_with_the_command_that_records_work(tmp_path):
    path = write(tmp_path / "12_results.db", Rows(ranges=[Range("step", 0, 10)]))
    with pytest.raises(NoGpuWork, match=r"1 roctx ranges.*rocprofv3 --marker-trace .*-f rocpd") as refusal:
        nk.rank(path)
    assert "nsys" not in str(refusal.value)


def test_an_empty_database_is_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / "12_results.db")) as database:
        create(database)
        database.commit()
    with pytest.raises(NoGpuWork, match="rocprofv3"):
        nk.rank(tmp_path / "12_results.db")


@pytest.mark.parametrize(("schema", "doubted"), [("3", False), ("4", True)])
def test_a_newer_schema_is_doubted(tmp_path, schema, doubted):
    path = write(tmp_path / "12_results.db", STEP, schema=schema)
    notes = " ".join(summarize(attribute(read(path))).notes)
    assert ("schema is 4, and the newest that was tested 3" in notes) == doubted


def test_remedies_are_rocprofv3s(tmp_path, capsys):
    launches = [replace(call, correlation=call.correlation + 900) for call in STEP.launches]
    path = write(tmp_path / "12_results.db", replace(STEP, ranges=[], launches=launches))
    doctor.main([str(path)])
    said = " ".join(capsys.readouterr().out.split())
    assert "no roctx ranges" in said
    assert "rocprofv3 --marker-trace" in said
    assert "nsys" not in said


def test_threads_have_their_systems_numbers(database):
    trace = read(database)
    assert [thread.thread_id for thread in trace.threads] == [MAIN & 0xFFFFFF]
    assert [process.process_id for process in trace.processes] == [100]
