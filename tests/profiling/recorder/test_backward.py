"""Backward ranges that are made of the nodes that the profiler saw: those that hooks on nodes would open."""

from collections import Counter
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from nvtx_kernels.analysis.trace import MODEL_BACKWARD, Thread
from nvtx_kernels.profiling import annotate, recorder
from nvtx_kernels.profiling.annotate import nodes, places, range_stack
from nvtx_kernels.profiling.annotate.compiled import ranges
from nvtx_kernels.profiling.annotate.places import Within
from nvtx_kernels.profiling.annotate.regions import Part
from nvtx_kernels.profiling.recorder.backward import BackwardRanges, Node, nodes_of
from nvtx_kernels.profiling.recorder.range_log import Event, Pass, RangeLog
from nvtx_kernels.profiling.recorder.seen import Blocks

from tests.profiling.making.backward_programs import PROGRAMS, Net, trained
from tests.profiling.making.hearing import Heard, in_threads
from tests.profiling.making.recordings import range_names, rows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BACKWARD = "model/backward"
OF_BACKWARD = f"SELECT value FROM ranges JOIN names ON names.row = name_id WHERE category = {MODEL_BACKWARD}"


class BothWays:
    """What hooks opened and what was made of nodes, of the same passes; `hooked` are passes that need hooks."""

    def __init__(self, monkeypatch):
        self.opened, self.made, self.nodes, self.hooked = [], [], [], []
        take, begins, of = RangeLog.take, RangeLog.pass_begins, BackwardRanges.of
        all_see, sees = nodes._all_see_nodes, []

        def needs_hooks():
            if all_see():
                sees.append(True)
            return False

        def pass_begins(log, running, *, is_hooked):
            begun = begins(log, running, is_hooked=is_hooked and not sees)
            self.hooked += [begun] * begun.is_hooked
            sees.clear()
            return begun

        def taken(log, close_ns=None):
            events = take(log, close_ns)
            self.opened += [event for event in events if event.category == BACKWARD]
            return events

        def made(backward, seen):
            seen = list(seen)
            self.nodes += [node for node in seen if not self.is_of_hooked(node)]
            self.made += of(backward, seen)
            return []

        monkeypatch.setattr(nodes, "_all_see_nodes", needs_hooks)
        monkeypatch.setattr(RangeLog, "pass_begins", pass_begins)
        monkeypatch.setattr(RangeLog, "take", taken)
        monkeypatch.setattr(BackwardRanges, "of", made)

    def is_of_hooked(self, node):
        return any(one.start_ns < node.start_ns < one.end_ns for one in self.hooked)

    def paths(self, events):
        """Return the names of the ranges that are open when a node ends, outer before inner, by node."""
        events = sorted(events, key=lambda event: (event.thread, event.start_ns, -event.end_ns))
        return [
            [one.name for one in events if one.thread == node.thread and one.start_ns < node.end_ns <= one.end_ns]
            for node in self.nodes
        ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_nodes_are_in_the_ranges_that_hooks_open(path, monkeypatch, name, device):
    model, run = PROGRAMS[name](device)
    both = BothWays(monkeypatch)
    with annotate.annotate_modules(model), recorder.record(path, device=device, steps=None):
        run()
    made, opened = both.paths(both.made), both.paths(both.opened)
    for node, path_of_node, by_hooks in zip(both.nodes, made, opened, strict=True):
        # Of what another thread made in a backward, hooks may not know what it is of.
        is_of_another = device == "cuda" or (name.endswith("elsewhere") and node.maker != both.nodes[0].maker)
        assert by_hooks == path_of_node or (is_of_another and not by_hooks), node
    assert len(both.nodes) > 0 or both.hooked
    if not both.hooked:
        assert Counter(event.name for event in both.made) == Counter(event.name for event in both.opened) != {}


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """No test before has run generated code of a model."""
    monkeypatch.setattr(ranges, "looks_around", False)


@pytest.fixture
def hooked(monkeypatch):
    """The passes of which hooks were set."""
    passes, run = [], nodes._Hooked.run

    def counted(self, engine):
        passes.append(self)
        return run(self, engine)

    monkeypatch.setattr(nodes._Hooked, "run", counted)
    return passes


def names_of_backward(path):
    return Counter(name for (name,) in rows(path, OF_BACKWARD))


@pytest.mark.parametrize("name", ["implicit", "penalty", "checkpoint inside"])
def test_a_report_has_the_ranges_that_it_has_with_hooks(path, monkeypatch, name):
    """What a backward computes is of the part whose backward runs, though no hook says which that is."""
    found = []
    for sees in (RangeLog.sees_nodes, lambda _: False):
        monkeypatch.setattr(RangeLog, "sees_nodes", sees)
        model, run = PROGRAMS[name]("cpu")
        with annotate.annotate_modules(model), recorder.record(path, device="cpu", steps=None):
            run()
        found.append(Counter(range_names(path)))
    assert found[0] == found[1]


def test_a_backward_that_makes_nodes_has_hooks(path, hooked):
    model, run = PROGRAMS["penalty"]("cpu")
    with annotate.annotate_modules(model), recorder.record(path, device="cpu", steps=None):
        run()
    assert len(hooked) == 3  # of six


def test_a_recording_sets_no_hooks(path, hooked):
    model, run = trained(Net(), "cpu")
    with annotate.annotate_modules(model), recorder.record(path, device="cpu", steps=None):
        run()
    assert hooked == []
    found = names_of_backward(path)
    assert {name: found[name] for name in ("Net", "layer 0", "norm", "head")} == {
        "Net": 3,
        "layer 0": 3,
        "norm": 9,
        "head": 3,
    }


def test_hooks_are_set_where_another_listener_wants_the_ranges(path, hooked):
    model, run = trained(Net(), "cpu")
    with (
        annotate.annotate_modules(model),
        recorder.record(path, device="cpu", steps=None),
        annotate.listen(heard := Heard()),
    ):
        run()
    assert len(hooked) == 3
    assert sum(path.endswith("Net/layer 0/mlp") for path in heard.paths) == 6
    assert names_of_backward(path)["mlp"] == 9


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [(ranges, "looks_around", True), (nodes, "are_numbered", False)],
    ids=["generated code looks for ranges", "nodes do not tell their thread"],
)
def test_hooks_are_set_where_ranges_cannot_be_made_later(path, hooked, monkeypatch, module, name, value):
    monkeypatch.setattr(module, name, value)
    model, run = trained(Net(), "cpu")
    with annotate.annotate_modules(model), recorder.record(path, device="cpu", steps=None):
        run()
    assert (len(hooked), names_of_backward(path)["Net"]) == (3, 3)


