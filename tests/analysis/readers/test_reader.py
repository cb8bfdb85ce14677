"""The traps of nsys's exports from 2020 to 2026, one by one, in files as nsys writes them."""

import numpy as np
import pytest
from nvtx_kernels.analysis.readers import nsys_sqlite, read
from nvtx_kernels.analysis.readers.launches import RowsById

from tests.analysis.making.building import (
    AUTOGRAD,
    DOMAIN_CREATE,
    MAIN,
    Dialect,
    Launch,
    Range,
    Work,
    alter,
    build,
    launched,
    thread,
)
from tests.analysis.making.traces import attributed, summary

STEP = [Range("step", 0, 100), Range("layer 0", 5, 50)]
ONE_CALL = launched((10, 12))


@pytest.mark.parametrize("year", [2020, 2022, 2024, 2026])
@pytest.mark.parametrize("registered", ["none", "all", "mixed"])
def test_names_are_inline_or_registered_or_both_in_one_file(tmp_path, year, registered):
    report = build(tmp_path, Dialect(year, registered), ranges=STEP, **ONE_CALL)
    assert attributed(report) == ["own: step > layer 0"]


OTHER = thread(200)
PLACED = ["own: step > layer 0"]
OF_LIBRARIES = [Range("ncclAllReduce", 8, 20, domain=1), Range("my block", 8, 20, domain=2)]
PROCESSES = {MAIN: "NCCL", OTHER: "mine"}
OF_TWO_PROCESSES = [Range(name, -9, None, who, 1, DOMAIN_CREATE) for who, name in PROCESSES.items()]
OF_TWO_PROCESSES += [Range("step", 0, 100, who, 1) for who in PROCESSES]
BY_DRIVER = {"launches": [Launch(1, 10, 12, event_class=1)], "work": [Work(1, 20, 30)]}
# What test_attribution_by_brute_force.py does not write: ranges; calls and their work; the ranges of that.
TRAPS = {
    "no name": ([Range(None, 0, 100), STEP[1]], ONE_CALL, ["own:  > layer 0"]),
    "push with payload": ([STEP[0], Range("extended", 5, 50, event=70)], ONE_CALL, ["own: step > extended"]),
    "start with payload": ([STEP[0], Range("extended", 5, 50, event=71)], ONE_CALL, ["own: step"]),
    **{f"event {kind}": ([*STEP, Range(None, 6, 40, event=kind)], ONE_CALL, PLACED) for kind in (33, 39, 76)},
    "domain ids repeat": (OF_TWO_PROCESSES, launched((10, 12), (10, 12, OTHER)), ["outside", "own: step"]),
    "library without domain name": ([*STEP, *OF_LIBRARIES], ONE_CALL, ["own: step > layer 0 > my block"]),
    "driver": (STEP, BY_DRIVER, PLACED),
}


@pytest.mark.parametrize(("ranges", "rows", "expected"), TRAPS.values(), ids=TRAPS)
def test_work_is_attributed_past_each_trap(tmp_path, ranges, rows, expected):
    assert attributed(build(tmp_path, ranges=ranges, **rows)) == expected


def test_a_registered_name_that_is_missing_is_no_name(tmp_path):
    report = build(tmp_path, Dialect(2025, "all"), ranges=STEP, **ONE_CALL)
    alter(report, "DELETE FROM StringIds WHERE value = 'layer 0'")
    assert attributed(report) == ["own: step > "]


def test_a_range_that_was_never_closed_ends_with_the_capture_and_is_counted(tmp_path):
    report = build(tmp_path, ranges=[Range("forgotten", 5, None), *STEP], **launched((10, 12), (200, 202)))
    assert read(report).ranges.end_ns.tolist() == [100, 213, 50]
    assert attributed(report) == ["own: step > forgotten > layer 0", "own: forgotten"]
    assert any("1 range was never closed" in note for note in summary(report).notes)


