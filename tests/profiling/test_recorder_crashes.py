import resource
import signal
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch.profiler import record_function

from profiling import annotate, recorder
from profiling.trace_file import TraceFileError
from tests.profiling.recordings import RANGES, REPOSITORY, kernels, launched_in, metadata, range_names, rows, train

# One line says that recording has begun; then it waits to be interrupted, terminated or killed.
WAITING = """
import sys, time, torch
from profiling import annotate, recorder
with recorder.record(sys.argv[1], device="cpu"), annotate.range("measure"), annotate.range("step"):
    torch.ones(3, 3) @ torch.ones(3, 3)
    print("recording", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.sqlite"


def test_a_program_that_raises_leaves_what_ran_with_balanced_ranges(path):
    with (
        pytest.raises(ZeroDivisionError),
        recorder.record(path, device="cpu"),
        annotate.range("measure"),
        annotate.range("step"),
    ):
        torch.ones(3) + 1 // 0
    assert range_names(path) == ["measure", "step"]
    assert metadata(path)["NVTX_KERNELS_INTERRUPTED_BY"] == "ZeroDivisionError"


def test_ranges_left_open_are_closed_at_the_end(path):
    with recorder.record(path, device="cpu"):
        annotate.range("never closed").__enter__()
        annotate.range("nor this").__enter__()
        torch.ones(3) + 1
    assert range_names(path) == ["never closed", "nor this"]
    assert rows(path, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59 AND end IS NULL") == [(0,)]


@pytest.mark.parametrize(
    ("number", "statuses", "interrupted_by"),
    # The interpreter ends on an unhandled KeyboardInterrupt by raising SIGINT, or with 1 where it cannot.
    [
        (signal.SIGINT, (-signal.SIGINT, 1), "KeyboardInterrupt"),
        (signal.SIGTERM, (128 + signal.SIGTERM,), "SystemExit"),
    ],
)
def test_a_signal_leaves_a_readable_report_of_what_ran(path, number, statuses, interrupted_by):
    command = [sys.executable, "-c", WAITING, str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"recording\n"
        program.send_signal(number)
        assert program.wait(timeout=30) in statuses
    assert range_names(path) == ["measure", "step"]
    assert len(launched_in(path, "step")) > 0
    assert metadata(path)["NVTX_KERNELS_INTERRUPTED_BY"] == interrupted_by


def test_a_kill_leaves_the_report_that_was_there(path):
    path.write_text("old")
    command = [sys.executable, "-c", WAITING, str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"recording\n"
        program.kill()
    assert path.read_text() == "old"


def test_writing_between_steps_changes_nothing_but_the_overhead(path, monkeypatch):
    monkeypatch.setattr(recorder, "FLUSH_AFTER_NS", 0)
    with recorder.record(path, device="cpu") as recording:
        train(steps=4)
    pauses = rows(path, "SELECT start, end FROM PROFILER_OVERHEAD")
    steps = [(start, end) for name, start, end in rows(path, RANGES) if name == "step"]
    assert len(pauses) >= 4
    assert not any(a < end and start < b for a, b in pauses for start, end in steps)
    per_step = Counter(name for name, _ in kernels(path))
    assert all(count % 4 == 0 for name, count in per_step.items() if name in ("aten::addmm", "aten::mm"))
    assert recording.works == len(kernels(path))


def test_recording_ends_rather_than_restart_under_an_open_block(path, monkeypatch):
    monkeypatch.setattr(recorder, "FLUSH_AFTER_NS", 0)
    with recorder.record(path, device="cpu") as recording, record_function("an epoch"):
        train(steps=3)
    assert (recording.ended_early, recording.dropped_ranges) == (recorder.OPEN_BLOCK, 6)
    found = metadata(path)
    assert found["NVTX_KERNELS_ENDED_EARLY"] == recorder.OPEN_BLOCK
    assert found["NVTX_KERNELS_RANGES_DROPPED"] == "6"
    assert range_names(path) == ["measure", "step", "forward", "backward"]


def test_a_disk_that_fills_while_recording_is_said_when_the_program_is_done(path, monkeypatch):
    monkeypatch.setattr(recorder, "FLUSH_AFTER_NS", 0)
    steps_run = []

    def program():
        with recorder.record(path, device="cpu"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
            steps_run.extend(train(steps=1) for _ in range(50))

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(TraceFileError, match="cannot write"):
            program()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert len(steps_run) == 50
    assert list(path.parent.iterdir()) == []


def test_a_second_recording_inside_the_first_is_refused_in_a_sentence(path, tmp_path):
    with recorder.record(path, device="cpu"), annotate.range("step"):
        with pytest.raises(TraceFileError, match=r"cannot record to .*already running"):
            recorder.record(tmp_path / "second.sqlite", device="cpu").__enter__()
        torch.ones(3) + 1
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert "aten::add" in launched_in(path, "step")