@pytest.mark.parametrize("model", [None, "Net"])
def test_generated_code_of_a_model_looks_for_ranges_and_that_of_a_function_does_not(model):
    with ranges.Ranges([("mlp",)], BACKWARD, model=model).opened():
        pass
    assert ranges.looks_around is (model is not None)


def test_hooks_are_set_for_nsys(hooked, monkeypatch):
    monkeypatch.setattr(range_stack, "has_tool", True)
    monkeypatch.setattr(range_stack, "_domain", Mock())
    with annotate.listen(RangeLog(lambda: True)):
        Net()(torch.ones(4, 8)).sum().backward()
    assert len(hooked) == 1


def test_hooks_are_set_on_a_thread_that_the_profiler_does_not_see(path, hooked):
    """With memory, a session sees the recording thread alone, whose GPU runs other threads' kernels too."""
    model, run = trained(Net(), "cpu")
    with annotate.annotate_modules(model), recorder.record(path, device="cpu", steps=None, memory=True):
        in_threads(run)
        run()
    assert len(hooked) == 3
    assert names_of_backward(path)["Net"] == 6


def test_a_graph_of_one_session_has_its_backward_in_a_later_one(path, monkeypatch, hooked):
    monkeypatch.setenv(recorder.LIMIT_VARIABLE, str(-(1 << 40)))
    model = Net()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    waiting = [model(torch.ones(4, 8)).sum()]
    with annotate.annotate_modules(model), recorder.record(path, device="cpu", steps=None):
        for _ in range(4):
            waiting.append(model(torch.ones(4, 8)).sum())
            waiting.pop(0).backward()
            optimizer.step()
    assert hooked == []
    assert names_of_backward(path)["Net"] == 3


