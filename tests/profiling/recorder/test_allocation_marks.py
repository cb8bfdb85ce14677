"""Allocations under nsys: marks bring them into its report, where they are as in a recording."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.memory import memory
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.allocations import MarkedAllocations
from nvtx_kernels.analysis.readers.marks import MEMORY_MARK, MemoryMark, read_mark
from nvtx_kernels.analysis.trace import Allocations
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.recorder import record
from nvtx_kernels.profiling.recorder.allocation_marks import COLUMNS, LEAST_MARKS, MARK, parts
from nvtx_kernels.profiling.training import capture
from torch import nn
from torch.profiler import ProfilerActivity, profile

import nvtx_kernels as nk
from tests.analysis.making.allocated import BEFORE, MB, RANGES, STEP, two_steps
from tests.analysis.making.building import MAIN, Range, build, launched
from tests.analysis.making.building import MARK as MARK_EVENT
from tests.profiling.making.hearing import Heard
from tests.profiling.making.recordings import train_on

BEGAN = 1_763_800_000_000_000_000  # when the report's clock was 0, by the program's
DELAYS = (9, 2, 7, 5, 8, 4, 6, 3)  # ns that marks need


def allocated(rows):
    """Return allocations given as rows: when, on which thread and device, an address, bytes, all bytes then."""
    at_ns, thread, device, *sizes = np.array(rows, np.int64).reshape(-1, 6).T
    return Allocations(at_ns, thread, device, np.zeros_like(thread), *sizes)


def texts(allocations, clocks):
    """Write marks as a program does that reads these times with them."""
    cut = list(parts(allocated(allocations)))
    return [
        MARK + json.dumps({"version": 1, "part": part, "parts": count, "now_ns": now, "data": data})
        for (data, part, count), now in zip(cut, clocks, strict=False)
    ]


def marked_steps(folder, fault=lambda marks: marks, drift=0.0):
    """Write the two steps of `allocated` as nsys reports them, with the allocations in marks."""
    events, total = [], BEFORE
    for begin in (0, 100):
        for at, size, block in STEP:
            total += size
            events.append((BEGAN + round((at + begin) * (1 + drift)), 100, 0, block, size * MB, total * MB))
    ends = [300 + 10 * number for number in range(LEAST_MARKS)]
    clocks = [BEGAN + round((at - late) * (1 + drift)) for at, late in zip(ends, DELAYS, strict=True)]
    named = [Range(name, start + begin, end + begin) for begin in (0, 100) for name, start, end in RANGES]
    marks = [
        Range(text, at, None, MAIN, 9, MARK_EVENT) for text, at in zip(texts(events, clocks), ends, strict=True)
    ]
    rows = launched((12, 13), (112, 113))
    return build(folder, ranges=[*named, *fault(marks)], **rows)


def found(path):
    return memory(attribute(read(path)))


def test_marks_give_what_a_recording_gives(tmp_path):
    (tmp_path / "marked").mkdir()
    marked, recorded = found(marked_steps(tmp_path / "marked")), found(two_steps(tmp_path))
    assert marked == recorded
    assert marked.ranges


def test_parts_come_in_any_order_and_again(tmp_path):
    assert found(marked_steps(tmp_path, lambda marks: [*marks[::-1], marks[0]])).ranges


@pytest.mark.parametrize(
    "fault",
    [
        lambda marks: marks[:-1],
        lambda marks: [replace(one, name=one.name.replace('"data": "', '"data": "A')) for one in marks],
    ],
    ids=["missing", "damaged"],
)  # fmt: skip
def test_what_cannot_be_read_is_left_out_and_said(tmp_path, fault):
    trace = read(marked_steps(tmp_path, fault))
    assert trace.memory is None
    assert any("cannot be read" in note for note in trace.notes)


def test_more_than_any_device_has_is_left_out_and_said(tmp_path):
    events = [(BEGAN + at, 100, 0, at, size, size) for at, size in ((1, 512), (2, 2**50))]
    marks = [Range(text, 300, None, MAIN, 9, MARK_EVENT) for text in texts(events, [BEGAN + 300] * LEAST_MARKS)]
    trace = read(marked_steps(tmp_path, lambda _: marks))
    assert trace.memory is None
    assert any("more than 1 PiB" in note for note in trace.notes)


def test_clocks_are_tied_by_the_shortest_delay_and_follow_a_drift():
    marked = MarkedAllocations()
    events = [(BEGAN + at, 1, 0, 1, 512, 512) for at in (0, 500_000, 1_000_000)]
    slow = [round(at * 1.0001) for at in (0, 40, 90, 999_000, 1_000_000)]  # the report's clock runs faster
    for at, late in zip(slow, (900, 0, 700, 800, 0), strict=True):
        marked.add(MemoryMark(BEGAN + round(at / 1.0001) - late, 0, 0, ""), at)
    for data, part, count in parts(allocated(events)):
        marked.add(MemoryMark(BEGAN + 1_000_000 - 2_000, part, count, data), 1_000_100)
    assert marked.columns()[0].tolist() == pytest.approx([0, 500_050, 1_000_100], abs=1)


def test_no_allocations_are_no_data():
    assert MarkedAllocations().columns() is None
    assert len(list(parts(allocated([])))) >= 1
    assert len(COLUMNS) == 6


def test_a_profile_that_nsys_watches_tells_what_the_allocator_did(tmp_path, monkeypatch):
    """What hears the marks stands in for nsys, at whose place nothing is recorded here."""
    monkeypatch.setattr(capture, "watcher", lambda variables: {"watched_by": "nsys"})
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer, heard = torch.optim.SGD(model.parameters()), Heard()
    with annotate.listen(heard), nk.profile(model, optimizer, tmp_path / "none", warmup=1, steps=2, memory=True):
        train_on(torch.ones(8, 64), model, optimizer)
    marked = MarkedAllocations()
    for text in heard.marks:
        mark, _ = read_mark(text)
        if isinstance(mark, MemoryMark):
            marked.add(mark, mark.now_ns)
    at, _, _, _, size, total = marked.columns()
    assert len(at) > 20
    assert (at[1:] >= at[:-1]).all()
    assert all(
        after == before + change
        for (before, after), change in zip(pairwise(total.tolist()), size[1:].tolist(), strict=True)
    )


def test_nothing_is_told_unless_asked(tmp_path):
    heard = Heard()
    with annotate.listen(heard), record(tmp_path / "report.sqlite", memory=True, quiet=True):
        torch.ones(8)
    assert not [mark for mark in heard.marks if mark.startswith(MEMORY_MARK)]


def test_another_profiler_is_left_alone_and_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(capture, "watcher", lambda variables: {"watched_by": "nsys"})
    model, heard = nn.Linear(4, 4), Heard()
    optimizer = torch.optim.SGD(model.parameters())
    watched = nk.profile(model, optimizer, tmp_path / "none", warmup=0, steps=1, memory=True)
    with profile(activities=[ProfilerActivity.CPU]) as theirs, annotate.listen(heard), watched:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert "no memory by range: another profiler of PyTorch" in capsys.readouterr().err
    assert not [mark for mark in heard.marks if mark.startswith(MEMORY_MARK)]
    assert any(event.key == "aten::sum" for event in theirs.key_averages())
