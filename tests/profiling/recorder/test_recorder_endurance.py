"""A recording goes on through compilation, interrupts and long work without steps; a kill leaves what it wrote."""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from nvtx_kernels.analysis.doctor.checks import examine
from nvtx_kernels.analysis.errors import NoGpuWork
from nvtx_kernels.profiling import annotate, recorder
from nvtx_kernels.profiling.annotate import places
from nvtx_kernels.profiling.record import main as record_command
from nvtx_kernels.profiling.recorder import open_blocks
from nvtx_kernels.profiling.recorder.trace_file import TraceFile
from torch import nn

import nvtx_kernels as nk
from tests.conftest import VARIABLE
from tests.profiling.making import forked
from tests.profiling.making.recordings import (
    kernels,
    range_names,
    recorded_before,
    said_of,
    train,
    train_on,
)

INTERRUPTS = int(os.environ.get("NVTX_KERNELS_INTERRUPTS", "15"))
COMPILING = """
import sys, time, torch
from torch import nn

def slow(graph, _):
    if not slow.has_waited:
        slow.has_waited = True
        time.sleep(0.6)  # longer than until memory is looked at
    return graph.forward

slow.has_waited = False

def main(steps=5):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    optimizer, compiled = torch.optim.SGD(model.parameters()), torch.compile(model, backend=slow)
    yield model, optimizer
    for _ in range(steps):
        compiled(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    list(main())
"""
#: A recording that is there before.
OLD = (Path(__file__).parents[2] / "data" / "h200_recorder.sqlite").read_bytes()


def recorded_by_command(program, path):
    assert record_command(["-o", str(path), str(program)]) == 0


def started(program):
    """Return the generator of a program that is being run, its model and its optimizer."""
    space = {"__name__": "program"}
    exec(compile(program.read_text(), program, "exec"), space)
    running = space["main"]()
    return running, *next(running)


def recorded_by_block(program, path):
    running, model, _ = started(program)
    with annotate.annotate_modules(model), nk.record(path):
        list(running)


def recorded_by_profile(program, path):
    running, model, optimizer = started(program)
    with nk.profile(model, optimizer, path) as p:
        list(running)
    assert (p.outcome.warmed, p.outcome.measured, p._capture.recording.ended_early) == (1, 4, "")
    p.show()


@pytest.mark.parametrize("way", [recorded_by_command, recorded_by_block, recorded_by_profile])
def test_a_long_compilation_ends_no_recording(tmp_path, path, way, capsys, monkeypatch):
    monkeypatch.setattr(recorder, "REMIND_S", 0.5)
    program = tmp_path / "program.py"
    program.write_text(COMPILING)
    way(program, path)
    assert said_of(path)["ended_early"] == ""
    of_products = [name for name, _ in kernels(path) if name == "aten::addmm"]
    assert len(of_products) == 12  # of two layers, compiled and in five steps
    assert "ended early" not in "".join(capsys.readouterr())


class Asking(torch.autograd.Function):
    """Asks whether something is open inside an operator of Python's."""

    @staticmethod
    def forward(ctx, values):
        answers.append(open_blocks.is_open())
        return values * 2

    @staticmethod
    def backward(ctx, gradient):
        answers.append(open_blocks.is_open())
        return gradient * 2


answers: list[bool] = []


def ask(*_):
    answers.append(open_blocks.is_open())


def test_an_operator_that_calls_python_is_open_meanwhile_and_a_module_is_not():
    answers.clear()
    ask()
    values = torch.ones(3, requires_grad=True)
    Asking.apply(values).sum().backward()
    library = torch.library.Library("nvtx_kernels_tests", "DEF")
    library.define("ask(Tensor values) -> Tensor")
    library.impl("ask", lambda values: (ask(), values.clone())[1], "CPU")
    torch.ops.nvtx_kernels_tests.ask(torch.ones(3))
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(ask)
    layer(torch.ones(3))
    assert answers == [False, True, True, True, False]


@pytest.fixture
def looking(monkeypatch):
    """Have memory looked at all the time."""
    monkeypatch.setattr(recorder, "REMIND_S", 0.02)


def work_until(is_done):
    began = time.monotonic()
    while not is_done() and time.monotonic() - began < 60:
        torch.ones(3) + 1
        time.sleep(0.001)


def test_a_recording_without_steps_ends_early_at_the_limit_and_says_so(path, monkeypatch, looking, capsys):
    monkeypatch.setenv(recorder.LIMIT_VARIABLE, str(-(1 << 40)))
    threads = threading.enumerate()
    with recorder.record(path, device="cpu") as recording:
        work_until(lambda: recording.ended_early)
        assert threading.enumerate() == threads
        work_until(lambda: places.kept is None)
        assert places.kept is None
    assert recording.works > 0
    assert "no step had ended" in said_of(path)["ended_early"]
    assert "The recording ended early: no step had ended" in capsys.readouterr().err


