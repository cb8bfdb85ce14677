"""What Kineto saves of a session: names that its file cannot hold, files that fail, many sessions, and bounds."""

import gc
import json
import os
import stat
import subprocess
import sys
import time
import weakref
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.profiling import recorder
from nvtx_kernels.profiling.recorder import beside, open_blocks
from nvtx_kernels.profiling.recorder import session as sessions
from nvtx_kernels.profiling.recorder.session import Session
from nvtx_kernels.profiling.recorder.trace_file import TraceFileError
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import record_function

import nvtx_kernels as nk
from tests.profiling.making import forked
from tests.profiling.making.recordings import (
    block_names,
    kernels,
    marks_of_times,
    python,
    range_names,
    rows,
    said_of,
    train,
    train_on,
)

DETACHING = "TEARDOWN_CUPTI"
NAMES = ["é", "日本", "a\ttab", 'say "hi"', "back\\slash", "new\nline", "nvtx-kernels name 0", "plain, {}[]:'", ""]


@pytest.fixture
def saving(monkeypatch):
    """Let what is recorded be written at the end of every step."""
    monkeypatch.setenv(recorder.LIMIT_VARIABLE, str(-(1 << 40)))


def net_and_sgd():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_a_block_has_its_name_whatever_kineto_can_write(path, name):
    with recorder.record(path, device="cpu"), record_function(name) as block:
        torch.ones(3).sum()
    assert block_names(path) == [name]
    assert block.name == name
    assert len(kernels(path)) > 0


def test_a_profiler_of_the_program_sees_its_own_names(path):
    with (
        recorder.record(path, device="cpu"),
        torch.profiler.profile(acc_events=True) as inner,
        record_function("é"),
    ):
        torch.ones(3).sum()
    assert "é" in {event.name for event in inner.events()}


def test_a_report_may_have_a_quote_in_its_path(tmp_path):
    folder = tmp_path / 'say "hi"'
    folder.mkdir()
    with recorder.record(folder / "r.sqlite", device="cpu"):
        train(steps=1)
    assert range_names(folder / "r.sqlite").count("step") == 1
    assert [file.name for file in folder.iterdir()] == ["r.sqlite"]


def test_a_quote_that_nobody_could_replace_is_escaped_when_the_file_is_read(path):
    with recorder.record(path, device="cpu"):
        block = torch.ops.profiler._record_function_enter_new('of "C++"')
        torch.ones(3).sum()
        torch.ops.profiler._record_function_exit._RecordFunction(block)
    assert block_names(path) == ['of "C++"']


def test_a_folder_that_is_not_there_is_a_failed_save(tmp_path):
    session = Session(on_gpu=False)
    with pytest.raises(OSError, match="could not save its events"):
        session.stop(tmp_path / "none" / "saved.json")


def test_a_session_leaves_no_cycle_that_keeps_its_events(tmp_path):
    session = Session(on_gpu=False)
    torch.ones(3).sum()
    kept = weakref.ref(session._profile.profiler)
    gc.disable()
    try:
        session.stop(tmp_path / "saved.json")
        assert kept() is None
    finally:
        gc.enable()


