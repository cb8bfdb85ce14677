"""What a step is, of recordings whose annotation wrote facts: the table of cases, and random programs."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.steps import evaluation_ns, measured_steps, step_of_nodes
from nvtx_kernels.analysis.report import per_step
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.views.verdict import verdict

from nvtx_kernels import analysis
from tests.analysis.making.building import MAIN, WORKER, Node, Range, Rows, build, in_process
from tests.analysis.making.step_cases import CASES, LOOP, five
from tests.analysis.making.step_reference import decided
from tests.analysis.making.training_facts import CATEGORIES, DOMAIN, B, E, F, N, P, R, Recorded, U, W, X, flat


@pytest.fixture
def attributed(tmp_path):
    return lambda recorded: attribute(analysis.read(build(tmp_path, **recorded)))


def kernels(attribution, include_warm_up=False):
    """Return the names of each step's kernels, in the order of their launches."""
    step = step_of_nodes(attribution, include_warm_up=include_warm_up)[attribution.node]
    names, work = attribution.trace.names, attribution.trace.work
    order = np.argsort(work.start_ns)
    count = len(measured_steps(attribution, include_warm_up=include_warm_up))
    return [[names[work.name_id[row]] for row in order if step[row] == number] for number in range(count)]


def kinds(names):
    """Return the kinds of events that launched kernels, one letter for each event."""
    return "".join(name[0] for name, _ in groupby(names))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_steps_are_those_of_the_table(case, attributed):
    steps = kernels(attributed(Recorded().block(case.events, case.given, case.warmup)))
    assert [kinds(names) for names in steps] == case.steps


EVENTS = st.sampled_from([
    F(), F(), F("d"), N(), E(), E(), E("t"), B(), B(), B("x"), B("x", "y"), U(), U(), U("d"), X(), R("g"), P,
    W(*LOOP),
])  # fmt: skip
PROGRAMS = st.lists(EVENTS, max_size=24).filter(lambda events: events.count(P) != 1)


