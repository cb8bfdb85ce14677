"""The lines of one step's calls, for the calls of all steps."""

import json

import numpy as np
import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.account.lines import lines_of_host, lines_of_work
from nvtx_kernels.analysis.account.sums import idle_places
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.readers import read

from tests.analysis.making.building import AUTOGRAD, MAIN, MARK, Launch, Range, build
from tests.analysis.making.lined import AT_13, AT_15, LINES, LOG, SYNC, US, mark, steps, traced_report


@pytest.fixture
def attribution(tmp_path):
    return attribute(read(traced_report(tmp_path)))


def lines_of(attribution, step, column=None):
    """Return the line numbers of a step's calls by time; None where unknown."""
    return [source and source[0] for source in sources_of(attribution, step, column)]


def sources_of(attribution, step, column=None):
    """Return these with that of the call of backward; `column` is of where calls were made unless given."""
    trace, lines = attribution.trace, attribution.lines
    column = lines.of_launch if column is None else column
    begins = trace.launches.start_ns // (1000 * US)
    order = np.argsort(trace.launches.start_ns, kind="stable")
    found = []
    for row in order[begins[order] == step].tolist():
        number = column[row]
        source = lines.sources[number] if number >= 0 else None
        found.append(source and (source.lines[0].line, source.backward and source.backward.line))
    return found


TRACED_STEP = [(12, None), (13, None), (14, None), (12, None), (12, 12), (13, 12)]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_same_call_of_another_step_has_the_line_of_the_traced_one(attribution, step):
    assert sources_of(attribution, step) == TRACED_STEP


def test_a_call_more_of_a_kind_has_no_line_and_the_others_have_theirs(attribution):
    assert sources_of(attribution, 3) == [*TRACED_STEP[:2], None, *TRACED_STEP[2:]]


def test_a_step_of_which_the_trace_has_no_begin_has_no_lines(tmp_path):
    rows = steps()
    rows["ranges"].append(mark([(t, 1000 + at, s, f) for t, at, s, f in LOG], 4500, [1000, 2000], (1000, 2000)))
    attribution = attribute(read(build(tmp_path, **rows)))
    assert sources_of(attribution, 0) == [None] * 6
    assert sources_of(attribution, 1) == TRACED_STEP


def test_a_pause_is_at_the_line_at_which_the_program_was_the_longest(tmp_path):
    partition = opened(traced_report(tmp_path)).partition
    places = {
        place.cause: place
        for place in idle_places(partition, lambda path: path)
        if place.path[-1:] == ("forward",)
    }
    pause = places["host code"]
    assert (pause.after, pause.lines[0].line.line) == ("cudaStreamSynchronize", 15)
    assert places["synchronization"].lines[0].called == "train.py:14 (train)"


#: What the threads do besides in the traced step, µs: where the program is before each of its six calls.
BEFORE = {
    "nothing": ([], [12, 13, 14, 15, 12, 13]),
    "a batch is made at the step's begin": (
        [(MAIN, 2, 3, -1), (MAIN, 48, 0, -1), (MAIN, 930, 1, -1), (MAIN, 965, 2, -1)],
        [15, 13, 14, 15, 12, 13],
    ),
    "a batch is made at its end": ([(MAIN, 910, 2, -1)], [14, 13, 14, 15, 12, 13]),
    "a loop stays at its lines for a short time each": (
        [(MAIN, 450 + 70 * turn + at, stack, -1) for turn in range(3) for at, stack in ((1, AT_15), (60, AT_13))],
        [12, 13, 14, 15, 12, 13],
    ),
}


@pytest.mark.parametrize("case", BEFORE)
def test_a_pause_has_the_line_of_the_thread_that_makes_the_next_call(tmp_path, case):
    more, expected = BEFORE[case]
    log = [(thread, 1000 + at, stack, forward) for thread, at, stack, forward in sorted([*LOG, *more])]
    rows = steps()
    rows["ranges"].append(mark(log, 4500, [0, 1000, 2000, 3000, 4000], (1000, 2000)))
    attribution = attribute(read(build(tmp_path, **rows, thread_names={AUTOGRAD: "pt_autograd_0"})))
    assert lines_of(attribution, 1, attribution.lines.before_launch) == expected
    assert lines_of(attribution, 2, attribution.lines.before_launch) == expected