def test_pytorchs_file_is_kept_where_it_cannot_be_converted(path, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("no reader reads this")

    monkeypatch.setattr(nk, "session_reader", lambda: refuse)
    refused = pytest.raises(TraceFileError, match=r"no reader reads this. What PyTorch recorded is in ")
    with refused, recorder.record(path, device="cpu"):
        train(steps=1)
    (trace,) = path.parent.glob("*-sessions/*.pt.trace.json")
    assert stat.S_IMODE(trace.parent.stat().st_mode) == 0o700
    assert nk.rank(trace).totals["kernel_ns"] > 0
    (left,) = (file for file in path.parent.iterdir() if file.is_file())
    assert "could not be read" in said_of(left)["ended_early"]


def test_a_file_that_breaks_off_is_no_report(path, monkeypatch):
    class Full:
        def save(self, to):
            Path(to).write_text('{"traceEvents": [')

    save = sessions._save
    monkeypatch.setattr(sessions, "_save", lambda _, to: save(Full(), to))
    with pytest.raises(TraceFileError, match="is the disk full"), recorder.record(path, device="cpu"):
        train(steps=1)
    assert not path.exists()


def test_numbers_of_two_sessions_link_within_a_step(path, saving):
    with recorder.record(path, device="cpu", operators=True, steps=None):
        train(steps=3)
    numbers = """SELECT seq FROM ranges JOIN names ON names.row = name_id
                 WHERE names.value = ? AND seq >= 0 ORDER BY start_ns"""
    made = rows(path, numbers, "aten::addmm")
    assert made == rows(path, numbers, "AddmmBackward0")
    assert len({*made}) == 3


LOADING = """
import os, sys, threading, torch
from nvtx_kernels.profiling import annotate, recorder
os.environ[recorder.LIMIT_VARIABLE] = str(-(1 << 40))
over = threading.Event()
with recorder.record(sys.argv[1], device="cpu", steps=None):
    waiting = threading.Thread(target=over.wait, daemon=True)  # as a data loader's, all the time
    waiting.start()
    for _ in range(3):
        with annotate.range("step"):
            worker = threading.Thread(target=lambda: torch.ones(3).prod())
            worker.start()
            worker.join()
    over.set()
"""


def test_operators_of_other_threads_stay_where_a_loader_waits(path):
    assert forked.run("-c", LOADING, path).returncode == 0
    assert [name for name, _ in kernels(path)].count("aten::prod") == 3
    assert len(rows(path, "SELECT 1 FROM pauses")) == 3


def seen_while(path, number, **options):
    """Train with nk.profile, and return for each step whether anything listened and the report was there."""
    model, optimizer = net_and_sgd()
    states = []
    with nk.profile(model, optimizer, path, **options) as p:
        for _ in range(number):
            train_on(torch.ones(4, 8), model, optimizer, steps=1)
            states.append((torch.autograd.profiler._is_profiler_enabled, path.exists()))
    return p, states


def test_the_program_goes_on_without_a_profiler_after_the_last_measured_step(path, capsys):
    p, states = seen_while(path, 16)
    assert states == [(True, False)] * 13 + [(False, True)] * 3
    assert (p.outcome.warmed, p.outcome.measured) == (3, 10)
    assert nk.rank(path).report.steps == 10
    said = capsys.readouterr().err.splitlines()
    assert (
        said[0] == f"{path}: 10 steps after 3 of warm-up (steps of SGD). The program goes on without a profiler."
    )


@pytest.mark.parametrize(("steps", "warmed"), [(2, 1), (5, 1), (6, 3), (9, 3)])
def test_of_fewer_than_six_steps_one_is_warm_up(path, steps, warmed):
    p, _ = seen_while(path, steps)
    assert (p.outcome.warmed, p.outcome.measured) == (warmed, steps - warmed)
    assert nk.rank(path).report.steps == steps - warmed
    assert nk.read(path).provenance.run["optimizer"] == "SGD"


def test_the_last_measured_step_has_its_update(path):
    seen_while(path, 16, warmup=1, steps=2)
    assert range_names(path).count("optimizer") == 3
    assert [text for text in block_names(path) if text.startswith("Optimizer.step")] == []


def test_all_steps_are_recorded_where_that_is_asked_for(path):
    p, states = seen_while(path, 16, steps=None)
    assert states == [(True, False)] * 16
    assert p.outcome.measured == nk.rank(path).report.steps == 13


def test_python_looks_through_all_objects_before_the_measured_steps_and_not_in_them(path):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(100)))
    optimizer, full = torch.optim.SGD(model.parameters(), lr=0.1), []

    def note(phase, info):
        full.append(phase) if (phase, info["generation"]) == ("start", 2) else None

    gc.disable()
    held = [[] for _ in range(1_000_000)]  # so that a full collection is due
    thresholds = gc.get_threshold()
    gc.set_threshold(1_000_000, 1, 1)
    gc.enable()
    try:
        with nk.profile(model, optimizer, path, warmup=1, steps=8):
            gc.set_threshold(700, 1, 1)
            gc.callbacks.append(note)
            train_on(torch.ones(4, 4), model, optimizer, steps=9)
            gc.callbacks.remove(note)
    finally:
        gc.set_threshold(*thresholds)
    assert (full, len(held)) == ([], 1_000_000)