def test_what_recording_keeps_of_threads_goes_with_it(path):
    model, run = trained(Net(), "cpu")
    with annotate.annotate_modules(model), recorder.record(path, device="cpu", steps=None):
        run()
        assert places.kept
    assert places.kept is None


def test_annotation_may_end_before_the_recording(path):
    model, run = trained(Net(), "cpu")
    with recorder.record(path, device="cpu", steps=None):
        with annotate.annotate_modules(model):
            run()
        torch.ones(3) + 1
    assert names_of_backward(path)["Net"] == 3


def test_ranges_of_equal_bounds_are_written_from_the_outside(path):
    model, run = trained(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(8, 8))), "cpu")
    with annotate.annotate_modules(model), recorder.record(path, device="cpu", steps=None):
        run()
    names = range_names(path)
    assert [name for (name,) in rows(path, OF_BACKWARD)][:3] == names[3:6] == names[:3]


# Where the engine runs nodes on threads of a device: MAIN calls backward, and DEVICE and OTHER run it.
MAIN, DEVICE, OTHER, MAKER = 10, 11, 12, 1


def part_of(name, parent=None):
    return Part(range_stack.Label(name, None, BACKWARD), parent, None, None)


def ranges_of(passes, seen, parts, recomputations=()):
    """Return name, bounds and thread of the ranges of nodes, given which part each number is of."""
    columns = [*range(len(parts))], parts
    found = BackwardRanges(passes, recomputations, [(MAKER, columns)]).of(seen)
    return sorted((event.name, event.start_ns, event.end_ns, event.thread) for event in found)


def node(start_ns, number, thread=DEVICE, *, end_ns=None):
    return Node(start_ns, start_ns + 5 if end_ns is None else end_ns, thread, MAKER, number)


NET = part_of("Net")
MLP = part_of("mlp", NET)


def test_ranges_end_on_a_devices_thread_with_the_last_node_of_the_pass_there():
    passes = [Pass(0, 100, MAIN, None, False), Pass(200, 300, MAIN, None, False)]
    seen = [node(10, 1), node(20, 1), node(30, 0), node(40, -1), node(210, 0), node(50, 1, OTHER)]
    assert ranges_of(passes, seen, [NET, MLP]) == [
        ("Net", 10, 45, DEVICE),
        ("Net", 50, 55, OTHER),
        ("Net", 210, 215, DEVICE),
        ("mlp", 10, 30, DEVICE),
        ("mlp", 50, 55, OTHER),
    ]


def test_a_pass_that_a_node_begins_has_ranges_of_its_own_on_its_thread():
    passes = [Pass(0, 100, MAIN, None, False), Pass(20, 60, DEVICE, None, False)]
    seen = [node(10, 0, end_ns=70), node(30, 1), node(40, 2), node(80, 0)]
    assert ranges_of(passes, seen, [NET, part_of("again"), None]) == [
        ("Net", 10, 85, DEVICE),
        ("again", 30, 40, DEVICE),
    ]


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        ([], []),
        ([Pass(0, 100, MAIN, None, True)], []),
        ([Pass(0, 100, MAIN, NET, False)], [("mlp", 10, 15, DEVICE)]),
        ([Pass(0, 100, DEVICE, None, True), Pass(5, 100, OTHER, None, False)], []),
        ([Pass(0, None, MAIN, None, False)], [("Net", 10, 15, DEVICE), ("mlp", 10, 15, DEVICE)]),
    ],
    ids=["none", "hooked", "inside the model's forward", "hooked on its own thread", "cut"],
)
def test_nodes_have_ranges_in_passes_without_hooks_of_parts_that_do_not_run(passes, expected):
    assert ranges_of(passes, [node(10, 1)], [NET, MLP]) == expected


