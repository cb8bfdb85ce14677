"""(a) beside times without a profiler: which run is taken, and what is said where there is none."""

import json
import tracemalloc
from pathlib import Path

import pytest
from nvtx_kernels.analysis.errors import NotAReport, UsageError
from nvtx_kernels.analysis.questions import timed

from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.questioned import COMPILED, DATA, called

CELL = {
    "size": "small", "context_length": 512, "batch_size": 4, "mode": "train", "dtype": "fp32",
    "attention": "reference", "compile": False, "optimizer": "foreach", "warmup": 5, "capture": "none",
}  # fmt: skip
STATE = {"device_name": "NVIDIA H200"}
RUN = {**CELL, **STATE, "optimizer": "reference"}


def run_of(*forward_ms, cell=(), state=(), started="2026-01-01T00:00:00Z", status="ok"):
    measured = [{"forward": time, "step": 3 * time} for time in forward_ms]
    own = {"cell": {**CELL, **dict(cell)}, "state": {**STATE, **dict(state)}}
    return {**own, "status": status, "measured": measured, "started": started}


def written(folder, *rows, torn=""):
    path = folder / "results.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + torn)
    return path


SIZED = {**RUN, "size": "small, layers 3", "layers": 3}
REPEATED = [
    run_of(7, started="2026-01"), run_of(18, 20, 22, started="2026-02"),
    run_of(19, 40, cell={"repeat": 1}, started="2026-03"), run_of(1, cell={"optimizer": "fused"}, started="2025"),
]  # fmt: skip
WARMED = [
    run_of(30, cell={"warmup": 0}, started="2026-03"),
    run_of(18, started="2026-01"),
    run_of(19, started="2026-02"),
]
TWO_SIZES = [run_of(18), run_of(7, cell={"layers": 3})]
#: The run of a report, rows of results, and which times of its forward are taken, ms.
TAKEN = {
    "all repeats of the newest": (RUN, REPEATED, [18, 20, 22, 19, 40]),
    "the newest of the most warm-up": (RUN, WARMED, [19]),
    "a size": (RUN, TWO_SIZES, [18]),
    "a changed size": (SIZED, TWO_SIZES, [7]),
    "not of another size": (RUN, [run_of(18, cell={"size": "large"})], []),
    "not of a changed size": (RUN, [run_of(18, cell={"layers": 3})], []),
    "not compiled": (RUN, [run_of(18, cell={"compile": True})], []),
    "not of another GPU": (RUN, [run_of(18, state={"device_name": "NVIDIA A100"})], []),
    "of no run": ({}, [run_of(18)], []),
}


@pytest.mark.parametrize("case", TAKEN)
def test_times_are_all_steps_of_the_newest_run_of_each_repeat_with_equal_settings(tmp_path, case):
    run, rows, taken_ms = TAKEN[case]
    runs = timed.read(written(tmp_path, *rows))
    assert timed.of_run(run, runs, "forward") == [time * 1e6 for time in taken_ms]
    assert timed.of_run(run, runs, "backward") == []


WATCHED = {
    "under nsys": run_of(18, cell={"capture": "nsys-light"}),
    "watched": run_of(18, state={"watched_by": "nsys"}),
    "out of memory": run_of(18, status="oom"),
    "another file": {"cell": 1},
    "warm-up that is no number": run_of(18, cell={"warmup": "5"}),
    "a repeat that is no number": run_of(18, cell={"repeat": [1]}),
    "a time that is no number": run_of("18"),
    "a time beyond all": run_of(float("inf")),
}


@pytest.mark.parametrize("row", WATCHED.values(), ids=WATCHED.keys())
def test_a_file_without_plain_times_is_refused(tmp_path, row):
    with pytest.raises(UsageError, match="has no times of runs without a profiler: measure some with"):
        timed.read(written(tmp_path, row, torn='{"cell": {"si'))


TOO_MUCH = {
    "a line without an end": ("[" * (5 << 20), "has more than 4 MiB in a line"),
    "many lines": (f"{'x' * 1000}\n" * 70_000, "has more than 64 MiB"),
    "many steps": (f"{json.dumps(run_of(*range(50_000)))}\n" * 3, "has more than 100,000 measured steps"),
    "nesting": ("[" * 100_000 + "\n", "has no times of runs without a profiler"),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_too_much_is_refused_in_a_sentence_and_little_memory(tmp_path, what):
    text, sentence = TOO_MUCH[what]
    path = tmp_path / "results.jsonl"
    path.write_text(text)
    tracemalloc.start()
    with pytest.raises(UsageError, match=sentence) as refusal:
        timed.read(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(refusal.value)
    assert most < 128 << 20


def test_a_file_without_an_end_is_refused():
    with pytest.raises(NotAReport, match="is not a regular file"):
        timed.read(Path("/dev/zero"))


def test_a_missing_file_is_wrong_usage(tmp_path, capsys):
    status, out, err = called(capsys, OURS, "--timed", tmp_path / "none.jsonl")
    assert (status, out) == (2, "")
    assert "cannot be read: No such file" in err


def test_reports_stand_beside_their_runs(tmp_path, capsys):
    path = written(tmp_path, run_of(20, 20), torn='{"torn')
    status, out, _ = called(capsys, OURS, COMPILED, "--questions", "a", "--timed", path, "--format", "json")
    tables = {table["key"]: table["rows"] for table in json.loads(out)["tables"]}
    eager, compiled = tables["a_forward_timed"]
    assert status == 0
    assert (eager["n"], eager["timed_ns"], eager["timed_max_ns"]) == (2, 20e6, 20e6)
    assert eager["kernel_share"] == pytest.approx(18.4414205e6 / 20e6)
    assert {compiled[key] for key in ("n", "timed_ns", "kernel_ns", "span_share")} == {None}
    assert "a_backward_timed" not in tables
    assert "No run without a profiler has the settings and the GPU of this forward." in out


def test_our_own_measurements_fit_our_own_report(capsys):
    results = DATA.parents[1] / "reports" / "h200" / "measurements" / "measurements.jsonl"
    status, out, _ = called(capsys, OURS, "--questions", "a", "--timed", results)
    assert status == 0
    assert "(a) backward against its wall time without a profiler" in out