def test_record_ends_after_its_steps_without_annotation(path, capsys):
    model, optimizer = net_and_sgd()
    with nk.record(path, warmup=1, steps=2):
        train_on(torch.ones(4, 8), model, optimizer, steps=6)
        assert path.exists()
    assert nk.rank(path).report.steps == 2
    assert "The program goes on without a profiler." in capsys.readouterr().err


def test_record_counts_the_programs_own_steps(path):
    with nk.record(path, warmup=1, steps=2):
        train(steps=6)
    assert range_names(path).count("step") == 3
    assert nk.rank(path).report.steps == 2


def test_where_no_module_is_called_again_the_report_is_written_soon(path, monkeypatch):
    monkeypatch.setattr(recorder, "SOON_NS", 0)
    model, optimizer = net_and_sgd()
    with nk.profile(model, optimizer, path, warmup=0, steps=1):
        train_on(torch.ones(4, 8), model, optimizer, steps=1)
        for _ in range(100_000):
            if path.exists():
                break
            torch.ones(300).sum()
        assert path.exists()


def test_a_report_waits_for_the_end_of_a_capture_however_long_it_lasts(path, monkeypatch):
    gpu = SimpleNamespace(is_captured=True)
    for module in (recorder, open_blocks):
        monkeypatch.setattr(module, "is_capturing", lambda: gpu.is_captured)
    monkeypatch.setattr(recorder, "LONGEST_WAIT_NS", 0)
    model, optimizer = net_and_sgd()
    states = []
    with nk.record(path, warmup=1, steps=2):
        for gpu.is_captured in (True, False):
            train_on(torch.ones(4, 8), model, optimizer, steps=4)
            states.append(path.exists())
    assert states == [False, True]


def graph_of(run):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


@pytest.mark.gpu
@pytest.mark.parametrize("record", [nk.record, nk.profile])
def test_a_program_may_capture_a_graph_when_its_report_is_due(path, record):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
    optimizer, given = torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(16, 64, device="cuda")

    def run():
        optimizer.zero_grad(set_to_none=False)
        model(given).sum().backward()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = graph_of(run)
    block = nk.record(path, warmup=1, steps=3) if record is nk.record else nk.profile(model, optimizer, path)
    with block:
        for _ in range(14):
            graph.replay()
            optimizer.step()
        graph = graph_of(run)  # the first call of a module after the last measured step
        for _ in range(30):
            graph.replay()
            optimizer.step()
    torch.cuda.synchronize()
    assert nk.rank(path).report.totals.kernel_ns > 0
    for _ in range(2):
        with torch.profiler.profile() as profiler:
            graph.replay()
            torch.cuda.synchronize()
        assert [event for event in profiler.events() if event.device_type == DeviceType.CUDA]


@pytest.mark.gpu
def test_a_recording_right_after_one_that_was_written_while_nothing_ran_sees_the_gpu(path, monkeypatch):
    monkeypatch.setattr(recorder, "SOON_NS", 0)
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for number in range(3):
        report = path.with_name(f"{number}.sqlite")
        with nk.record(report, warmup=1, steps=3):
            for _ in range(4):
                (weight @ weight).sum().backward()
                optimizer.step()
            for _ in range(1000):  # without a call of a module, or of CUDA
                if report.exists():
                    break
                time.sleep(0.01)
        assert nk.rank(report).report.totals.kernel_ns > 0


