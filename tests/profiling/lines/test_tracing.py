"""Tracing one step by line: what is logged, where it keeps away, and that it leaves nothing behind."""

import json
import os
import sys
import threading
import time
from itertools import pairwise

import pytest
from nvtx_kernels.profiling import lines as lines_room
from nvtx_kernels.profiling.lines import SWITCH, StepLines
from nvtx_kernels.profiling.lines.by_monitoring import ByMonitoring
from nvtx_kernels.profiling.lines.by_settrace import BySettrace
from nvtx_kernels.profiling.lines.line_log import MOST_FRAMES, function_of
from nvtx_kernels.profiling.lines.user_code import COMPILER, LIBRARY, USER, kind_of

HERE = __file__
TRACERS = [BySettrace, *([ByMonitoring] if hasattr(sys, "monitoring") else [])]


@pytest.fixture(params=TRACERS, ids=lambda kind: kind.__name__)
def tracer(request, monkeypatch):
    """Trace by each of the ways that this Python has."""
    monkeypatch.setattr(lines_room, "ByMonitoring", request.param)
    monkeypatch.setattr(lines_room, "BySettrace", request.param)
    return request.param


def traced(step, *, packages=tuple):
    """Trace the second of three steps."""
    lines = StepLines(packages=packages)
    for number in range(3):
        lines.step_begins(is_last_of_warm_up=number == 1)
        step()
        lines.step_ends()
    return lines


def reached(lines):
    """Return the lines of this file that were reached, in turn, as their functions and places in these."""
    log = lines.log
    stacks = [log.stacks[node] for node in log.rows[1::2]]
    return [stack[0].function for stack in stacks if stack and stack[0].file == HERE]


def calls_a_library():
    json.dumps({"a": [1, 2]}, indent=2)
    return sorted([2, 1], key=lambda number: -number)


def generates():
    yield from (number for number in range(2))


def fails():
    raise KeyError


def does_much():
    total = sum(generates())
    try:
        fails()
    except KeyError:
        total += 1
    return total


def test_lines_of_the_users_functions_are_logged(tracer):
    functions = reached(traced(calls_a_library))
    assert functions[0] == "traced"
    assert functions.count("<lambda>") == 2
    assert set(functions) == {"traced", "calls_a_library", "<lambda>"}


def test_a_caller_is_where_it_was_after_its_call_has_returned_or_raised(tracer):
    lines = traced(does_much)
    stacks = [lines.log.stacks[node] for node in lines.log.rows[1::2]]
    after = [following for stack, following in pairwise(stacks) if stack[0].function == "fails"]
    assert [stack[0].function for stack in after] == ["does_much"]
    inner = next(stack for stack in stacks if stack[0].function == "<genexpr>")
    assert [line.function for line in inner[:4]] == ["<genexpr>", "generates", "does_much", "traced"]


def comprehends():
    return [{name.upper() for name in row} for row in ("ab", "c")]


def test_a_comprehension_is_of_the_function_around_it(tracer):
    assert set(reached(traced(comprehends))) == {"traced", "comprehends"}
    assert function_of(compile("[x for x in ()]", "train.py", "eval")) == "<module>"


def test_a_stack_has_few_frames_from_the_inside(tracer):
    def deep(n):
        return n if n == 0 else deep(n - 1)

    lines = traced(lambda: deep(30))
    assert max(len(lines.log.stacks[node]) for node in lines.log.rows[1::2]) == MOST_FRAMES


def test_a_recursion_takes_no_more_room_than_its_lines(tracer):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    lines = traced(lambda: fibonacci(14))
    assert len(lines.log.rows) > 2000
    assert len(lines.log.stacks) < 40


def test_nothing_is_left_behind(tracer):
    limit = sys.getrecursionlimit()
    traced(does_much)
    assert sys.gettrace() is None
    assert sys._getframe().f_trace is None
    assert sys.getrecursionlimit() == limit
    assert not hasattr(sys, "monitoring") or not any(map(sys.monitoring.get_tool, range(6)))


def test_a_step_that_ends_inside_a_call_leaves_no_tracing_on_its_frames(tracer):
    lines, frames = StepLines(), []

    def step(number):
        frames.append(sys._getframe())
        lines.step_ends()
        lines.step_begins(is_last_of_warm_up=number == 1)

    for number in range(3):
        step(number)
    assert lines.log is not None
    assert all(frame.f_trace is None for frame in frames)


def test_the_first_step_is_not_traced():
    lines = StepLines()
    lines.step_begins(is_last_of_warm_up=True)
    assert sys.gettrace() is None
    assert (lines.log, lines.reason, len(lines.begun)) == (None, "", 1)


