"""What a step takes without its recording: by the program's own clock, and when no step was timed."""

import json
import subprocess
import sys
import time
from collections import Counter
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
import torch
from nvtx_kernels.analysis.measures.recording import OTHER_WORK
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.recorder import beside
from nvtx_kernels.profiling.recorder.beside import Step
from nvtx_kernels.profiling.recorder.written import Written
from nvtx_kernels.profiling.tool import NSYS_SESSION
from nvtx_kernels.profiling.training import capture
from torch import nn

import nvtx_kernels as nk
from tests.profiling.making.hearing import Heard
from tests.profiling.making.recordings import marks_of_times, told_of_times

MS = 1_000_000


class Slow(nn.Module):
    """Takes 8 ms of forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        time.sleep(0.008)
        return self.layer(x)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.sqlite"


def test_steps_after_the_recording_are_timed_by_the_clock_of_the_program(path):
    model = Slow()
    optimizer, ends_ns = torch.optim.SGD(model.parameters()), []
    with nk.profile(model, optimizer, path, warmup=1, steps=3):
        for _ in range(40):
            time.sleep(0.004)  # the loader
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            ends_ns.append(time.perf_counter_ns())
            optimizer.zero_grad()
    timed = marks_of_times(path)["unrecorded"]
    own_ns = [later - earlier for earlier, later in pairwise(ends_ns)]
    assert len(timed["step_ns"]) == beside.TIMED
    step_ns, span_ns = median(timed["step_ns"]), timed["span_ns"]
    assert min(abs(step_ns - own) for own in own_ns) < 2 * MS
    assert median(span_ns["forward"]) > 0.6 * step_ns
    assert median(span_ns["other"]) > 0.3 * step_ns
    for number, each_ns in enumerate(timed["step_ns"]):
        assert sum(spans[number] for spans in span_ns.values()) == pytest.approx(each_ns, abs=10)
    assert (timed["clock"], timed["where"], timed["shape"], timed["sizes"]) == ("cpu", "after", "fbA", 8)
    assert timed["dropped"]["unsettled"] >= beside.LEAST_LEFT
    assert marks_of_times(path)["recorded"]["shapes"] == ["fbA"] * 3
    told = nk.rank(path).report.recording
    assert (told.steps, told.unrecorded_step_ns) == (5, sorted(timed["step_ns"])[2])


def accumulated(model, optimizers):
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    optimizers[0].step()


def with_a_teacher(model, optimizers):
    with torch.no_grad():
        target = model(torch.ones(3, 4))
    (model(torch.ones(3, 4)) - target).sum().backward()
    optimizers[0].step()


def two_optimizers(model, optimizers):
    for optimizer in optimizers:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def gradients_of_a_loss(model, optimizers):
    loss = model(torch.ones(2, 4)).sum()
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
    ):
        parameter.grad = gradient
    optimizers[0].step()


@pytest.mark.parametrize(
    ("step", "shape", "sizes"),
    [(accumulated, "fbfbA", 16), (with_a_teacher, "nfbA", 24), (two_optimizers, "fbAfbB", 16),
     (gradients_of_a_loss, "fbA", 8)],
)  # fmt: skip
def test_timed_and_recorded_steps_have_one_shape(path, step, shape, sizes):
    model = Slow()
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for _ in range(2)]
    used = optimizers[: 1 + (step is two_optimizers)]
    with nk.profile(model, used, path, warmup=1, steps=2):
        for _ in range(30):
            step(model, optimizers)
    found = marks_of_times(path)
    assert found["recorded"] == {"shapes": [shape] * 2, "sizes": [sizes] * 2, "allocations": []}
    assert (found["unrecorded"]["shape"], found["unrecorded"]["sizes"]) == (shape, sizes)


def test_calls_of_step_end_timed_steps_too(path):
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters())
    with nk.profile(model, optimizer, path, warmup=1, steps=2) as profile:
        for _ in range(30):
            two_optimizers(model, [optimizer, optimizer])
            profile.step()
    assert marks_of_times(path)["unrecorded"]["shape"] == "fbAfbA"
    assert median(marks_of_times(path)["unrecorded"]["step_ns"]) > 16 * MS


@pytest.mark.parametrize("steps", [3, 6, 8])
def test_a_program_that_ends_sooner_has_no_mark(path, steps):
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters())
    with nk.profile(model, optimizer, path, warmup=1, steps=3):
        for _ in range(steps):
            accumulated(model, [optimizer])
    assert "unrecorded" not in marks_of_times(path)
    assert nk.rank(path).report.recording.unrecorded_step_ns is None


def once(model, optimizers):
    model(torch.ones(2, 4)).sum().backward()
    optimizers[0].step()


def without_update(model, _):
    model(torch.ones(2, 4)).sum().backward()


NOT_KNOWN = "How long a step takes without recording is not known."
#: A step, the options of the profile, the number of steps, and the shape of those timed, or why there are none.
KINDS = {
    "compiled": (once, {"compiled": {"backend": "eager"}}, 60, "fbA"),
    "reduce-overhead": (once, {"compiled": {"mode": "reduce-overhead"}}, 60, "fbA"),
    "no updates": (without_update, {}, 60, NOT_KNOWN),
    "memory": (once, {"memory": True}, 60, "fbA"),
    "three updates": (once, {}, 3, NOT_KNOWN),
    "accumulation": (accumulated, {}, 60, "fbfbA"),
    "two optimizers": (two_optimizers, {}, 60, "fbAfbB"),
    "own step": (accumulated, {"by_hand": True}, 60, "fbfbA"),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "reduce-overhead")) for kind in KINDS]
)
def test_each_kind_of_program_has_timed_steps_or_the_reason_why_not(path, kind, monkeypatch):
    monkeypatch.setattr(beside, "AGREEMENT", 1)  # however busy the machine is
    step, of_kind, steps, expected = KINDS[kind]
    options = dict(of_kind)
    compiled, by_hand = options.pop("compiled", None), options.pop("by_hand", False)
    model = Sequence()
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for _ in range(2)]
    run = torch.compile(model, **compiled) if compiled else model
    with nk.profile(model, optimizers[: 1 + (step is two_optimizers)], path, **options) as profile:
        for _ in range(steps):
            time.sleep(0.003)
            step(run, optimizers)
            if by_hand:
                profile.step()
    found, cost = marks_of_times(path), nk.rank(path).report.recording
    assert ("unrecorded" in found) is (expected != NOT_KNOWN)
    if expected == NOT_KNOWN:
        assert (cost.trusted, cost.reason) == (False, NOT_KNOWN)
        return
    assert {*found["recorded"]["shapes"], found["unrecorded"]["shape"]} == {expected}
    assert 1 <= cost.steps <= beside.TIMED
    # How long steps as short as these take, and pause, changes with the machine; what they do does not.
    assert cost.trusted or cost.reason not in (NOT_KNOWN, OTHER_WORK)


def test_inference_has_no_mark(path):
    model = Slow()
    with nk.profile(model, None, path, warmup=1, steps=2), torch.no_grad():
        for _ in range(20):
            model(torch.ones(2, 4))
    assert "unrecorded" not in marks_of_times(path)


def test_steps_of_other_work_are_refused(path):
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters())
    with nk.profile(model, optimizer, path, warmup=1, steps=3):
        for step in range(30):
            model(torch.ones(2 if step < 6 else 3, 4)).sum().backward()
            optimizer.step()
    told = nk.rank(path).report.recording
    assert (told.trusted, told.reason) == (False, OTHER_WORK)


def test_nothing_of_timing_stays(path):
    model, call = Slow(), nn.Module.__call__
    run = torch.autograd.graph._engine_run_backward
    assert run.__module__ == "torch.autograd.graph"  # nothing stayed of earlier blocks
    optimizer = torch.optim.SGD(model.parameters())
    with nk.profile(model, optimizer, path, warmup=0, steps=1):
        for _ in range(4):
            accumulated(model, [optimizer])
    assert nn.Module.__call__ is call
    assert torch.autograd.graph._engine_run_backward is run is torch.autograd._engine_run_backward


def in_place(model):
    model.compile(backend="eager")
    return model


def with_a_compiled_part(model):
    model.layer = torch.compile(model.layer, backend="eager")
    return model


@pytest.mark.parametrize("recorder", ["profile", "record"])
@pytest.mark.parametrize(
    "compiled",
    [in_place, with_a_compiled_part, lambda model: torch.compile(model, backend="eager"),
     lambda model: torch.compile(lambda x: model(x), backend="eager")],
    ids=["in place", "a part", "wrapped", "in a function"],
)  # fmt: skip
def test_a_compiled_model_is_not_compiled_again_for_what_follows_the_recording(path, compiled, recorder):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    model = Sequence()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run, graphs = compiled(model), []
    bounds = {"warmup": 1, "steps": 3}
    block = nk.profile(model, optimizer, path, **bounds) if recorder == "profile" else nk.record(path, **bounds)
    with block:
        for _ in range(16):
            run(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [graphs[0]] * 16
    assert nk.rank(path).report.steps == 3


class Sequence(nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.layer(x))


def test_a_report_that_another_has_replaced_is_left_alone(path):
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters())
    with nk.profile(model, optimizer, path, warmup=0, steps=1):
        for _ in range(3):
            accumulated(model, [optimizer])
        written = Written(path)
        path.write_bytes(b"another")
    written.add_mark("nvtx-kernels unrecorded: {}")
    assert path.read_bytes() == b"another"


def test_before_a_capture_of_nsys_steps_are_timed_unheard(path, monkeypatch):
    monkeypatch.setenv(NSYS_SESSION, "1")
    monkeypatch.setattr(capture, "captures_a_range", lambda: True)
    model, heard = Slow(), Heard()
    optimizer = torch.optim.SGD(model.parameters())
    with annotate.listen(heard), nk.profile(model, optimizer, path):
        for _ in range(9):
            accumulated(model, [optimizer])
    found = told_of_times(heard.marks)
    timed = found["unrecorded"]
    assert (timed["where"], timed["shape"], timed["dropped"]) == ("before", "fbfbA", {"cold": 2})
    assert len(timed["step_ns"]) == 3  # of six steps of warm-up
    assert min(timed["step_ns"]) > 16 * MS
    assert found["recorded"]["shapes"] == ["fbfbA"] * 3
    forwards = [one for one in heard.paths if one.endswith("Slow")]
    assert sum("warmup" in one for one in forwards) == 2 * 2 * 2  # two steps, forward and backward
    assert sum("measure" in one for one in forwards) == 2 * 2 * 3
    assert heard.left_open() == []


ASKS = "from nvtx_kernels.profiling.tool import captures_a_range; print(captures_a_range())"


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the system does not show command lines")
@pytest.mark.parametrize(
    ("options", "is_range"),
    [(["-c", "cudaProfilerApi"], True), (["--capture-range=nvtx", "-p", "measure@x"], True),
     (["--capture-range", "hotkey"], True), (["-ccudaProfilerApi"], True), (["-t", "cuda"], False),
     (["--capture-range=none"], False)],
)  # fmt: skip
def test_a_capture_range_is_known_by_the_command_line_of_nsys_not_of_its_program(tmp_path, options, is_range):
    script = tmp_path / "script.sh"
    script.write_text(f'"{sys.executable}" -c "{ASKS}"; true')  # true: the shell is not replaced by what it runs
    command = ["nsys", str(script), "profile", *options, "python", "-c", "import train"]
    done = subprocess.run(command, executable="/bin/sh", capture_output=True, text=True)
    assert done.stdout.strip() == str(is_range)


def test_the_steps_timed_are_those_after_two_that_agree():
    follower = beside.Follower()
    settling = beside.Settling(follower)
    for ms in (100, 41, 37, 36, 28.7, 28.6, 28.5, 28.4, 28.6, 28.3, 28.8):
        follower.steps.append(Step("fbA", 1, None, [("other", 0), ("forward", 1000), ("other", int(ms * MS))]))
    timed = json.loads(settling.mark().partition(": ")[2])
    # 37 and 36 agree, but those after them do not yet: 36 is the fourth.
    assert timed["step_ns"] == [round(ms * MS) for ms in (28.7, 28.6, 28.5, 28.4, 28.6)]
    assert timed["dropped"] == {"unsettled": 4}


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that must not be asked while its stream is captured; each look at the clock takes 1 ms."""
    gpu, clock = SimpleNamespace(is_captured=False), count()

    def asked():
        assert not gpu.is_captured
        return next(clock) * MS

    monkeypatch.setattr(beside, "time", SimpleNamespace(perf_counter_ns=lambda: next(clock) * MS))
    monkeypatch.setattr(beside, "is_capturing", lambda: gpu.is_captured)
    monkeypatch.setattr(beside, "moment", asked)
    monkeypatch.setattr(beside, "wait_for_gpu", asked)
    monkeypatch.setattr(Step, "has_passed", lambda _: asked() >= 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", dict)
    return gpu


def driven(settling, step):
    """Run steps, each of which does `step` with its number, until enough are timed, or 40."""
    follower = settling._follower
    for number in range(40):
        step(number)
        follower.leave()
        follower.end()
        settling.step_ended()
        if settling.is_over:
            break


def followed(gpu, *, captured=lambda number, emptied: False, emptied_updates=1):
    """Follow steps until enough are timed; return how many were emptied, and the mark."""
    follower = beside.Follower()
    settling, emptied = beside.Settling(follower), 0

    def step(number):
        nonlocal emptied
        gpu.is_captured = captured(number, follower.emptying and not emptied)
        emptied += follower.emptying
        follower.backward()
        follower.update()
        for _ in range(emptied_updates if follower.emptying else 1):
            follower.updated("SGD")

    driven(settling, step)
    return emptied, json.loads(settling.mark().partition(": ")[2])


HOST_NS = {"other": 2 * MS, "backward": MS, "optimizer": MS}


def test_a_gpu_is_asked_nothing_while_its_stream_is_captured(gpu):
    emptied, found = followed(gpu, captured=lambda number, is_first_emptied: number == 6 or is_first_emptied)
    assert emptied == 2  # the first was captured: its times are dropped
    assert found["host_ns"] == HOST_NS
    assert found["dropped"]["captured"] == 2  # the next one began there


@pytest.mark.parametrize(("updates", "host_ns"), [(1, HOST_NS), (2, {})])
def test_an_emptied_step_of_another_shape_gives_no_host_times(gpu, updates, host_ns):
    emptied, found = followed(gpu, emptied_updates=updates)
    assert (emptied, found["shape"], found["host_ns"]) == (1, "bA", host_ns)


def test_whole_steps_follow_of_which_nothing_else_is_heard(gpu):
    """A look at the clock takes 1 ms: five of them with a step's phases, one with a whole step."""
    _, found = followed(gpu)
    assert (found["step_ns"], found["span_ns"]["optimizer"]) == ([MS] * 5, [MS // 5] * 5)
    assert sum(spans[0] for spans in found["span_ns"].values()) == MS


def test_an_evaluation_in_one_of_the_whole_steps_is_not_in_the_bounds():
    steps = [Step("fbA", spans_ns=Counter(forward=ms * MS, other=ms * MS)) for ms in (9, 10, 11)]
    whole = [Step(spans_ns=Counter(other=ms * MS)) for ms in (10, 10, 10, 10, 500)]
    found = json.loads(beside.mark(steps, steps, "after", {}, whole).partition(": ")[2])
    assert found["step_ns"] == [9 * MS, 10 * MS, 11 * MS]
    assert found["span_ns"]["forward"] == [4.5 * MS, 5 * MS, 5.5 * MS]


def test_whole_steps_are_not_timed_where_steps_differ(gpu, monkeypatch):
    monkeypatch.setattr(beside, "AGREEMENT", 1)
    follower = beside.Follower()
    settling = beside.Settling(follower)

    def step(number):
        follower.backward()
        if number % 2:
            follower.leave()
            follower.backward()
        follower.updated("SGD")

    driven(settling, step)
    assert (settling.is_over, settling.is_whole) == (True, False)


def test_steps_of_another_shape_and_such_that_compiled_are_not_timed(gpu, monkeypatch):
    graphs = iter([0] * 8 + [1] * 100)  # the seventh step compiles
    monkeypatch.setattr(beside, "_compiled", lambda: next(graphs))
    _, found = followed(gpu)
    assert (len(found["span_ns"]["backward"]), found["dropped"]["compiled"]) == (beside.TIMED - 1, 1)
    steps = [Step(shape, spans_ns=Counter(other=MS)) for shape in ("bA", "bbA", "bA")]
    found = json.loads(beside.mark(steps, steps, "before", {}).partition(": ")[2])
    assert (found["shape"], len(found["step_ns"]), found["dropped"]) == ("bA", 2, {"shape": 1})


def test_steps_that_never_agree_are_given_up():
    follower = beside.Follower()
    settling = beside.Settling(follower)
    for number in range(100):
        lasts = (1 + number % 2) * MS
        follower.steps.append(Step("fbA", 1, None, [("other", 0), ("other", lasts)]))
        settling.step_ended()
        if settling.is_over:
            break
    assert len(follower.steps) == beside.MOST_LEFT + 1
    assert settling.mark() == ""