@pytest.mark.parametrize(
    ("cuda", "before", "during"),
    [("13.0", None, "1"), ("12.6", None, "1"), ("12.4", None, None), (None, None, None), ("13.0", "0", "0")],
)
def test_profilers_are_detached_for_the_rest_of_the_block(path, monkeypatch, cuda, before, during):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(beside, "AGREEMENT", 1)  # however busy the machine is
    monkeypatch.delenv(DETACHING, raising=False)
    if before is not None:
        monkeypatch.setenv(DETACHING, before)
    model, optimizer = net_and_sgd()
    seen = []
    with nk.profile(model, optimizer, path, warmup=1, steps=2):
        for _ in range(20):
            seen.append((path.exists(), os.environ.get(DETACHING)))
            train_on(torch.ones(4, 8), model, optimizer, steps=1)
    assert set(seen) == {(False, before), (True, during)}
    assert os.environ.get(DETACHING) == before
    assert marks_of_times(path)["unrecorded"]["is_detached"] is (during == "1")


def test_what_decides_about_detaching_inside_the_block_stays(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv(DETACHING, raising=False)
    with sessions.detaching():
        monkeypatch.setenv(DETACHING, "0")  # as torch.compile does for CUDA graphs in some releases
    assert os.environ[DETACHING] == "0"


FORKING = """
import atexit, os, sys, time, torch, warnings
warnings.simplefilter("ignore")
import nvtx_kernels as nk
atexit.register(os.write, 1, b"all of Python's part is done\\n")  # of both; registered first, so that it runs last
with nk.record(sys.argv[1], quiet=True):
    torch.ones(3) + 1
    child = os.fork()
    if child == 0:
        sys.exit(7)
    until = time.monotonic() + 60
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < until:
        if open(f"/proc/{child}/wchan").read().startswith("futex"):  # Kineto's thread is not in the child
            os.kill(child, 9)
        time.sleep(0.2)
"""


@pytest.mark.slow
def test_our_part_of_a_forked_childs_exit_ends(path):
    """It can hang in libkineto's destructors, after all that is Python's; PyTorch's profiler alone aborts it."""
    done = python("-c", FORKING, path, timeout=90)
    assert (done.returncode, done.stdout.count("all of Python's part is done")) == (0, 2)
    assert "aten::add" in {name for name, _ in kernels(path)}


def test_times_begin_at_the_base_wherever_the_file_has_it(tmp_path):
    """PyTorch 2.6 writes it after the events, 2.13 before them."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": "1.000", "dur": "1.000", "pid": 1, "tid": 1}
    file = tmp_path / "saved.json"
    file.write_text(json.dumps({"traceEvents": [event] * 20_000, "baseTimeNanoseconds": 1 << 60}))
    assert file.stat().st_size > 1 << 20
    assert set(nk.session_reader()(file, on_gpu=True).blocks.start_ns.tolist()) == {(1 << 60) + 1000}


def test_launches_without_kernels_at_the_end_are_said(tmp_path):
    """As Kineto leaves them once its buffers of GPU events are full."""

    def event(kind, name, at, number, **where):
        return {
            "ph": "X",
            "cat": kind,
            "name": name,
            "ts": f"{at}.000",
            "dur": "1.000",
            "args": {"correlation": number},
            **where,
        }

    calls = [event("cuda_runtime", "cudaLaunchKernel", at, at, pid=1, tid=1) for at in range(1, 200)]
    work = [event("kernel", "k", at, at, pid=0, tid=7) for at in range(1, 100)]
    file = tmp_path / "saved.json"
    file.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [*calls, *work]}))
    assert nk.session_reader()(file, on_gpu=True).lost_gpu_ns is not None
    file.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [*calls[:99], *work]}))
    assert nk.session_reader()(file, on_gpu=True).lost_gpu_ns is None


@pytest.mark.gpu
def test_a_program_that_works_on_the_cpu_beside_a_gpu_is_recorded(path):
    program = f"""
        import torch
        import nvtx_kernels as nk
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with nk.record({str(path)!r}, quiet=True):
            for _ in range(4):
                model(torch.ones(4, 8)).sum().backward()
                optimizer.step()
    """
    subprocess.run([sys.executable, "-c", dedent(program)], check=True)
    trace = read(path)
    assert trace.provenance.unit_of_work == "CPU"
    assert "aten::addmm" in {trace.names[name] for name in trace.work.name_id.tolist()}