def test_a_recording_goes_on_where_it_is_the_program_that_grows(path, monkeypatch, looking):
    monkeypatch.setenv(recorder.LIMIT_VARIABLE, str(16 << 20))
    kept = []
    with recorder.record(path, device="cpu") as recording:
        kept.append(torch.ones(32 << 20))
        work_until(lambda: recording.works)
        torch.ones(3).prod()
    assert recording.ended_early == ""
    assert "aten::prod" in {name for name, _ in kernels(path)}


KILLED = """
import os, sys, torch
from nvtx_kernels.profiling import recorder
from tests.profiling.making.recordings import train
os.environ[recorder.LIMIT_VARIABLE] = sys.argv[2]
with recorder.record(sys.argv[1], device="cpu", steps=None):
    train(steps=4)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_kill_in_the_measured_steps_loses_them_and_leaves_the_reason(path):
    path.write_bytes(OLD)
    assert forked.run("-c", KILLED, path, 1 << 40).returncode == -signal.SIGKILL
    assert path.read_bytes() == OLD
    (left,) = path.parent.glob("report.sqlite.unfinished-*")
    with pytest.raises(NoGpuWork, match="the program was killed"):
        nk.rank(left)


@pytest.mark.slow
def test_a_killed_run_leaves_a_report_of_what_was_saved(path):
    path.write_bytes(OLD)
    assert forked.run("-c", KILLED, path, -(1 << 40)).returncode == -signal.SIGKILL
    assert path.read_bytes() == OLD
    (left,) = (name for name in path.parent.glob("report.sqlite.unfinished-*") if name.is_file())
    ranking = nk.rank(left, per_step=True)
    assert ranking.report.steps == 3
    assert any("the program was killed" in note for note in ranking.report.notes)
    assert any("the program was killed" in finding.what for finding in examine(left))
    with recorder.record(path, device="cpu"):
        train(steps=1)
    assert path.read_bytes() == OLD  # which has more
    assert nk.rank(path.with_name("report-2.sqlite"), per_step=False).report.kernels


KILLED_WHILE_ADDING = """
import os, sqlite3, sys
from pathlib import Path
from nvtx_kernels.profiling.recorder.written import Written

class Killed(sqlite3.Connection):
    def __exit__(self, *error):
        os.kill(os.getpid(), 9)

