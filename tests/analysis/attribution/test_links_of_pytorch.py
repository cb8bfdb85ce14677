"""Recordings of PyTorch, in which every backward node goes where the program itself says that it was made."""

import threading
from functools import partial

import pytest
import torch
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.links import Links
from nvtx_kernels.analysis.attribution.thread_facts import ThreadFacts
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.profiling import annotate, recorder
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from tests.analysis.making.traces import path_of


class Program:
    """Layers that note for each node which of their ranges made it, when the node runs."""

    def __init__(self, range_):
        self.range, self.log, self.seen = range_, [], set()
        torch.manual_seed(0)
        self.layers = [torch.nn.Linear(64, 64) for _ in range(3)]

    def noted(self, tensor, where):
        """Have the new nodes of a tensor's graph log where they were made."""
        nodes = [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in self.seen or "AccumulateGrad" in node.name():
                continue
            self.seen.add(node)
            node.register_prehook(partial(self.ran, node.name(), where))
            nodes += [further for further, _ in node.next_functions]
        return tensor

    def ran(self, name, where, _):
        self.log.append((name, where))

    def layer(self, number, hidden):
        with self.range(f"layer {number}"):
            return self.noted(self.layers[number](hidden).relu().square(), f"layer {number}")

    def loss(self, hidden):
        with self.range("head"):
            return self.noted(hidden.square().mean(), "head")


def in_threads(program, x):
    """Run branches that take turns: one put aside within its range could be what another thread waits for."""
    turn = threading.Lock()

    def branch(number):
        with turn:
            found[number] = program.layer(number, x)

    with program.range("step"):
        with program.range("forward"):
            found, threads = {}, [threading.Thread(target=branch, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            loss = program.loss(torch.stack([found[number] for number in range(3)]))
        with program.range("backward"):
            loss.backward()


def checkpointed(program, x, *, reentrant):
    with program.range("step"):
        with program.range("forward"):
            hidden = x
            for number in range(2):
                hidden = checkpoint(program.layer, number, hidden, use_reentrant=reentrant)
                program.noted(hidden, f"layer {number}")
            loss = program.loss(hidden)
        with program.range("backward"):
            loss.backward()


def penalized(program, x):
    with program.range("step"):
        with program.range("forward"):
            loss = program.loss(program.layer(1, program.layer(0, x)))
            with program.range("penalty"):
                (slope,) = torch.autograd.grad(loss, x, create_graph=True)
                loss = program.noted(loss + slope.square().sum(), "penalty")
        with program.range("backward"):
            program.log.clear()  # what ran in the penalty's range is its own
            loss.backward()


PROGRAMS = {
    "in threads": in_threads,
    "checkpointed": lambda program, x: checkpointed(program, x, reentrant=False),
    "checkpointed, reentrant": lambda program, x: checkpointed(program, x, reentrant=True),
    "with a penalty on the gradient": penalized,
}


def recorded(run, path):
    """Record with our recorder, and return the program's log."""
    program, x = Program(annotate.range), torch.randn(32, 64, requires_grad=True)
    with recorder.record(path, device="cpu", operators=True):
        run(program, x)
    return program.log


def profiled(run, path):
    """Record with PyTorch's profiler, and return the program's log."""
    program, x = Program(record_function), torch.randn(32, 64, requires_grad=True)
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as profiler:
        run(program, x)
    profiler.export_chrome_trace(str(path))
    return program.log


# Nodes that the program makes in forward itself, around its layers or between them, though it notes them there.
MADE_BETWEEN = ("StackBackward0", "CheckpointFunctionBackward")
WAYS = {"recorder": (recorded, "report.sqlite"), "PyTorch's profiler": (profiled, "rank0.pt.trace.json")}


def told(attribution):
    """Return of each numbered node, in the order in which they ran, its name and the last ranges of its work."""
    links = Links(ThreadFacts(attribution.trace, attribution.facts, attribution.ranges))
    nodes = links.nodes
    launches, names = attribution.trace.launches, attribution.trace.names
    launch = attribution.trace.work.launch
    inside = links.around(launches.take(launch))
    places = {}
    for at, node in zip(inside.tolist(), attribution.node.tolist(), strict=True):
        if at >= 0 and nodes.seq[at] >= 0 and not names[nodes.name_id[at]].startswith("autograd::"):
            places.setdefault(at, set()).add(path_of(attribution, node)[-1])
    return nodes, places


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_node_goes_where_the_program_says_that_it_was_made(tmp_path, program, way):
    if (program, way) == ("in threads", "recorder") and threading.active_count() > 1:
        pytest.skip("a thread of another test still runs, so the recorder records its own thread only")
    record, file = WAYS[way]
    log = record(PROGRAMS[program], tmp_path / file)
    attribution = attribute(read(tmp_path / file))
    nodes, places = told(attribution)
    names = [attribution.trace.names[name] for name in nodes.name_id]
    in_backward = [at for at in nodes.start_ns.argsort().tolist() if runs_in_backward(attribution, nodes, at)]
    assert [names[at] for at in in_backward] == [name for name, _ in log]
    wrong = {
        (names[at], where, *places[at])
        for at, (_, where) in zip(in_backward, log, strict=True)
        if at in places and places[at] != {where} and names[at] not in MADE_BETWEEN
    }
    assert not wrong
    assert summarize(attribution).totals.linked_ns > 0


def runs_in_backward(attribution, nodes, at):
    """Tell whether a node (and not the engine around one) runs inside the program's backward range."""
    names, ranges = attribution.trace.names, attribution.ranges
    if nodes.seq[at] < 0 or names[nodes.name_id[at]].startswith("autograd::"):
        return False
    backward = next(row for row, name in enumerate(ranges.name_id) if names[name] == "backward")
    return ranges.start_ns[backward] <= nodes.start_ns[at] <= ranges.end_ns[backward]


def test_without_the_threads_that_ran_forward_their_nodes_are_adopted_and_said_to_be(tmp_path):
    program, path = Program(record_function), tmp_path / "rank0.pt.trace.json"
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        in_threads(program, torch.randn(32, 64, requires_grad=True))
    profiler.export_chrome_trace(str(path))
    attribution = attribute(read(path))
    _, places = told(attribution)
    assert set.union(*places.values()) == {"backward", "head"}
    assert any("linked to a forward operator" in note for note in summarize(attribution).notes)
