"""Ranges that the program opens without us: record_function, nvtx and torch.cuda.nvtx."""

from collections import OrderedDict

import nvtx
import pytest
import torch
from nvtx_kernels.analysis.errors import NoGpuWork
from nvtx_kernels.analysis.readers.requirements import require_work
from nvtx_kernels.profiling import annotate, recorder
from torch import nn
from torch.profiler import record_function

from nvtx_kernels import analysis
from tests.profiling.making.recordings import MODEL, rows

NAMES = """SELECT names.value, domain_id FROM ranges JOIN names ON names.row = name_id
           JOIN domains ON domains.row = domain ORDER BY start_ns, end_ns DESC"""
WAYS = {
    "record_function": record_function,
    "torch.cuda.nvtx.range": torch.cuda.nvtx.range,
    "nvtx.annotate": nvtx.annotate,
}


def step(way):
    with way("forward"):
        loss = MODEL(torch.ones(4, 8)).square().mean()
    with way("backward"):
        loss.backward()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ranges_opened_without_us_own_their_work(path, way):
    with recorder.record(path, device="cpu"), way("step"):
        step(way)
    ranking = analysis.rank(analysis.read(path))
    assert list(ranking.phases["phase"]) == ["forward", "backward"]
    paths = sorted(ranking.ranges["path"])
    assert [list(at) for at in paths] == [["step"], ["step", "backward"], ["step", "forward"]]
    assert ranking.totals["outside_ns"] == 0


def test_pushes_and_pops_nest_by_domain(path):
    with recorder.record(path, device="cpu"):
        nvtx.push_range("outer", domain="mine")
        torch.cuda.nvtx.range_push("inner")
        nvtx.pop_range(domain="mine")
        nvtx.pop_range(domain="never pushed")
        torch.cuda.nvtx.range_pop()
        MODEL(torch.ones(1, 8))
    assert rows(path, NAMES) == [("outer", 2), ("inner", 0)]
    assert rows(path, "SELECT name, domain_id FROM domains ORDER BY domain_id") == [("", 0), ("mine", 2)]


def test_decorated_functions_are_heard_when_decorated_while_recording(path):
    with recorder.record(path, device="cpu"):

        @nvtx.annotate()
        def attend():
            return MODEL(torch.ones(1, 8))

        attend()
    attend()
    assert rows(path, NAMES) == [("attend", 0)]


def test_pytorchs_optimizer_block_is_a_range_unless_ours_says_the_same(path):
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.0)
    MODEL(torch.ones(1, 8)).sum().backward()
    with recorder.record(path, device="cpu"):
        optimizer.step()
        with annotate.range("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    assert rows(path, NAMES) == [("Optimizer.step#SGD.step", 0), ("optimizer", 1)]


def test_everything_is_as_it_was_afterwards(path):
    places = [
        (torch.autograd.profiler.record_function, "__enter__"),
        (torch.cuda.nvtx, "_nvtx"),
        (nvtx.annotate, "__enter__"),
        (nvtx, "push_range"),
    ]
    before = [getattr(*place) for place in places]
    with pytest.raises(ZeroDivisionError), recorder.record(path, device="cpu"):
        1 / 0  # noqa: B018
    assert [getattr(*place) for place in places] == before


def test_an_empty_recording_is_called_one(path, capsys):
    with recorder.record(path, device="cpu"):
        pass
    assert capsys.readouterr().err.startswith(f"{path} is an empty recording: no work was seen. Next: run the")
    trace = analysis.read(path)
    with pytest.raises(NoGpuWork, match=r"report.sqlite is an empty recording: no operator ran .*profile\(model"):
        require_work(trace)


@pytest.mark.parametrize(("steps", "said"), [(0, "no range `step`"), (2, "2 steps")])
def test_what_was_written_is_said(path, capsys, steps, said):
    with recorder.record(path, device="cpu"):
        torch.ones(1)
        for _ in range(steps):
            with annotate.range("step"):
                pass
    assert f"{path}, " in (line := capsys.readouterr().err.splitlines()[-1])
    assert f"{said}. Next: nvtx-kernels rank {path}" in line


def test_a_module_called_step_is_no_step(path, capsys):
    model = nn.Sequential(OrderedDict(step=nn.Linear(2, 2)))
    with annotate.annotate_modules(model), recorder.record(path, device="cpu"), annotate.range("step"):
        model(torch.ones(1, 2))
    assert ", 1 step. Next:" in capsys.readouterr().err.splitlines()[-1]