@pytest.mark.parametrize("correlation", [None, 0, 99])
def test_work_without_a_launch_is_outside_and_said_to_be(tmp_path, correlation):
    report = build(tmp_path, ranges=STEP, launches=[Launch(1, 10, 12)], work=[Work(correlation, 20, 30)])
    (row,) = summary(report).outside
    assert (row.kind, row.count, row.total_ns) == ("kernel", 1, 10)
    assert "no launch" in row.reason


def test_work_is_named_by_its_direction_or_demangled_name(tmp_path):
    copies = [Work(None, 20, 30, direction, "memcpy") for direction in (1, 2, 8, 10, 77)]
    kernels = [Work(None, 20, 30, name) for name in ("cutlass::Kernel2<a>", "cutlass::Kernel2<b>", "forgotten")]
    report = alter(build(tmp_path, work=[*copies, *kernels]), "DELETE FROM StringIds WHERE value = 'forgotten'")
    trace = read(report)
    first, second, without, *copied = [trace.names[name_id] for name_id in trace.work.name_id]
    assert (first, second) == ("cutlass::Kernel2<a>", "cutlass::Kernel2<b>")
    assert without.startswith("(kernel without a name, string ")
    directions = ["Host-to-Device", "Device-to-Host", "Device-to-Device", "Peer-to-Peer", "of unknown kind"]
    assert copied == [f"[CUDA memcpy {name}]" for name in directions]


@pytest.mark.parametrize("rows_per_part", [1, 2, 5])
def test_tables_are_read_in_parts_of_any_size(tmp_path, monkeypatch, rows_per_part):
    rows = launched(*((n, n + 1, t) for n, t in zip(range(0, 40, 3), [MAIN, AUTOGRAD] * 7, strict=True)))
    report = build(tmp_path, Dialect(2025, "mixed"), ranges=[Range(f"r{n}", n, 60 - n) for n in range(20)], **rows)
    whole = attributed(report)
    monkeypatch.setattr(nsys_sqlite, "ROWS_PER_PART", rows_per_part)
    assert attributed(report) == whole


def test_rows_that_end_before_they_start_are_left_out_and_said_to_be(tmp_path):
    report = build(tmp_path, ranges=[*STEP, Range("damaged", 40, 30)], work=[Work(None, 30, 20)])
    trace = read(report)
    assert (len(trace.ranges), len(trace.work)) == (2, 0)
    assert [note[:1] for note in trace.notes] == ["1", "1"]


def test_threads_have_all_the_names_that_the_report_gives_them(tmp_path):
    report = build(tmp_path, ranges=STEP, thread_names={MAIN: "python"}, **ONE_CALL)
    alter(
        report,
        "INSERT INTO ThreadNames SELECT id, NULL, (SELECT globalTid FROM ThreadNames) FROM StringIds LIMIT 1",
    )
    assert read(report).threads[0].name.startswith("python, ")


@pytest.mark.parametrize("origin", [-(10**15), 0, 10**15, 1_750_000_000_000_000_000])
def test_the_clock_may_begin_anywhere(tmp_path, origin):
    threads = [thread(100, tid) for tid in range(100, 108)]
    ranges = [Range(f"range {t & 0xFF}", origin + 5, origin + 50, t) for t in threads]
    report = build(tmp_path, ranges=ranges, **launched(*((origin + 10, origin + 12, t) for t in threads)))
    assert attributed(report, adopt=False) == [f"own: range {t & 0xFF}" for t in threads]


@pytest.mark.parametrize("impossible", [-1, 1 << 44, -(1 << 62)])
def test_ids_that_cuda_never_gives_out_lead_to_no_launch(impossible):
    process, nobody = np.zeros(2, np.int32), np.zeros(2, np.bool_)
    keys = RowsById.of(process, np.array([impossible, 7]), nobody, np.arange(2))
    assert keys.find(process, np.array([impossible, 7])).tolist() == [-1, 1]
