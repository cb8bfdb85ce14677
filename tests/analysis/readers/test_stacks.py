"""PyTorch traces with stacks: calls of modules and functions as ranges, their names, and what they decide."""

import json
import lzma
import re
from collections import Counter, defaultdict
from functools import cache
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import NotAReport, ReportError, TooTangled, UsageError
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.given_names import with_names
from nvtx_kernels.analysis.readers.stack_frames import kind_of, range_name
from nvtx_kernels.analysis.summary.selection import renamed
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.timeline.as_collapsed import function_stacks
from nvtx_kernels.analysis.trace import MODEL_FORWARD, NO_GRADIENT
from nvtx_kernels.analysis.views.rows import label

import nvtx_kernels as nk
from tests.analysis.making.bundled import SHARED
from tests.analysis.making.stacks import ENGINE, Event, Net, launch, record, write
from tests.analysis.making.traces import answers

# What a frame is, of all functions and of the program's own: 1 a module's call, 2 a function's, 3 an update.
FRAMES = {
    "nn.Module: Linear_7": (1, 1), "train.py(12): main": (2, 2), "/home/anna/train.py(12): main": (2, 2),
    "transformers/models/llama.py(3): forward": (2, 0), "/usr/lib/python3/dist-packages/x.py(3): f": (2, 0),
    "<ipython-input-3-ab>(1): step": (2, 2), "<built-in method relu of type object at 0x7f>": (0, 0),
    "<string>(2): __init__": (0, 0), "torch/nn/modules/module.py(1747): _call_impl": (0, 0),
    "/opt/lib/python3.12/site-packages/torch/x.py(3): f": (0, 0), "/usr/lib/python3.12/json/x.py(3): f": (0, 0),
    "threading.py(3): run": (0, 0), "threading_of_mine.py(3): run": (2, 2), "torch_of_mine/a.py(3): f": (2, 2),
    "torch/optim/adamw.py(220): step": (3, 3), "torch/optim/lr_scheduler.py(3): step": (0, 0),
}  # fmt: skip


@pytest.mark.parametrize(("frame", "kinds"), FRAMES.items())
def test_frames_of_the_program_and_of_libraries_are_functions(frame, kinds):
    assert (kind_of(frame, "all"), kind_of(frame, "own")) == kinds
    assert kind_of(frame) == (kinds[0] if kinds[0] != 2 else 0)


# Names by brute force.


def called(seed):
    """Draw calls of modules that call others, some of them shared, on one thread; also of some on their own."""
    random = Random(seed)
    modules = [f"{random.choice('AB')}_{number}" for number in range(random.randint(1, 7))]
    inner = {m: [o for o in modules[place + 1 :] if random.random() < 0.4] for place, m in enumerate(modules)}
    events, now = [], 0

    def call(module):
        nonlocal now
        start = now = now + 1
        for other in inner[module] * random.choice((1, 1, 2)):
            call(other)
        now += 1
        events.append(Event(f"nn.Module: {module}", start, now))

    for module in [modules[0], *random.choices(modules, k=random.randint(0, 3))]:
        call(module)
    return [*events, launch(1, now + 2)]


def expected_names(events):
    """Name each call as docs/attribution.md says, one call at a time."""
    calls = sorted((e for e in events if e.correlation is None), key=lambda e: e.start)
    module = {e: e.name.removeprefix("nn.Module: ") for e in calls}
    around = {
        e: max((o for o in calls if o.start < e.start and e.end < o.end), key=lambda o: o.start, default=None)
        for e in calls
    }
    callers = defaultdict(list)
    for e in calls:
        if around[e]:
            callers[module[e]].append(module[around[e]])
    calls_others = {module[around[e]] for e in calls if around[e]}

    def name(own, caller):
        if caller is None and callers[own]:
            caller = callers[own][0]
        below = {m for m in module.values() if (caller in callers[m] if caller else not callers[m])}
        fellows = sorted((m for m in below if m[0] == own[0]), key=lambda m: int(m[2:]))
        if len(fellows) == 1:
            return own[0]
        place = fellows.index(own)
        return f"{own[0]} {place}" if calls_others & {*fellows} else f"{own[0]} #{place + 1}"

    return [(e.start, name(module[e], module[around[e]] if around[e] else None)) for e in calls]