connect, sqlite3.connect = sqlite3.connect, lambda *words, **how: connect(*words, **how, factory=Killed)
Written(Path(sys.argv[1])).add_mark("a mark")
"""


@pytest.mark.slow
def test_a_kill_while_a_mark_is_added_leaves_the_report_as_it_was(path):
    with recorder.record(path, device="cpu"):
        train(steps=2)
    before = path.read_bytes()
    assert forked.run("-c", KILLED_WHILE_ADDING, path).returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert nk.rank(path).report.kernels
    with recorder.record(path, device="cpu"):
        train(steps=2)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_what_a_recording_lacks_is_said_in_answers_and_by_the_doctor(path):
    def program():
        with recorder.record(path, device="cpu") as recording:
            train(steps=2)
            recording._end_early("the disk is full")
            train(steps=1)
            return 1 // 0

    with pytest.raises(ZeroDivisionError):
        program()
    expected = (
        "The recording ended early: the disk is full. What came later is missing.",
        "4 later ranges were dropped, and their work is missing.",
        "Interrupted by ZeroDivisionError; the last step may be incomplete.",
    )
    assert set(expected) <= set(nk.rank(path).report.notes)
    assert {one.rstrip(".") for one in expected} <= {finding.what for finding in examine(path)}


def linear_and_sgd():
    model = nn.Linear(8, 8)
    return model, torch.optim.SGD(model.parameters())


def test_a_profile_has_its_ranking_and_its_page(path):
    model, optimizer = linear_and_sgd()
    with nk.profile(model, optimizer, path) as p:
        train_on(torch.ones(4, 8), model, optimizer)
    assert p.rank(per_step=True).report.steps == 2
    page = p.page()
    assert repr(page) == f"{path.with_suffix('.html')}: open it in a browser"
    assert path.with_suffix(".html").read_text().startswith("<!")
    assert page._repr_html_().startswith('<iframe srcdoc="&lt;!')


def test_a_profile_shows_what_there_is(path, capsys):
    model, optimizer = linear_and_sgd()
    with nk.profile(model, optimizer, path) as p:
        p._capture.recording._end_early("the disk is full")
        train_on(torch.ones(4, 8), model, optimizer)
    p.show()
    path.unlink()
    nk.profile(model, optimizer, path).show()
    said = capsys.readouterr()
    assert "The recording ended early: the disk is full" in said.err
    assert "report.sqlite" in said.out
    assert "--per-step" not in said.err


WAYS = {"nk.profile": lambda path: nk.profile(None, None, path), "nk.record": nk.record}


def signalled(monkeypatch, numbers):
    """Let signals come while a report is written, just before its first rows."""
    waiting, add = list(numbers), TraceFile.append

    def interrupted_add(self, table, columns):
        for number in waiting:
            signal.raise_signal(number)
        waiting.clear()
        return add(self, table, columns)

    monkeypatch.setattr(TraceFile, "append", interrupted_add)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ctrl_c_waits_until_the_report_is_in_place(path, monkeypatch, capfd, way):
    signalled(monkeypatch, [signal.SIGINT])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), way(path):
        train(steps=2)
    assert range_names(path).count("step") >= 2
    said = capfd.readouterr().err
    assert f"{path} is being written; Ctrl-C again abandons it" in said
    assert f"{path}, " in said
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_second_ctrl_c_abandons_the_report_and_says_so(path, monkeypatch, capfd, way):
    old = recorded_before(path)
    signalled(monkeypatch, [signal.SIGINT] * 2)
    with pytest.raises(KeyboardInterrupt), way(path):
        train(steps=2)
    assert [(file.name, file.read_bytes()) for file in path.parent.iterdir()] == [(path.name, old)]
    said = capfd.readouterr().err
    assert f"abandoned: {path} was not written" in said
    assert "Next:" not in said
    with way(path):
        train(steps=2)
    assert range_names(path).count("step") >= 2


def state_of(model):
    hooks = [len(value) for part in model.modules() for name, value in vars(part).items() if "hooks" in name]
    parts = [(type(part), sorted(vars(part))) for part in model.modules()]
    calls = nn.Module.__call__, torch.autograd.graph._engine_run_backward, torch.optim.Optimizer.profile_hook_step
    return hooks, parts, calls, signal.getsignal(signal.SIGINT)


def is_readable(path):
    """Return whether a report can be ranked, or says that nothing ran."""
    try:
        return bool(nk.rank(path, include_warm_up=True).report)
    except NoGpuWork as nothing:
        return "is an empty recording" in str(nothing)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["record", "profile"])
def test_ctrl_c_at_any_call_of_entering_and_leaving_takes_the_recording_off(path, way):
    program = f"from {__name__} import interrupted_everywhere; interrupted_everywhere({str(path)!r}, {way!r})"
    forked.run("-c", program, check=True)


def interrupted_everywhere(path, way):
    """One signal in each run: Python looks for them where a function begins, and where one of C's has ended.

    Every third of these places is interrupted; which, the seed says.
    """
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train_on(torch.ones(4, 8), model, optimizer)
    before, interrupted_at, calls = state_of(model), 1 + int(os.environ[VARIABLE]) % 3, 3
    while interrupted_at <= calls:
        calls, is_inside = 0, False

        def interrupt(_frame, event, _argument):
            nonlocal calls
            is_held = getattr(signal.getsignal(signal.SIGINT), "__name__", "") == "_wait"
            if event in ("call", "c_return") and not is_inside and not is_held:  # noqa: B023
                calls += 1
                if calls == interrupted_at:  # noqa: B023
                    signal.raise_signal(signal.SIGINT)

        block = nk.record(path) if way == "record" else nk.profile(model, optimizer, path)
        sys.setprofile(interrupt)
        try:
            with block:
                is_inside = True
                train_on(torch.ones(4, 8), model, optimizer)
                is_inside = False
        except KeyboardInterrupt:
            calls = max(calls, interrupted_at + 3)
        finally:
            sys.setprofile(None)
        assert state_of(model) == before, f"interrupt at call {interrupted_at}"
        interrupted_at += 3
    assert interrupted_at > 50


@pytest.mark.slow
def test_a_recording_works_after_interrupts_at_random_moments(path, monkeypatch):
    in_finalizers = []  # from where Python raises nothing
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: in_finalizers.append(ignored.exc_type))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer, chance = torch.optim.SGD(model.parameters(), lr=0.01), random.Random(int(os.environ[VARIABLE]))
    train_on(torch.ones(4, 8), model, optimizer)
    before, durations, interrupts = state_of(model), [], 0
    main_thread = threading.main_thread().ident
    for number in range(INTERRUPTS + 3):
        moment = chance.uniform(0, max(durations[1:])) if number >= 3 else 3600
        timer = threading.Timer(moment, signal.pthread_kill, (main_thread, signal.SIGINT))
        began = time.monotonic()
        try:
            timer.start()
            with nk.profile(model, optimizer, path):
                train_on(torch.ones(4, 8), model, optimizer)
            timer.cancel() if number < 3 else timer.join()
        except KeyboardInterrupt:
            interrupts += 1
        durations = [*durations, time.monotonic() - began][:3]
        assert state_of(model) == before, f"interrupt {number} after {moment:.4f} s"
        assert is_readable(path), f"interrupt {number} after {moment:.4f} s"
        path.unlink()
        with nk.profile(model, optimizer, path) as p:
            train_on(torch.ones(4, 8), model, optimizer)
        assert (p.outcome.warmed, p.outcome.measured) == (1, 2)
        assert [name for name, _ in kernels(path)].count("aten::addmm") == 6
    assert interrupts + in_finalizers.count(KeyboardInterrupt) == INTERRUPTS
    beside = {*path.parent.glob("report-*.sqlite")}  # interrupted recordings, which have less
    assert {*path.parent.iterdir()} - beside == {path}
