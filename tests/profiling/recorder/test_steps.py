"""What a step takes without recording, as `nk.record` knows it: by backwards, updates and the clock alone."""

import json
import os
import time
from itertools import pairwise

import pytest
import torch
from nvtx_kernels.analysis.measures.recording import OTHER_WORK
from nvtx_kernels.profiling.annotate import optimizers as optimizers_of_ours
from nvtx_kernels.profiling.recorder import beside
from nvtx_kernels.profiling.recorder.trace_file import TraceFile
from torch import nn

import nvtx_kernels as nk
from tests.profiling.making.recordings import marks, marks_of_times, train_on

MS = 1_000_000
RUN = "nvtx-kernels.run "


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.sqlite"


def made(number=1):
    model = nn.Linear(4, 4)
    return model, [torch.optim.SGD(model.parameters(), lr=1e-3) for _ in range(number)]


def backward(model, rows=2):
    time.sleep(0.005)
    model(torch.ones(rows, 4)).sum().backward()


def plain(model, optimizers):
    backward(model)
    optimizers[0].step()


def accumulated(model, optimizers):
    for _ in range(3):
        backward(model)
    optimizers[0].step()


def in_turn(model, optimizers):
    for optimizer in optimizers:
        backward(model)
        optimizer.step()


def in_a_range(model, optimizers):
    with nk.annotate.range("step"):
        plain(model, optimizers)


def twice_in_a_range(model, optimizers):
    with nk.annotate.range("step"):
        for _ in range(2):
            plain(model, optimizers)


def trained(path, step, number=1, steps=40):
    """Train while recording, and return the moments of the steps' ends, ns."""
    model, optimizers = made(number)
    ends_ns = []
    with nk.record(path, warmup=1, steps=3):
        for _ in range(steps):
            step(model, optimizers)
            ends_ns.append(time.perf_counter_ns())
    return ends_ns


@pytest.mark.parametrize(
    ("step", "number", "shape"),
    [(plain, 1, "bA"), (accumulated, 1, "bbbA"), (in_turn, 2, "bAbB"), (in_a_range, 1, "bA")],
)
def test_steps_after_the_recording_are_timed_as_a_whole(path, step, number, shape):
    ends_ns = trained(path, step, number)
    found = marks_of_times(path)
    assert {*found["recorded"].pop("shapes")} == {shape}
    assert found["recorded"] == {"sizes": [], "allocations": []}
    timed = found["unrecorded"]
    assert (timed["shape"], timed["where"], timed["span_ns"]) == (shape, "after", {})
    assert "sizes" not in timed
    own_ns = [later - earlier for earlier, later in pairwise(ends_ns)]
    assert all(min(abs(step_ns - own) for own in own_ns) < 2 * MS for step_ns in timed["step_ns"])
    cost = nk.rank(path).report.recording
    assert (cost.steps, cost.phases) == (5, {})
    assert cost.unrecorded_step_ns == sorted(timed["step_ns"])[2]


@pytest.mark.parametrize(
    ("step", "options"),
    [(plain, {"steps": 3}), (plain, {"steps": 7}), (plain, {"steps": None}), (backward, {})],
    ids=["too short", "ends while settling", "all recorded", "nothing updates"],
)
def test_without_steps_that_follow_there_is_no_mark_and_the_reason_is_told(path, step, options):
    model, optimizers = made()
    count = options.get("steps") or 20
    recorded = {"steps": None} if options.get("steps", 3) is None else {"steps": 3}
    with nk.record(path, warmup=1, **recorded):
        for _ in range(count):
            step(model, optimizers) if step is plain else step(model)
    assert "unrecorded" not in marks_of_times(path)
    cost = nk.rank(path).report.recording
    assert cost is None or cost.reason == "How long a step takes without recording is not known."


def test_steps_that_do_more_after_the_recording_are_refused(path):
    steps = iter([plain] * 5 + [accumulated] * 40)
    trained(path, lambda *of: next(steps)(*of))
    cost = nk.rank(path).report.recording
    assert (cost.trusted, cost.reason) == (False, OTHER_WORK)


def test_where_updates_do_not_end_the_programs_own_steps_none_is_timed(path):
    trained(path, twice_in_a_range)
    assert "unrecorded" not in marks_of_times(path)


def test_what_the_recorded_steps_did_is_told_without_warm_up(path):
    steps = iter([accumulated] * 3 + [plain] * 40)
    model, optimizers = made()
    with nk.record(path, warmup=3, steps=4):
        for _ in range(20):
            next(steps)(model, optimizers)
    assert marks_of_times(path)["recorded"]["shapes"] == ["bA"] * 4


def test_a_forked_child_adds_no_times(path):
    model, optimizers = made()
    child = None
    try:
        with nk.record(path, warmup=1, steps=3):
            for _ in range(8):
                plain(model, optimizers)
            child = os.fork()
            for _ in range(0 if child else 30):
                plain(model, optimizers)
    finally:
        if child == 0:
            os._exit(0)
    os.waitpid(child, 0)
    assert "unrecorded" not in marks_of_times(path)


