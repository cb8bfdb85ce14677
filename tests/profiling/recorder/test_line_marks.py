"""The mark of a traced step: rows of each thread, those of autograd's from the nodes that the profiler saw."""

import base64
import json
import zlib
from array import array

import numpy as np
import pytest
from nvtx_kernels.analysis.trace import Launches, Provenance, Ranges, Thread, Trace, Work
from nvtx_kernels.profiling.lines import StepLines
from nvtx_kernels.profiling.lines.line_log import LineLog
from nvtx_kernels.profiling.recorder.line_marks import MARK, mark_of, saw, short_name, text_of
from nvtx_kernels.profiling.recorder.seen import SEQUENCE_BITS, Blocks, Seen

MAIN, AUTOGRAD, OTHER = 11, 77, 99
EMPTY = np.empty(0, np.int64)
ENGINE = "autograd::engine::evaluate_function: "


def traced():
    """Return lines of a step: train.py 10 (a sine), 11 (a cosine), 12 (backward)."""
    lines = StepLines()
    log = lines.log = LineLog()
    log.thread = MAIN
    code = compile("pass", "/home/me/train.py", "exec")
    nodes = [log.new_node(-1, code, number) for number in (10, 11, 12)]
    log.rows = array("q", [100, nodes[0], 200, nodes[1], 300, nodes[2], 900, nodes[0]])
    lines.span_ns, lines.folder = (100, 1000), "/home/me"
    lines.begun.extend((0, 100))
    return lines


def block(start, end, thread, name, number=-1, forward=0, *, counted_in=MAIN):
    sequence = (counted_in + 1) << SEQUENCE_BITS | number if number >= 0 else -1
    return start, end, [MAIN, AUTOGRAD, OTHER].index(thread), name, sequence, forward


def seen(*blocks):
    """Return what a session saw, of operators alone."""
    texts = [*dict.fromkeys(row[3] for row in blocks)]
    columns = [*zip(*blocks, strict=True)]
    start, end, thread, sequence, forward = (np.array(columns[place], np.int64) for place in (0, 1, 2, 4, 5))
    name = np.array([texts.index(text) for text in columns[3]], np.int64)
    operators = Blocks(start, end, thread, name, sequence, np.ones(len(start), np.bool_), forward)
    threads = [Thread(0, tid) for tid in (MAIN, AUTOGRAD, OTHER)]
    trace = Trace(Work.empty(), Launches.empty(), Ranges.empty(), texts, threads, [], [], Provenance(""))
    return Seen(trace, 0, operators, None)


def rows_of(text):
    """Return the rows of a mark by thread: when, at which line, in the backward of which line (0 for none)."""
    content = json.loads(text.removeprefix(MARK))
    table = np.frombuffer(zlib.decompress(base64.b64decode(content["data"])), "<i8").reshape(4, -1).copy()
    times = np.cumsum(table[1]) + 2000
    line = [content["frames"][places[0]][1] if places else 0 for places in content["stacks"]]
    rows = {}
    for tid, at, stack, forward in zip(table[0].tolist(), times.tolist(), *table[2:].tolist(), strict=True):
        rows.setdefault(tid, []).append(
            (at, line[stack] if stack >= 0 else 0, line[forward] if forward >= 0 else 0)
        )
    return content, rows


FORWARD = [block(110, 120, MAIN, "aten::sin", 5), block(210, 220, MAIN, "aten::cos", 6)]


