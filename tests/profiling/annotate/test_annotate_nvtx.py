"""What a tool that is attached through NVTX receives; a small one is compiled for the purpose."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from nvtx_kernels.analysis.vocabulary import SETTING_HOOKS
from nvtx_kernels.profiling import annotate

ROOT = Path(__file__).parents[3]
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler to build a tool for NVTX with"),
    pytest.mark.skipif(sys.platform != "linux", reason="the tool for NVTX is written for Linux"),
]

TRAINING = """
import torch
from model.config import CONFIGS
from model.transformer import TransformerLM, cross_entropy
from profiling import annotate

model = TransformerLM(CONFIGS["tiny"], 16)
ids_BT = torch.zeros(1, 16, dtype=torch.long)
with annotate.range("measure"):
    annotate.mark('{"size": "tiny"}')
    for index in range(3):
        with annotate.range("step", payload=index):
            with annotate.range("forward"):
                loss = cross_entropy(model(ids_BT), ids_BT)
            with annotate.range("backward"):
                loss.backward()
            with annotate.range("optimizer", payload=0.5):
                pass
"""

FAILING = """
import threading, torch
from profiling import annotate

def fail():
    weight = torch.ones(2, 2, requires_grad=True)
    weight.register_hook(lambda gradient: 1 / 0)
    with annotate.region("part") as part:
        x = part.output(weight * 2)
    with annotate.range("backward"):
        x.sum().backward()

def twice():
    for _ in range(2):
        try:
            fail()
        except ZeroDivisionError:
            pass
    with annotate.range("after"):
        pass

twice()
thread = threading.Thread(target=twice)
thread.start()
thread.join()
"""

ODD = """
import numpy
from profiling import annotate

for text in ("surrogate \\ud800", "snow \u2603", "", "x" * 100_000):
    annotate.mark(text)
    with annotate.range(text):
        pass
for payload in (2**63, -(2**63), 2**70, True, numpy.int64(3), numpy.float32(1), [1], "text", float("nan")):
    with annotate.range("payload", payload=payload):
        pass
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    """Path of the compiled tool."""
    library = tmp_path_factory.mktemp("tool") / "nvtx_tool.so"
    source = Path(__file__).with_name("nvtx_tool.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.fixture(scope="module")
def events_of(tool, tmp_path_factory):
    """Run a program with the tool attached and return the events, as lists of fields."""

    def run(program, **environment):
        lines = tmp_path_factory.mktemp("events") / "lines"
        attached = {"NVTX_INJECTION64_PATH": str(tool), "NVTX_LINES": str(lines), "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | attached | environment)
        return [line.split("\t") for line in lines.read_text().splitlines()] if lines.exists() else []

    return run


@pytest.fixture(scope="module")
def training(events_of):
    """Events of three training steps of the tiny model."""
    return events_of(TRAINING)


def balanced(events):
    """Follow pushes and pops per thread; return how deep each thread ends, and the paths pushed."""
    stacks, paths = {}, Counter()
    for kind, thread, *rest in (event for event in events if event[0] in {"push", "pop"}):
        stack = stacks.setdefault(thread, [])
        if kind == "push":
            stack.append(rest[-1])
            paths["/".join(stack)] += 1
        else:
            stack.pop()
    return {thread: len(stack) for thread, stack in stacks.items()}, paths


def test_ranges_arrive_in_one_domain_registered_and_balanced(training):
    depths, paths = balanced(training)
    assert {event[1] for event in training if event[0] == "domain"} == {annotate.DOMAIN}
    assert {event[6] for event in training if event[0] == "push"} == {"1"}
    assert set(depths.values()) == {0}
    assert paths["measure/step/backward/layer 1/attention/computing softmax"] == 3
    assert paths["measure/step/forward/layer 1/attention/computing softmax"] == 3


def test_strings_are_few_and_do_not_grow_with_steps(training):
    strings = Counter(event[1] for event in training if event[0] == "string")
    assert set(strings.values()) == {1}
    # 4 around the layers, 18 in each, its own name; 5 phases, one mark, and what sets hooks.
    assert len(strings) == 4 + 18 + 2 + 5 + 1 + 1


def test_payloads_categories_and_colours_tell_what_a_range_is(training):
    names = {event[1]: event[2] for event in training if event[0] == "category"}
    pushed = {(names[event[3]], event[4], event[5], event[7]) for event in training if event[0] == "push"}
    assert set(names.values()) == {"phase", "model/forward", "model/backward", "timeline"}
    assert {("phase", "17becf", "2", "step"), ("phase", "9467bd", "0.5", "optimizer")} <= pushed
    assert {
        ("model/forward", "2ca02c", "1", "layer 1"),
        ("model/backward", "ff7f0e", "1", "layer 1"),
    } <= pushed


def test_the_time_of_setting_hooks_is_drawn_once_a_backward_before_its_ranges(training):
    kinds = [(event[0], event[-1]) for event in training if event[0] in {"push", "start", "end"}]
    begins = [place for place, event in enumerate(kinds) if event == ("start", SETTING_HOOKS)]
    assert [kinds[place - 1][1] for place in begins] == ["backward"] * 3
    assert [kinds[place + 1] for place in begins] == [("end", annotate.DOMAIN)] * 3


def test_mark_arrives_in_the_domain_with_its_text(training):
    marks = [event[1:] for event in training if event[0] == "mark"]
    assert marks == [[annotate.DOMAIN, '{"size": "tiny"}']]


@pytest.mark.slow
def test_failing_backward_leaves_the_tool_balanced(events_of):
    events = events_of(FAILING)
    depths, paths = balanced(events)
    assert set(depths.values()) == {0}
    assert paths["part"] == paths["backward/part"] == 4
    assert paths["after"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["NVTX_KERNELS_OFF", "NVTX_DISABLE"])
def test_switch_keeps_everything_from_the_tool(events_of, switch):
    kinds = {event[0] for event in events_of(TRAINING, **{switch: "1"})}
    assert kinds <= {"domain"}


def test_odd_texts_and_payloads_neither_raise_nor_unbalance(events_of):
    events = events_of(ODD)
    payloads = [event[5] for event in events if event[0] == "push" and event[-1] == "payload"]
    assert payloads == ["9.22337e+18", str(-(2**63)), "1.18059e+21", "1", "-", "-", "-", "-", "nan"]
    assert set(balanced(events)[0].values()) == {0}