@settings(max_examples=settings.default.max_examples * 3 // 2)
@given(PROGRAMS, st.lists(st.sampled_from(["a", "d", "x"]), max_size=2, unique=True), st.integers(0, 2))
def test_steps_of_any_program_are_disjoint_hold_no_evaluation_and_are_those_of_the_definition(
    tmp_path_factory, events, optimizers, warmup
):
    folder = tmp_path_factory.mktemp("program")
    attribution = attribute(analysis.read(build(folder, **Recorded().block(events, optimizers, warmup))))
    kinds_of_events = [event.kind for event, _ in flat(events)]
    expected = [[f"{kinds_of_events[n]}{n}" for n in step] for step in decided(events, optimizers, warmup)]
    assert [[name for name, _ in groupby(names)] for names in kernels(attribution)] == expected
    steps, ranges = measured_steps(attribution, include_warm_up=True), attribution.ranges
    assert (ranges.start_ns[steps][1:] >= ranges.end_ns[steps][:-1]).all()
    inside = step_of_nodes(attribution, include_warm_up=True) >= 0
    assert not (inside[:-1] & attribution.steps.evaluation).any()
    if not len(attribution.trace.work):  # refused before it is added up
        return
    report = summarize(attribution)
    parts = report.totals.outside_ns + report.totals.ambiguous_ns + report.totals.excluded_ns
    assert sum(row.self_work_ns for row in report.ranges) + parts == attribution.trace.work.duration_ns.sum()


def test_evaluation_and_what_ended_the_steps_are_told_with_their_times(attributed):
    attribution = attributed(Recorded().block(five(LOOP, [E(), E()]), ("a",)))
    notes = " ".join(summarize(attribution).notes)
    assert evaluation_ns(attribution) == 10 * (10 + 11)
    assert "A step ends with each update by a." in notes
    assert (
        "210 ns of evaluation by m (1 run) is in no step. If it is part of one, as a reference model is, call p."
        in notes
    )


def test_an_optimizer_among_several_of_a_class_is_numbered_in_words(attributed):
    notes = summarize(attributed(Recorded().block(five([F(), B(), U("a#2")]), ("a#2",)))).notes
    assert "A step ends with each update by the 2nd a." in notes


@pytest.mark.parametrize(
    ("events", "optimizers", "error", "note"),
    [
        (five([N()] * 8 + LOOP), ("a",), "", "work is in calls of m without gradient in training mode"),
        (five(LOOP), ("a", "g"), "", "g.step() was never called."),
        (five([F(), B(), P]), (), "", "A step ends with each call of step()."),
        (five([F(), B("x")]), (), "", "A step ends with each backward in which optimizers update."),
        ([F(), B()], (), "ValueError", "Interrupted by ValueError; the last step may be incomplete."),
        ([F(), B()], (), "", "No step boundary was found: no optimizer updated, and step() was never called."),
    ],
)  # fmt: skip
def test_a_note_tells(events, optimizers, error, note, attributed):
    attribution = attributed(Recorded().block(events, optimizers, error=error))
    assert note in " ".join(summarize(attribution).notes)


def test_work_of_every_thread_is_in_the_step_and_an_epoch_has_a_place_in_each(attributed):
    recorded = Recorded()
    recorded.mark("begin", optimizers=["a"], warmup=1)
    start = recorded.now
    for number, event in enumerate(five(LOOP)):
        recorded.do(number, event)
        recorded.kernel(f"X{number}", thread=WORKER)
    recorded.ranges.append(Range("epoch 0", start, recorded.now, MAIN))
    attribution = attributed(recorded.rows)
    assert [kinds(names) for names in kernels(attribution)] == ["XFXBXU"] * 4
    paths = {row.path for row in summarize(attribution).ranges if row.self_kernels}
    assert {("step", "epoch 0"), ("step", "epoch 0", "m"), ("step", "epoch 0", "optimizer")} <= paths


def test_steps_of_two_processes_are_their_own(attributed):
    first, second = (Rows(**Recorded(start=start).block(five(LOOP), ("a",))) for start in (1_000, 1_500))
    second = in_process(second, 200)
    rows = {name: getattr(first, name) + getattr(second, name) for name in ("ranges", "launches", "work")}
    report = summarize(attributed(rows))
    assert (report.steps, report.ranks) == (8, 2)


def test_work_after_the_last_step_is_no_news(attributed):
    attribution = attributed(Recorded().block([P, *[event for _ in range(3) for event in (*LOOP, P)], *LOOP * 4]))
    said = verdict(per_step(summarize(attribution)))
    assert said.startswith("A step takes ")
    assert "In no step" not in said


def test_ranges_that_the_timeline_shows_while_recording_are_in_no_path(attributed):
    recorded = Recorded()
    recorded.mark("begin", optimizers=["a"], warmup=1)
    for number, event in enumerate(five(LOOP)):
        recorded.range("step", "timeline", lambda number=number, event=event: recorded.do(number, event))
    attribution = attributed(recorded.rows)
    assert [kinds(names) for names in kernels(attribution)] == ["FBU"] * 4
    assert all(row.path.count("step") <= 1 for row in summarize(attribution).ranges)


#: A whole step, captured before the block: where its kernels were created.
CAPTURE = (("m", "model/forward", 10, 20), ("backward", "phase", 30, 40), ("optimizer", "phase", 50, 60))


def replays(begin, nodes):
    """Return the rows of three replays of a captured step, of which `nodes` of the graph are in the report."""
    recorded = Recorded()
    recorded.mark(begin, optimizers=["a"], warmup=0)
    for number in range(3):
        recorded.do(number, R("a"))
    captured = [
        Range(name, start, end, MAIN, DOMAIN, category=CATEGORIES[kind]) for name, kind, start, end in CAPTURE
    ]
    work = [
        replace(one, start=one.start + 100 * node, end=one.start + 100 * node + 10, node=node)
        for one in recorded.work
        for node in (1, 2, 3)
    ]
    return {"ranges": [*recorded.ranges, *captured], "launches": recorded.launches, "work": work, "nodes": nodes}


@pytest.mark.parametrize("begin", ["begin", "measure"])  # as where nsys captures from there on
def test_a_replay_of_a_step_is_one_and_its_update_is_the_optimizers(begin, attributed):
    report = summarize(attributed(replays(begin, [Node(1, 15), Node(2, 35), Node(3, 55)])))
    assert report.steps == 3
    assert {row.phase: row.kernels for row in report.phases} == {"forward": 3, "backward": 3, "optimizer": 3}


def test_a_replay_of_which_the_report_knows_no_nodes_is_other_and_the_answer_says_why(attributed):
    report = summarize(attributed(replays("begin", [])))
    assert report.steps == 3
    assert {row.phase: row.kernels for row in report.phases if row.kernels} == {"other": 9}
    [note] = [note for note in report.notes if "in CUDA graphs" in note]
    assert note.startswith("The modules of 9 of 9 kernels in CUDA graphs are unknown")
    assert "PyTorch 2.15" in note or "nsys profile --cuda-graph-trace=node" in note


def test_the_first_measured_step_begins_when_the_recorder_is_ready(attributed):
    recorded = Recorded()
    recorded.mark("begin", optimizers=["a"], warmup=1)
    for number in range(3):
        for event in (F(), B(), U()):
            recorded.do(number, event)
        if not number:
            recorded.now += 500
            recorded.mark("measure", optimizers=["a"])
            ready = recorded.now - 1
    recorded.mark("end")
    attribution = attributed({"ranges": recorded.ranges, "launches": recorded.launches, "work": recorded.work})
    steps = measured_steps(attribution)
    assert len(steps) == 2
    assert attribution.ranges.start_ns[steps].min() == ready


def test_without_a_block_the_first_step_begins_with_the_first_update(attributed):
    recorded = Recorded()
    for number, event in enumerate(five(LOOP)):
        recorded.do(number, event)
    assert [kinds(names) for names in kernels(attributed(recorded.rows))] == ["FBU"] * 4