def test_a_pause_keeps_its_line_where_the_next_call_is_only_in_the_traced_step(tmp_path):
    log = [(thread, 1000 + at, stack, forward) for thread, at, stack, forward in LOG]
    rows = steps()
    rows["launches"].append(Launch(90, 1795 * US, 1797 * US, name="cudaEventSynchronize_v3020"))
    rows["ranges"].append(mark(log, 4500, [0, 1000, 2000, 3000, 4000], (1000, 2000)))
    attribution = attribute(read(build(tmp_path, **rows, thread_names={AUTOGRAD: "pt_autograd_0"})))
    assert lines_of(attribution, 1, attribution.lines.before_launch) == [12, 13, 14, 15, 12, 12, 13]
    assert lines_of(attribution, 2, attribution.lines.before_launch) == [12, 13, 14, 15, 12, 13]


def test_a_wait_behind_the_last_work_of_all_has_its_line(tmp_path):
    rows = steps()
    waits = [Launch(90 + step, (1000 * step + 905) * US, (1000 * step + 915) * US, name=SYNC) for step in range(4)]
    rows["launches"] += waits
    log = [(thread, 1000 + at, stack, forward) for thread, at, stack, forward in [*LOG, (MAIN, 900, 3, -1)]]
    rows["ranges"].append(mark(log, 4500, [0, 1000, 2000, 3000, 4000], (1000, 2000)))
    attribution = attribute(read(build(tmp_path, **rows)))
    assert [lines_of(attribution, step)[-1] for step in range(4)] == [15] * 4


def test_the_first_answer_names_the_line(tmp_path, capsys):
    assert kernels.main([str(traced_report(tmp_path))]) == 0
    assert "after cudaStreamSynchronize, as in .item()" in (shown := " ".join(capsys.readouterr().out.split()))
    assert "at train.py:15 (train)" in shown


def test_backward_is_ranked_by_the_line_of_its_forward(tmp_path, capsys):
    assert (
        kernels.main([str(traced_report(tmp_path)), "--by", "line", "--phase", "backward", "--format", "csv"]) == 0
    )
    rows = [line.split(",")[2:5] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["12", "train", "backward"], ["13", "train", "backward"]]


def test_lines_of_work_and_of_calls_are_told_if_most_are_known(attribution):
    work = attribution.trace.work
    longest, *_ = lines_of_work(attribution, np.flatnonzero(work.start_ns < 3000 * US))
    assert longest.line.line == 13
    one_unknown = np.append(work.launch[:3], -1)
    no_pauses = np.empty(0, np.int64)
    assert lines_of_host(attribution, one_unknown, no_pauses, np.array([1, 1, 1, 1])) == ()
    assert len(lines_of_host(attribution, one_unknown, no_pauses, np.array([10, 10, 10, 1]))) == 2


def test_a_line_of_a_library_comes_with_the_line_of_the_program_that_calls_it(tmp_path):
    frames = [*(("transformers/trainer.py", line, "step") for _, line, _ in LINES), ("train.py", 30, "main")]
    path = traced_report(tmp_path, lines=frames, stacks=[[place, len(LINES)] for place in range(len(LINES))])
    attribution = attribute(read(path))
    longest, *_ = lines_of_work(attribution, np.flatnonzero(attribution.trace.work.start_ns < 3000 * US))
    assert (longest.line.file, longest.own.at) == ("transformers/trainer.py", "train.py:30")
    assert longest.called == "transformers/trainer.py:13 (step), called from train.py:30"


def test_few_known_lines_of_a_place_are_not_told(tmp_path):
    rows = steps()
    short = [(thread, 1000 + at, stack, forward) for thread, at, stack, forward in LOG[:1]]
    rows["ranges"].append(mark([*short, (LOG[0][0], 1101, 0, -1)][:1], 4500, [1000, 2000], (1000, 2000)))
    partition = opened(build(tmp_path, **rows)).partition
    assert all(not place.lines for place in idle_places(partition, lambda path: path))


DAMAGED = [
    {"data": "eJw="},
    {"data": "no base64"},
    {"stacks": [[9]]},
    {"stacks": []},
]


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_lines_are_left_out_and_said(tmp_path, damage):
    rows = steps()
    text = mark([(t, 1000 + at, s, f) for t, at, s, f in LOG], 4500, [0, 1000], (1000, 2000)).name
    prefix, _, content = text.partition("{")
    changed = prefix + json.dumps(json.loads("{" + content) | damage)
    trace = read(
        build(tmp_path, **{**rows, "ranges": [*rows["ranges"], Range(changed, 4500 * US, None, event=MARK)]})
    )
    assert trace.lines is None
    assert any("lines of code in the report cannot be read" in note for note in trace.notes)


def test_a_reason_without_lines_is_kept(tmp_path):
    rows = steps()
    rows["ranges"].append(mark([], 4500, [], (0, 0), reason="lines were switched off"))
    trace = read(build(tmp_path, **rows))
    assert (trace.lines.reason, len(trace.lines.sources), len(LINES)) == ("lines were switched off", 0, 4)