def test_another_tracer_is_left_alone():
    events = []

    def other(frame, event, argument):
        events.append(event)

    sys.settrace(other)
    try:
        lines = traced(does_much)
        assert sys.gettrace() is other
    finally:
        sys.settrace(None)
    assert (lines.log, lines.reason) == (None, "another tracer was running, such as a debugger or coverage")


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.12 has sys.monitoring")
def test_a_tool_that_monitors_is_left_alone():
    sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "other")
    try:
        lines = traced(does_much)
        assert sys.monitoring.get_tool(sys.monitoring.COVERAGE_ID) == "other"
    finally:
        sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
    assert lines.log is None


def test_a_tracer_that_is_set_meanwhile_stays(tracer):
    def other(frame, event, argument):
        return None

    try:
        traced(lambda: sys.settrace(other))
        assert sys.gettrace() is other
    finally:
        sys.settrace(None)


def test_lines_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    assert traced(does_much).reason == "lines were switched off"


def test_a_step_that_takes_too_long_is_traced_in_part(tracer, monkeypatch):
    monkeypatch.setattr(lines_room, "LONGEST_NS", 1_000_000)

    def slow():
        for _ in range(10):
            time.sleep(0.005 if lines.begun and len(lines.begun) == 2 else 0)

    lines = StepLines()
    for number in range(3):
        lines.step_begins(is_last_of_warm_up=number == 1)
        slow()
        lines.step_ends()
    assert lines.reason == "the step in which lines were traced took too long"
    assert lines.log.rows
    assert sys.gettrace() is None


def test_a_step_that_compiles_is_not_traced_on(tracer, tmp_path):
    module = tmp_path / "torch/_dynamo/convert_frame.py"
    code = compile("def compiles(): return 1", str(module), "exec")
    names = {}
    exec(code, names)
    lines = traced(names["compiles"])
    assert (lines.log, lines.reason) == (None, "the step in which lines were traced compiled code")


def test_other_threads_are_not_traced(tracer):
    told = []

    def work():
        told.append(sys.gettrace())
        does_much()

    def step():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert set(reached(traced(step))) == {"traced", "step"}
    assert told == [None] * 3


def test_a_step_may_end_on_another_thread(tracer):
    lines = StepLines()
    for number in range(2):
        lines.step_begins(is_last_of_warm_up=number == 1)
    ending = threading.Thread(target=lines.step_ends)
    ending.start()
    ending.join()
    does_much()
    assert lines.log.rows
    assert sys.gettrace() is None
    assert sys._getframe().f_trace is None


def test_a_forked_child_is_not_traced(tracer):
    def step():
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            free = sys.gettrace() is None and sys._getframe().f_trace is None
            os.write(writing, b"free" if free else b"traced")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert pipe.read() == "free"

    assert "step" in reached(traced(step))


def test_a_program_may_recurse_as_deep_as_ever(tracer):
    def depth(n):
        return 0 if n == 0 else 1 + depth(n - 1)

    def room():
        frame, count = sys._getframe(), 0
        while frame is not None:
            frame, count = frame.f_back, count + 1
        return sys.getrecursionlimit() - lines_room.HEADROOM - count - 20

    assert traced(lambda: depth(room())).reason == ""


def test_an_error_of_tracing_reaches_no_program(tracer, monkeypatch):
    monkeypatch.setattr(lines_room.line_log.LineLog, "kind", lambda *_: 1 / 0)
    lines = traced(does_much)
    assert (lines.log, lines.reason) == (None, "tracing failed")


FILES = [
    (HERE, USER),
    ("/home/me/train.py", USER),
    ("train.py", USER),
    ("<ipython-input-3-abc>", USER),
    ("/tmp/ipykernel_77/12.py", USER),
    ("/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", LIBRARY),
    ("/usr/lib/python3/dist-packages/numpy/core.py", LIBRARY),
    (os.__file__, LIBRARY),
    (json.__file__, LIBRARY),
    (lines_room.__file__, LIBRARY),
    ("<string>", LIBRARY),
    ("<eval_with_key>.7", LIBRARY),
    ("/tmp/torchinductor_me/ab/cab.py", LIBRARY),
    ("/venv/lib/python3.12/site-packages/torch/_dynamo/convert_frame.py", COMPILER),
]


@pytest.mark.parametrize(("file", "kind"), FILES)
def test_a_file_is_the_users_a_librarys_or_a_compilers(file, kind):
    assert kind_of(file) == kind


def test_the_model_of_an_installed_package_may_be_the_users():
    file = "/venv/lib/python3.12/site-packages/transformers/models/llama/modeling_llama.py"
    assert (kind_of(file), kind_of(file, {"transformers"})) == (LIBRARY, USER)