@given(st.integers(0, 2**32))
def test_modules_are_named_below_their_callers(tmp_path_factory, seed):
    events = called(seed)
    trace = read(write(tmp_path_factory.getbasetemp() / "named.json", *events))
    names = [trace.names[name] for name in trace.ranges.name_id]
    assert sorted(zip(trace.ranges.start_ns.tolist(), names, strict=True)) == expected_names(events)


def modules(*names, at=10):
    """Return calls of modules, one inside the other, with a launch in the last."""
    frames = [Event(f"nn.Module: {name}", at + n, at + 90 - n) for n, name in enumerate(names)]
    return [*frames, launch(at, at + 40)]


def shown(path):
    report = renamed(summarize(attribute(read(path))))
    return [label(row.path) for row in report.ranges if row.self_kernels]


def test_screens_join_layers_and_keep_the_ordinals_of_leaves(tmp_path):
    layers = [
        modules("Net_0", f"Block_{n}", f"Linear_{2 * n + m}", at=200 * n + 100 * m)
        for n in range(2)
        for m in range(2)
    ]
    whole = Event("nn.Module: Net_0", 0, 500)
    events = [whole, *(e for layer in layers for e in layer[1:])]
    assert shown(write(tmp_path / "a.json", *events)) == ["Net > Block * > Linear #1", "Net > Block * > Linear #2"]


def test_calls_that_cross_everywhere_are_refused_at_once(tmp_path):
    stairs = [Event(f"nn.Module: A_{n}", n, 20_000 + n) for n in range(5_000)]
    with pytest.raises(TooTangled, match="open on one thread"):
        read(write(tmp_path / "a.json", *stairs, launch(1, 6_000)))


def test_number_of_the_trace_is_in_json(tmp_path):
    trace = read(write(tmp_path / "a.json", *modules("Net_3", "Linear_8")))
    assert trace.provenance.trace_modules == {"Net": "Net_3", "Net/Linear": "Linear_8"}
    assert trace.provenance.models == {"Net": {"Linear": "Linear"}}


# Recorded on a CPU.