@pytest.mark.parametrize("counted_in", [MAIN, 0], ids=["with flows", "without"])
def test_autograds_thread_is_in_the_backward_of_a_nodes_line(counted_in):
    nodes = [
        block(400, 440, AUTOGRAD, f"{ENGINE}CosBackward0", 6, 1, counted_in=counted_in),
        block(405, 430, AUTOGRAD, "CosBackward0", 6, 1, counted_in=counted_in),
        block(450, 490, AUTOGRAD, f"{ENGINE}SinBackward0", 5, 1, counted_in=counted_in),
        block(455, 480, AUTOGRAD, "SinBackward0", 5, 1, counted_in=counted_in),
        block(500, 510, AUTOGRAD, f"{ENGINE}torch::autograd::AccumulateGrad"),
    ]
    _, rows = rows_of(text_of(traced(), seen(*FORWARD, *nodes), 2000))
    assert rows[MAIN] == [(100, 10, 0), (200, 11, 0), (300, 12, 0), (900, 10, 0)]
    assert rows[AUTOGRAD] == [
        (400, 12, 11), (440, 12, 0), (450, 12, 10), (490, 12, 0), (500, 12, 10), (510, 12, 0),
    ]  # fmt: skip


def test_a_node_of_another_threads_operator_has_no_line():
    nodes = [block(400, 440, AUTOGRAD, "SinBackward0", 5, 2, counted_in=OTHER)]
    _, rows = rows_of(text_of(traced(), seen(*FORWARD, *nodes), 2000))
    assert AUTOGRAD not in rows


def test_of_operators_with_one_number_the_last_made_the_node():
    inner = [block(212, 214, MAIN, "aten::cos_", 5)]
    node = [block(400, 440, AUTOGRAD, f"{ENGINE}SinBackward0"), block(400, 440, AUTOGRAD, "SinBackward0", 5, 1)]
    _, rows = rows_of(text_of(traced(), seen(*FORWARD, *inner, *node), 2000))
    assert rows[AUTOGRAD][0] == (400, 12, 11)


def test_python_that_runs_in_a_node_of_the_main_thread_is_at_its_own_line():
    lines = traced()
    node = lines.log.new_node(2, compile("pass", "/home/me/train.py", "exec"), 40)
    lines.log.rows = array("q", [100, 0, 200, 1, 300, 2, 420, node, 430, 2, 900, 0])
    nodes = [block(400, 440, MAIN, f"{ENGINE}CosBackward0"), block(400, 440, MAIN, "CosBackward0", 6, 1)]
    _, rows = rows_of(text_of(lines, seen(*FORWARD, *nodes), 2000))
    assert rows[MAIN][3:7] == [(400, 12, 11), (420, 40, 0), (430, 12, 11), (440, 12, 0)]


def test_the_mark_has_times_from_its_own_and_no_path_of_the_machine():
    content, _ = rows_of(text_of(traced(), None, 2000))
    assert content["begun"] == [-2000, -1900]
    assert content["span"] == [-1900, -1000]
    assert {file for file, *_ in content["frames"]} == {"train.py"}


def test_a_session_saw_the_step_or_did_not():
    assert saw(seen(*FORWARD), traced())
    assert not saw(seen(block(10, 20, MAIN, "aten::sin", 5)), traced())


def test_what_cannot_be_written_is_a_reason_and_no_error():
    lines = traced()
    lines.log.rows = None
    (event,) = mark_of(lines, None)
    assert json.loads(event.name.removeprefix(MARK))["reason"] == "what was traced could not be written"


NAMES = [
    ("/home/me/project/models/net.py", "/home/me/project", "models/net.py"),
    ("/home/me/project/train.py", "/home/me/project", "train.py"),
    ("train.py", "/home/me/project", "train.py"),
    ("./train.py", "/home/me/project", "train.py"),
    ("/home/me/other/lib/net.py", "/home/me/project", "lib/net.py"),
    ("/opt/lib/python3.12/site-packages/timm/layers/mlp.py", "/home/me", "timm/layers/mlp.py"),
    ("C:\\me\\project\\train.py", "C:\\me\\project", "train.py"),
    ("<ipython-input-3-0a1b>", "/home/me", "<ipython-input-3-0a1b>"),
]


@pytest.mark.parametrize(("file", "folder", "short"), NAMES)
def test_files_are_called_as_from_the_working_folder(file, folder, short):
    assert short_name(file, folder) == short
