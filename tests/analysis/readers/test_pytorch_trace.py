"""PyTorch profiler traces: recorded here on a CPU, and written as kineto writes them on a GPU."""

import gzip
import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from nvtx_kernels.analysis.trace import NO_CATEGORY
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from nvtx_kernels import analysis
from tests.analysis.making.self_times import Operator, activity, kernels
from tests.analysis.making.traces import summary


def train(steps):
    """Train a few layers, with blocks around the phases and one part."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.LayerNorm(48), torch.nn.Linear(48, 8))
    optimizer, batch = torch.optim.AdamW(model.parameters()), torch.randn(16, 32)
    for _ in range(steps):
        with record_function("forward"), record_function("layers"):
            loss = torch.softmax(model(batch), -1).square().mean()
        with record_function("backward"):
            loss.backward()
        optimizer.step()
        yield


@contextmanager
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=[False, True], ids=["", "with_stack"])
def recorded(request, tmp_path_factory):
    """Return a trace of two training steps, and what the profiler itself saw."""
    path = tmp_path_factory.mktemp("recorded") / "rank0.pt.trace.json"
    two_steps = schedule(wait=0, warmup=1, active=2, repeat=1)
    cpu = {"activities": [ProfilerActivity.CPU], "schedule": two_steps, "with_stack": request.param}
    with one_thread(), profile(**cpu) as profiler:
        for _ in train(3):
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path, profiler.profiler.kineto_results.events()


def since_1970(path, times_ns):
    return (times_ns + json.loads(path.read_text())["baseTimeNanoseconds"]).tolist()


def test_operators_work_is_what_a_recording_of_ours_finds(recorded):
    path, events = recorded
    called = [e for e in events if activity(e) == "cpu_op"]
    ours = kernels(Operator(e.name(), e.start_ns(), e.end_ns(), e.device_resource_id()) for e in called)
    trace = analysis.read(path)
    work, launch = trace.work, trace.launches
    columns = [since_1970(path, times) for times in (work.start_ns, work.end_ns, launch.start_ns[work.launch])]
    found = zip([trace.names[name] for name in work.name_id], *columns, strict=True)
    assert list(found) == [(operator.name, start, end, operator.start_ns) for operator, start, end in ours]
    assert len(work) > 100


def test_blocks_and_operators_become_ranges_with_their_sequence_numbers(recorded):
    path, events = recorded
    seen = [e for e in events if activity(e) in ("cpu_op", "user_annotation")]
    names = (trace := analysis.read(path)).names
    ranges = trace.ranges.take(trace.ranges.category == NO_CATEGORY)  # without modules, which stacks have
    times = since_1970(path, ranges.start_ns), since_1970(path, ranges.end_ns)
    numbers = [
        seq if seq < 0 else seq & 0xFFFFFFFF for seq in ranges.seq.tolist()
    ]  # the thread is above these bits
    found = zip(*times, [names[name] for name in ranges.name_id], numbers, strict=True)
    assert sorted(found) == sorted((e.start_ns(), e.end_ns(), e.name(), e.sequence_nr()) for e in seen)


def test_backward_of_a_part_is_linked_to_it(recorded):
    report = summary(recorded[0])
    layers = {row.path[1:]: row for row in report.ranges if row.path[-1] == "layers"}
    assert set(layers) == {("forward", "layers"), ("backward", "layers")}
    assert layers["backward", "layers"].phase == "backward"
    assert report.totals.linked_ns >= layers["backward", "layers"].inclusive_ns > 0
    assert {row.path[0] for row in report.ranges} == {"ProfilerStep#1", "ProfilerStep#2"}
    assert report.steps == 2


def test_cpu_trace_says_whose_time_it_counts(recorded):
    report = summary(recorded[0])
    assert report.provenance.unit_of_work == "CPU"
    assert report.notes == (
        "The trace contains no GPU work: self CPU time of operators is counted instead. If the model ran on a "
        "GPU, record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    )
    totals = report.totals
    assert totals.work_ns == totals.own_ns + totals.linked_ns + totals.outside_ns


def test_gzipped_trace_gives_the_same_report(recorded, tmp_path):
    packed = tmp_path / recorded[0].with_suffix(".json.gz").name
    packed.write_bytes(gzip.compress(recorded[0].read_bytes()))
    report = summary(packed)
    assert report.provenance.file == "rank0.pt.trace.json.gz"
    assert replace(report, provenance=summary(recorded[0]).provenance) == summary(recorded[0])


def test_self_times_sum_to_the_time_of_the_outermost_operators(recorded):
    """Also those of reshape and its siblings, of autograd's nodes and of their engine."""
    path, events = recorded
    called = sorted(
        ((e.device_resource_id(), e.start_ns(), e.end_ns()) for e in events if activity(e) == "cpu_op"),
        key=lambda operator: (operator[0], operator[1], -operator[2]),
    )
    outermost, on_thread, until = 0, None, 0
    for thread, start, end in called:
        if thread != on_thread or start >= until:
            outermost, on_thread, until = outermost + end - start, thread, end
    assert analysis.read(path).work.duration_ns.sum() == outermost


def test_the_allocators_events_are_read(tmp_path):
    path = tmp_path / "rank0.pt.trace.json"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, record_function("forward"):
        kept = torch.ones(1024).mul(2)
    profiler.export_chrome_trace(str(path))
    memory = (trace := analysis.read(path)).memory
    written = [e["args"] for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "[memory]"]
    assert sorted(memory.bytes.tolist()) == sorted(args["Bytes"] for args in written)
    assert memory.total_bytes.tolist()[-1] >= kept.nbytes
    assert {trace.threads[thread].process for thread in memory.thread} == {0}
    assert set(memory.device_id.tolist()) == {0}