def test_a_block_that_raises_has_a_report_without_times_even_if_the_gpu_failed(path, monkeypatch):
    model, optimizers = made()

    def fails():
        raise RuntimeError("CUDA error: device-side assert triggered")

    def train():
        with nk.record(path, warmup=1, steps=3):
            for _ in range(30):
                plain(model, optimizers)
            monkeypatch.setattr(beside, "wait_for_gpu", fails)
            raise KeyError

    with pytest.raises(KeyError):
        train()
    assert "unrecorded" not in marks_of_times(path)


@pytest.mark.parametrize("way", [nk.record, lambda *of, **bounds: nk.profile(None, None, *of, **bounds)])
def test_times_are_not_added_to_the_report_before_one_that_is_abandoned(path, monkeypatch, capfd, way):
    model, optimizers = made()
    with way(path, warmup=1, steps=3):
        for _ in range(4):
            plain(model, optimizers)
    before, add = path.read_bytes(), TraceFile.append

    def abandoned_add(self, table, columns):
        self.is_abandoned = True
        return add(self, table, columns)

    monkeypatch.setattr(TraceFile, "append", abandoned_add)
    capfd.readouterr()
    with way(path, warmup=1, steps=3):
        for _ in range(40):
            plain(model, optimizers)
    assert path.read_bytes() == before
    said = capfd.readouterr().err
    assert f"abandoned: {path} was not written" in said
    assert "goes on" not in said


@pytest.mark.parametrize("bounds", [{}, {"warmup": 0, "steps": None}])
def test_the_report_says_how_pytorch_was_set(path, bounds):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with nk.record(path, **bounds):
        train_on(torch.ones(2, 4), model, optimizer, 3)
    (text,) = marks(path, RUN)
    run = json.loads(text.partition(" ")[2])
    facts = ("float32_matmul_precision", "cudnn_tf32", "cudnn_benchmark")
    assert [run[fact] for fact in facts] == ["highest", True, False]
    if not bounds:
        facts = ("optimizer", "optimizer_foreach", "parameters", "parameter_tensors", "parameter_dtypes")
        assert [run[fact] for fact in facts] == ["AdamW", True, 20, 2, {"float32": 2}]
    assert nk.rank(path).report.provenance.run["float32_matmul_precision"] == "highest"


def test_what_the_program_says_of_its_settings_stays(path):
    with nk.record(path):
        nk.annotate.mark('nvtx-kernels.run {"size": "tiny"}')
        train_on(torch.ones(2, 4), *(lambda model, optimizers: (model, optimizers[0]))(*made()))
    assert marks(path, RUN) == ['nvtx-kernels.run {"size": "tiny"}']


def test_nothing_is_heard_after_the_block(path):
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

    run, count = torch.autograd.graph._engine_run_backward, len(hooks)
    for steps in (2, 6, 40):
        trained(path, plain, steps=steps)
        assert torch.autograd.graph._engine_run_backward is run is torch.autograd._engine_run_backward
        assert len(hooks) == count


def test_optimizers_may_have_other_hooks_when_timing_ends(path, monkeypatch):
    from torch.optim.optimizer import register_optimizer_step_post_hook

    monkeypatch.setattr(beside, "AGREEMENT", 1)  # however busy the machine is
    model, optimizers = made()
    updated = []
    with nk.record(path, warmup=1, steps=3):
        hook = register_optimizer_step_post_hook(lambda *_: updated.append(True))  # after ours
        for _ in range(40):
            plain(model, optimizers)
    hook.remove()
    assert (len(updated), "unrecorded" in marks_of_times(path)) == (40, True)


@pytest.mark.parametrize("way", [nk.record, nk.profile])
def test_the_rest_of_the_block_is_not_heard_once_steps_were_timed(path, monkeypatch, way):
    monkeypatch.setattr(beside, "AGREEMENT", 1)  # however busy the machine is
    model, optimizers = made()
    block_enter = torch.autograd.profiler.record_function.__enter__
    run = torch.autograd.graph._engine_run_backward
    block = way(path, warmup=1, steps=3) if way is nk.record else way(model, None, path, warmup=1, steps=3)
    with block:
        for _ in range(40):
            plain(model, optimizers)
        assert torch.autograd.graph._engine_run_backward is run
        assert torch.autograd.profiler.record_function.__enter__ is block_enter
        assert optimizers_of_ours._training.guide is None
    assert "unrecorded" in marks_of_times(path)


def test_a_recorder_can_be_used_again(path):
    recorder, model, (optimizer,) = nk.record(path, warmup=1, steps=3), *made()
    for _ in range(2):
        with recorder:
            train_on(torch.ones(2, 4), model, optimizer, 40)
        assert nk.rank(path).report.steps == 3
        assert "unrecorded" in marks_of_times(path)