@cache
def recorded(folder, *, stacks=True, checkpoints=False):
    return record(folder / f"{stacks}{checkpoints}.json", Net(checkpoints=checkpoints), stacks=stacks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recorded")


def by_phase(attribution):
    """Count the work of each module by phase."""
    counts = defaultdict(Counter)
    for _, path, phase in answers(attribution):
        counts[phase][path[1:]] += 1
    return counts


def test_backward_on_the_callers_own_thread_is_linked_to_modules(folder):
    counts = by_phase(attribute(read(recorded(folder))))
    layers = {path for path in counts["forward"] if path and path[-1].startswith("Linear")}
    assert len(layers) == 2 * 5 + 1
    assert layers <= {*counts["backward"]}
    assert counts.keys() <= {"forward", "backward", "optimizer", "other"}
    assert sum(counts["other"].values()) <= 2 * 4, "zeros for gradients, and the backward's first"


def test_checkpoints_are_backward_below_their_own_module(folder):
    attribution = attribute(read(recorded(folder, checkpoints=True)))
    again = attribution.recompute[attribution.node] & (attribution.node >= 0)
    paths = {path[1:3] for (_, path, _), is_again in zip(answers(attribution), again, strict=True) if is_again}
    # It ends with the last module, of whose inputs backward needs the values. A node spends time in blocks, too.
    parts = {(f"Block {n}", part) for n in range(2) for part in ("Attention", "Sequential")}
    assert parts <= paths <= parts | {("Block 0",), ("Block 1",)}
    assert {phase for (_, _, phase), is_again in zip(answers(attribution), again, strict=True) if is_again} == {
        "backward"
    }


@pytest.mark.parametrize("missing", ["flows", "Fwd thread id", "numbers"])
def test_traces_that_lack_links_keep_their_forward(folder, tmp_path, missing):
    trace = json.loads(recorded(folder).read_text())
    events = trace["traceEvents"]
    if missing == "flows":
        events[:] = [event for event in events if event.get("cat") != "fwdbwd"]
    for event in events:
        for key in ("Fwd thread id", *(("Sequence number",) if missing == "numbers" else ())):
            event.get("args", {}).pop(key, None) if missing != "flows" else None
    path = tmp_path / "lacking.json"
    path.write_text(json.dumps(trace))
    whole, lacking = (by_phase(attribute(read(p))) for p in (recorded(folder), path))
    in_modules = {path: n for path, n in whole["forward"].items() if path}
    assert {path: n for path, n in lacking["forward"].items() if path} == in_modules
    assert (missing == "numbers") == (whole["backward"] != lacking["backward"])


def test_forward_of_a_plain_trace_is_what_made_nodes_of_a_backward_and_what_lies_between(folder):
    counts = by_phase(attribute(read(recorded(folder, stacks=False))))
    with_modules = by_phase(attribute(read(recorded(folder))))
    number = {phase: sum(of_phase.values()) for phase, of_phase in counts.items()}
    wanted = {phase: sum(of_phase.values()) for phase, of_phase in with_modules.items()}
    assert number["optimizer"] == wanted["optimizer"]
    assert number["forward"] + number.get("other", 0) == wanted["forward"] + wanted.get("other", 0)
    assert number.get("other", 0) <= 2 * 8, "operators around the first and the last, and the gradient's ones"
    assert number["backward"] == wanted["backward"]


def test_annotation_writes_no_module_into_pytorchs_own_traces(tmp_path):
    plain, annotated = tmp_path / "plain.json", tmp_path / "annotated.json"
    record(plain, Net())
    net = Net()
    with nk.annotate_modules(net):
        record(annotated, net)

    def calls(path):
        trace = read(path)
        return Counter(trace.names[name] for name in trace.ranges.name_id[trace.ranges.of_model])

    assert calls(plain) == calls(annotated)


# What calls and updates tell.


def test_calls_without_autograds_numbers_ran_without_gradient(tmp_path):
    def call(name, at, seq):
        return [
            Event(f"nn.Module: {name}", at, at + 50),
            Event("aten::mm", at + 5, at + 40, "cpu_op", seq=seq),
            launch(at, at + 9),
        ]

    trace = read(write(tmp_path / "a.json", *call("Student_0", 10, 3), *call("Teacher_0", 100, None)))
    category = {
        trace.names[n]: c for n, c in zip(trace.ranges.name_id, trace.ranges.category.tolist(), strict=True)
    }
    assert (category["Student"], category["Teacher"]) == (MODEL_FORWARD, NO_GRADIENT)
    alone = read(write(tmp_path / "b.json", *call("Teacher_0", 100, None)))
    assert set(alone.ranges.category[alone.ranges.of_model].tolist()) == {MODEL_FORWARD}, "no number in the trace"


@pytest.mark.parametrize("marked", [True, False])
def test_frames_of_updates_are_the_optimizer_unless_pytorch_marked_it(tmp_path, marked):
    mark = Event("Optimizer.step#AdamW.step", 12, 88, "user_annotation")
    events = [Event("torch/optim/adamw.py(220): step", 10, 90), *([mark] if marked else []), launch(1, 20)]
    (how, path, phase) = answers(attribute(read(write(tmp_path / "a.json", *events))))[0]
    assert (how, phase) == ("own", "optimizer")
    assert path == (("Optimizer.step#AdamW.step",) if marked else (range_name(events[0].name),))


def test_modules_called_inside_the_engine_are_computed_again(tmp_path):
    engine = Event(f"{ENGINE}CheckpointBackward0", 10, 200, "cpu_op")
    attribution = attribute(read(write(tmp_path / "a.json", engine, *modules("Block_0", "Linear_0", at=50))))
    assert answers(attribution) == [("own", ("Block", "Linear"), "backward")]
    assert attribution.recompute[attribution.node].all()


# Functions.


def test_functions_hold_all_work_backward_by_its_forward(folder):
    attribution = attribute(read(recorded(folder), functions="all"))
    lines = [line.rsplit(" ", 1) for line in function_stacks(attribution)]
    assert sum(int(ns) for _, ns in lines) == attribution.trace.work.duration_ns.sum()
    innermost = {(stack.split(";")[0], stack.rsplit(": ")[-1]) for stack, _ in lines}
    assert {("forward", "forward"), ("backward", "forward"), ("optimizer", "record")} <= innermost
    phases = [by_phase(attribute(read(recorded(folder), functions=f))) for f in ("", "all")]
    without, with_functions = ({phase: counts.total() for phase, counts in found.items()} for found in phases)
    assert without == with_functions


def test_reports_without_functions_are_refused(folder, tmp_path):
    attribution = attribute(read(recorded(folder, stacks=False), functions="all"))
    with pytest.raises(ReportError, match="with_stack=True"):
        list(function_stacks(attribution))


# Names from a file.


@pytest.mark.parametrize("order", ["calls", "definition"])
def test_names_of_a_file_are_those_of_the_model(tmp_path, order):
    net = Net()
    trace = read(record(tmp_path / "a.json", net))
    if order == "calls":
        with nk.names(net, tmp_path / "names.json"):
            net(torch.randn(2, 16))
    else:
        nk.names(net, tmp_path / "names.json")
    named = with_names(trace, tmp_path / "names.json")
    rows = renamed(summarize(attribute(named))).ranges
    places = {label(row.path[1:]) for row in rows if "attn" in label(row.path)}
    assert places == {f"Net > layers.*.attn{part}" for part in ("", ".q_proj", ".k_proj", ".o_proj")}
    shapes = {label(row.path).class_name for row in rows if label(row.path).endswith("k_proj")}
    assert shapes == ({"Linear 16→8"} if order == "calls" else {"Linear 16→16"})
    assert any("order of their definition" in note for note in named.notes) == (order == "definition")
    assert named.provenance.trace_modules["Net/layer 1/mlp/mlp 0"].startswith("Linear_")


def test_a_class_that_is_called_more_often_than_listed_keeps_its_name(tmp_path):
    path = write(
        tmp_path / "a.json", Event("nn.Module: Net_0", 0, 500), *modules("Linear_0"), *modules("Linear_1", at=200)
    )
    (tmp_path / "names.json").write_text(
        json.dumps({"model": "Net", "modules": [{"path": "head", "class": "Linear", "name": "head"}]})
    )
    named = with_names(read(path), tmp_path / "names.json")
    assert {"Linear #1", "Linear #2"} <= {*named.names}
    assert "2 modules keep the names of their classes" in named.notes[-1]


@pytest.mark.parametrize(("text", "error"), [("[1]", NotAReport), ("{", NotAReport), (None, UsageError)])
def test_files_without_names_are_refused(tmp_path, text, error):
    path = tmp_path / "names.json"
    if text:
        path.write_text(text)
    with pytest.raises(error):
        with_names(read(write(tmp_path / "a.json", *modules("Net_0"))), path)


@pytest.mark.parametrize("name", ["llama", "function"])
def test_parts_have_as_many_kernels_as_annotation_finds_in_the_same_program(tmp_path, name):
    if not (SHARED / "stacks").is_dir():
        pytest.skip("needs the traces of ../shared/stacks, which this checkout has not")
    path, truth = tmp_path / "trace.json", json.loads((SHARED / "stacks/truth.json").read_text())[name]
    path.write_bytes(lzma.decompress((SHARED / f"stacks/{name}.json.xz").read_bytes()))
    parts, phases, shared = Counter(), Counter(), 0
    for row in summarize(attribute(read(path))).kernels:
        if row.kind == "kernel":
            parts[row.phase, tuple(re.sub(r"ProfilerStep#.*", "step", part) for part in row.path)] += row.count
            phases[row.phase] += row.count
    assert phases == truth["phases"]
    for phase, counts in truth["by"].items():
        found = Counter(count for (of_phase, _), count in parts.items() if of_phase == phase)
        shared += sum(count * often for count, often in (found & Counter(counts)).items())
    assert shared >= 0.95 * truth["kernels in trace"]


def test_a_trace_whose_stacks_launch_nothing_has_no_lines_in_json(tmp_path, capsys):
    beside = Event("train.py(12): main", 0, 100), Event("cudaMalloc", 10, 11, "cuda_runtime")
    elsewhere = launch(1, 500, thread=9), Event("aten::mm", 490, 520, "cpu_op", 9)
    path = write(tmp_path / "trace.json", *beside, *elsewhere)
    assert kernels.main([str(path), "--format", "json"]) == 0
    assert "lines" not in json.loads(capsys.readouterr().out)
