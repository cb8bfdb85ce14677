"""Kineto's events of synchronization tell which call waits for what, in every form that they have had."""

import numpy as np
import pytest
from nvtx_kernels.analysis.readers import read

from tests.analysis.making import simulated
from tests.analysis.making.building import Wait
from tests.analysis.making.simulated import US
from tests.analysis.making.simulated_kineto import FORMS, kineto_recorded

KNOWN = [("Kineto", False), ("Kineto", True), ("Cuspy", True), ("CUDA 12.9", True)]


def by_event(machine):
    """Run a step whose second stream waits for the first by an event, which the host then waits for as well."""
    machine.work(50 * US)
    machine.rows.waits.append(Wait(machine.call("cudaEventRecord_v3020"), 7, event=5, records=True))
    machine.rows.waits.append(Wait(machine.call("cudaStreamWaitEvent_v3020"), 9, event=5))
    machine.work(50 * US, stream=9, after=machine.ends[7])
    synchronize = machine.call("cudaEventSynchronize_v3020", until=machine.ends[7])
    machine.rows.waits.append(Wait(synchronize, -1, event=5))
    machine.wait(9)


def waits_by_name(trace):
    """Return (call's name, stream, event) of what a trace's first step says of waits."""
    names = [trace.calls.names[name].partition("_v")[0] for name in trace.calls.of_launch[trace.waits.call]]
    order = np.argsort(trace.waits.call, kind="stable")[: len(names) // 2]
    rows = list(zip(names, trace.waits.stream.tolist(), trace.waits.event.tolist(), strict=True))
    return [rows[row] for row in order]


@pytest.mark.parametrize(("form", "lists_events"), KNOWN)
def test_a_trace_tells_the_waits_that_nsys_tells(tmp_path, form, lists_events):
    machine = simulated.simulated(by_event, steps=2)
    trace = read(kineto_recorded(tmp_path / "r.pt.trace.json", machine, form, lists_events=lists_events))
    of_nsys = read(simulated.recorded(tmp_path, by_event, steps=2))
    assert (trace.has_events, of_nsys.has_events) == (True, True)
    assert waits_by_name(trace) == waits_by_name(of_nsys)


@pytest.mark.parametrize("form", FORMS)
def test_an_event_is_known_only_with_the_stream_on_which_it_was_recorded(tmp_path, form):
    machine = simulated.simulated(by_event, steps=2)
    trace = read(kineto_recorded(tmp_path / "r.pt.trace.json", machine, form))
    assert trace.has_events == (form == "Kineto")
    assert [name for name, _, _ in waits_by_name(trace)][-1].endswith("Synchronize")


def test_a_trace_recorded_without_these_events_has_no_waits(tmp_path):
    trace = read(kineto_recorded(tmp_path / "r.pt.trace.json", simulated.simulated(by_event), None))
    assert (trace.waits, trace.has_events) == (None, False)


def test_a_wait_of_an_unknown_call_or_kind_is_left_out(tmp_path):
    machine = simulated.simulated(by_event, steps=1)
    path = kineto_recorded(tmp_path / "r.pt.trace.json", machine)
    text = path.read_text().replace('"Event Sync"', '"Nonsense"').replace('"stream": 9', '"stream": 4294967295')
    path.write_text(text)
    trace = read(path)
    assert "cudaEventSynchronize" not in {name for name, _, _ in waits_by_name(trace)}
    assert set(trace.waits.stream.tolist()) <= {-1, 7}