def test_a_recomputation_interrupts_the_ranges_of_what_it_computes_again():
    again = Event(12, 14, DEVICE, "recompute", interrupts=(MLP.label, NET.label))
    passes = [Pass(0, 100, MAIN, None, False)]
    assert ranges_of(passes, [node(10, 1), node(20, 0)], [NET, MLP], [again]) == [
        ("Net", 10, 25, DEVICE),
        ("mlp", 10, 12, DEVICE),
        ("mlp", 14, 20, DEVICE),
    ]


def test_what_a_node_makes_is_of_the_part_whose_backward_runs():
    within = Within(DEVICE, 12)
    passes = [Pass(0, 100, MAIN, None, False), Pass(200, 300, MAIN, None, False)]
    assert ranges_of(passes, [node(10, 1), node(210, 2)], [NET, MLP, within])[1:3] == [
        ("Net", 210, 215, DEVICE),
        ("mlp", 10, 15, DEVICE),
    ]
    assert within.part is MLP


def test_a_thread_of_which_nothing_is_kept_made_nodes_of_no_part():
    passes = [Pass(0, 100, MAIN, None, False)]
    seen = [node(10, 1), Node(20, 25, DEVICE, 7, 1), node(30, 1)]
    found = ranges_of(passes, seen, [NET, MLP])
    assert [bounds for name, *bounds, _ in found if name == "Net"] == [[10, 20], [30, 35]]


def test_numbers_that_a_thread_has_forgotten_are_kept():
    places.keep(more=True)
    table = places.Table()
    first = places.next_number()
    table.columns[0][:], table.columns[1][:] = [first, first + 5], [NET, MLP]
    table.forget(first + 5, 0)
    table.columns[0].append(first + 9)
    table.columns[1].append(part_of("later"))
    kept = places.keep(more=False)
    passes = [Pass(0, 200, MAIN, None, False)]
    maker = places.thread_number()
    seen = [Node(10 * add, 10 * add + 5, DEVICE, maker, first + add) for add in (2, 7, 10)]
    assert [one.name for one in BackwardRanges(passes, [], kept).of(seen)] == ["Net", "mlp", "later"]
    assert table.part_of(first + 2) is None


def test_a_backward_that_goes_on_is_taken_until_it_has_ended():
    log = RangeLog()
    begun = log.pass_begins(None, is_hooked=False)
    assert log.take_passes() == [begun]
    log.pass_ends(begun)
    assert log.take_passes() == [begun]
    assert log.take_passes() == []


ENGINE = "autograd::engine::evaluate_function: "
#: Name, start, end, number and maker, and what is a node of the graph: the engine's event with that.
BLOCKS = [
    (f"{ENGINE}torch::autograd::GraphRoot", 0, 9, -1, 0, -1),
    ("torch::autograd::GraphRoot", 1, 8, 30, 1, None),
    (f"{ENGINE}torch::autograd::CopySlices", 10, 29, 21, 1, 21),
    ("aten::mul", 11, 12, -1, 0, None),
    ("torch::autograd::CopySlices", 13, 28, 21, 1, None),
    ("MulBackward0", 14, 20, 20, 1, None),
    (f"{ENGINE}SinBackward0", 30, 39, -1, 0, -1),
    (f"{ENGINE}torch::autograd::AccumulateGrad", 40, 49, -1, 0, -1),
    ("torch::autograd::AccumulateGrad", 41, 48, -1, 1, None),
    ("CosBackward0", 50, 59, 12, 1, None),
]


def test_nodes_are_those_that_the_engine_ran_itself():
    texts = [name for name, *_ in BLOCKS]
    start_ns, end_ns, number, maker = (np.array(column) for column in [*zip(*BLOCKS, strict=True)][1:5])
    same = np.zeros(len(BLOCKS), np.int64)
    blocks = Blocks(start_ns, end_ns, same, np.arange(len(BLOCKS)), number, same == 0, maker)
    expected = [(start, end, number) for _, start, end, _, _, number in BLOCKS if number is not None]
    found = nodes_of(texts, [Thread(0, DEVICE)], blocks)
    assert [(one.start_ns, one.end_ns, one.number) for one in found] == expected
    assert [one.maker for one in found if one.number >= 0] == [1]
