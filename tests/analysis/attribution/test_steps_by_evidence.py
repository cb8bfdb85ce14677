"""Steps of programs that name none: by updates, by ranges, by repetition; and near misses, which have none."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from nvtx_kernels.analysis.attribution.causes import Rules, attribute
from nvtx_kernels.analysis.attribution.steps import measured_steps, step_of_nodes
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.report.evidence import NONE, RANGES, REPETITION, UPDATES

from tests.analysis.making.building import write
from tests.analysis.making.looping import (
    COPY,
    backward,
    forward,
    gemm,
    graph,
    named,
    pointwise,
    report_of,
    together,
    training,
    unknown_update,
    update,
    wait,
)

SET_UP = [pointwise(500 + number) for number in range(120)]
LOSS = pointwise(93)


def found(folder, rows, **rules):
    """Return the attribution of rows, written and read."""
    return attribute(read(write(folder / "report.sqlite", rows)), Rules(**rules))


def evidence(folder, program, **rules):
    """Return the evidence of a program's steps."""
    return found(folder, report_of(program), **rules).steps.evidence


def repeated(events, times):
    """Return events that happen so many times."""
    return [event for _ in range(times) for event in events]


def every_tenth_evaluates(steps):
    """Return training whose every tenth step is followed by an evaluation."""
    step, evaluation = [wait(50_000), *training(1)], [wait(50_000), *forward(4) * 6]
    return [event for number in range(steps) for event in (*step, *(evaluation * (number % 10 == 9)))]


def gan(rounds):
    """Return the updates of a discriminator and a generator in turn."""
    of_one = [*forward(2), *forward(1), *backward(2), *named("Optimizer.step#Adam.step", update())]
    of_other = [*forward(3), *backward(5), *named("Optimizer.step#Adam.step", update("Adam", 7))]
    return repeated([COPY, *of_one, *of_other], rounds)


def second_optimizer_now_and_then(rounds):
    """Return training by one optimizer in each step, and by another beside it in every second."""
    batch = [COPY, *forward(4), *backward(4)]
    always = named("Optimizer.step#Muon.step", unknown_update())
    also = named("Optimizer.step#Adam.step", update("Adam", 8))
    return repeated([*batch, *always, *batch, *also, *always], rounds)


def experts(steps):
    """Return training with a random number of kernels in each layer."""
    random = Random(1)
    layer = [gemm(1), pointwise(1)]
    program = []
    for _ in range(steps):
        layers = [event for _ in range(6) for event in (*layer, *[gemm(40), pointwise(41)] * random.randint(2, 6))]
        program += [COPY, pointwise(90), *layers, gemm(91), *backward(6), *update()]
    return program


MICRO_BATCH = [COPY, *forward(4), *backward(4)]
STEP_RANGE = "Optimizer.step#AdamW.step"
#: Programs, by what tells their steps, and how many there are.
LOOPS = {
    "training": (training(8), UPDATES, 8),
    "training whose updates have ranges": (
        repeated([*forward(4), *backward(4), *named(STEP_RANGE, unknown_update())], 8),
        UPDATES,
        8,
    ),
    "training by unknown kernels": (
        repeated([COPY, *forward(4), *backward(4), *unknown_update()], 8),
        REPETITION,
        8,
    ),
    "set-up, then training": ([*SET_UP, *training(6)], UPDATES, 6),
    "GAN": (gan(6), UPDATES, 6),
    "a second optimizer in every second step": (second_optimizer_now_and_then(4), UPDATES, 8),
    "micro-batches": (repeated([*MICRO_BATCH * 4, *update()], 5), UPDATES, 5),
    "evaluation after every tenth": (every_tenth_evaluates(30), UPDATES, 30),
    "experts": (experts(10), UPDATES, 10),
    "forwards of copied batches": (repeated([COPY, *forward(12)], 6), REPETITION, 6),
    "forwards in ranges": (repeated([COPY, *named("Forward", forward(12))], 6), RANGES, 6),
    "decode after prefill": ([*forward(40), *repeated([COPY, *backward(6)[:-1], LOSS], 32)], REPETITION, 32),
    "graphs that hide their kernels": (
        repeated([COPY, graph(1), pointwise(1), graph(2), pointwise(2), graph(3), gemm(1), pointwise(3)], 10),
        REPETITION,
        10,
    ),
    "graphs and their update, evaluated after every tenth": (
        repeated([*repeated([COPY, graph(1), graph(2), *update()], 10), COPY, graph(1)], 3),
        UPDATES,
        30,
    ),
    "forwards after pauses": (repeated([wait(2_000_000), *forward(12)], 6), REPETITION, 6),
}
#: Programs without steps, or of which nothing shows them.
NEAR_MISSES = {
    "layers of one forward": forward(12),
    "layers of one forward in ranges": named(
        "profile", [*repeated(named("layer", forward(1)[1:7]), 12), gemm(91)]
    ),
    "layers in a forward's range": named(
        "Forward", repeated([wait(2_000_000), *named("layer", forward(1)[1:7])], 12)
    ),
    "one forward and backward": [COPY, *forward(12), *backward(12), *update()],
    "forwards that nothing separates": repeated(forward(1)[1:7], 40),
    "one kernel": repeated([gemm(1)], 200),
    "two kernels in turn": repeated([gemm(1), pointwise(1)], 200),
    "any kernels": [pointwise(Random(3).randrange(60) + number % 7) for number in range(50)],
    "few kernels": [gemm(1), gemm(2), gemm(1), gemm(2)],
}


@pytest.mark.parametrize("name", LOOPS)
def test_steps_of_a_loop_are_found_where_no_range_names_them(tmp_path, name):
    program, by, count = LOOPS[name]
    known = evidence(tmp_path, program)
    assert (known.by, known.count) == (by, count), known.refused
    assert known.explained > 0.7
    assert known.same > 0.7


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_repeats_in_one_pass_is_no_step(tmp_path, name):
    known = evidence(tmp_path, NEAR_MISSES[name])
    assert known.by == NONE
    assert known.refused


def test_a_step_has_all_kernels_of_its_turn_and_the_copy_before_them(tmp_path):
    pause = wait(50_000)  # in which the program takes its next batch
    attribution = found(tmp_path, report_of([*SET_UP, pause, *training(6, between=[pause])]))
    step = step_of_nodes(attribution, include_warm_up=False)[attribution.node]
    work = attribution.trace.work
    of_step = np.bincount(step[step >= 0])
    assert of_step.tolist() == [len(training(1))] * 6
    assert (np.bincount(step[(step >= 0) & (work.kind == 1)]) == 1).all()
    assert (step == -1).sum() == len(SET_UP)


def test_evaluation_between_steps_is_in_none(tmp_path):
    attribution = found(tmp_path, report_of([*SET_UP, *every_tenth_evaluates(30)]))
    step = step_of_nodes(attribution, include_warm_up=False)[attribution.node]
    assert np.bincount(step[step >= 0]).tolist() == [len(training(1))] * 30


@pytest.mark.parametrize("number", [2, 4, 8])
def test_micro_batches_of_a_step_are_counted(tmp_path, number):
    program = repeated([*MICRO_BATCH * number, *update()], 5)
    assert evidence(tmp_path, program).micro_batches == number
    assert evidence(tmp_path, training(6)).micro_batches == 1


def test_two_optimizers_in_turn_are_one_step_and_no_micro_batches(tmp_path):
    known = evidence(tmp_path, gan(6))
    assert (known.name, known.every, known.micro_batches) == ("Optimizer.step#Adam.step", 2, 1)


def test_calls_of_a_program_that_does_not_train_are_the_unit(tmp_path):
    calls = evidence(tmp_path, repeated([COPY, *named("Forward", forward(12))], 6))
    trained = repeated([COPY, *named("Forward", forward(4)), *named("Backward", backward(4))], 6)
    assert (calls.per, calls.is_call) == ("Forward", True)
    assert not evidence(tmp_path, trained).is_call


def test_parts_of_a_step_are_not_its_unit_however_alike_they_are(tmp_path):
    layer = [*named("FSDP::pre_forward", [pointwise(60)]), *forward(1)[1:7]]
    program = repeated([COPY, pointwise(90), *layer * 6, gemm(91), *backward(6)], 6)
    known = evidence(tmp_path, program)
    assert (known.by, known.count) == (REPETITION, 6)


def test_ranges_that_name_steps_win_and_so_does_the_option(tmp_path):
    program = repeated(named("step", repeated([COPY, *forward(4)], 2)), 4)
    assert evidence(tmp_path, program).by == "named"
    renamed = repeated(named("batch", repeated([COPY, *forward(4)], 2)), 4)
    attribution = found(tmp_path, report_of(renamed), step="batch")
    assert (attribution.steps.evidence.by, len(attribution.steps.range)) == ("named", 4)


@pytest.mark.parametrize("kinds", [(), (UPDATES,), (UPDATES, RANGES)])
def test_only_the_evidence_that_is_allowed_counts(tmp_path, kinds):
    program = repeated([COPY, *forward(12)], 6)
    assert evidence(tmp_path, program, evidence=kinds).by == NONE


def test_work_in_the_programs_own_warm_up_is_left_out(tmp_path):
    program = [*named("Warm-up", training(5, 2)), *repeated([COPY, *forward(12)], 6)]
    assert evidence(tmp_path, program).count == 6


def test_steps_without_launches_are_times_on_the_gpu(tmp_path):
    rows = report_of(training(8), launches=False)
    attribution = found(tmp_path, rows)
    step = step_of_nodes(attribution, include_warm_up=False)[attribution.node]
    assert attribution.steps.evidence.by == UPDATES
    assert len(measured_steps(attribution)) == 8
    assert (np.bincount(step[step >= 0]) >= len(training(1)) - 1).all()


def test_named_steps_without_launches_give_way_to_evidence(tmp_path):
    rows = report_of(repeated(named("step", training(1)), 8))
    known = found(tmp_path, replace(rows, launches=[])).steps.evidence
    assert (known.by, known.names_are_empty, known.count) == (UPDATES, True, 8)


def test_processes_of_a_job_decide_together(tmp_path):
    rows = together(report_of(training(8), seed=1), report_of(training(8), seed=2))
    attribution = found(tmp_path, rows)
    assert len(measured_steps(attribution)) == 16
    assert attribution.steps.evidence.count == 8


def test_a_process_that_was_recorded_for_a_step_longer_gives_it_up(tmp_path):
    attribution = found(tmp_path, together(report_of(training(8)), report_of(training(9))))
    process = attribution.trace.process_of_thread()[attribution.ranges.thread[measured_steps(attribution)]]
    assert np.bincount(process).tolist() == [8, 8]


def test_processes_that_disagree_have_no_steps(tmp_path):
    rows = together(report_of(training(8)), report_of(training(16)))
    known = found(tmp_path, rows).steps.evidence
    assert known.by == NONE
    assert "different numbers of steps (8 and 16)" in known.refused


def test_a_process_with_little_work_decides_nothing(tmp_path):
    rows = together(report_of(training(30)), report_of([gemm(1), *forward(4)]))
    assert found(tmp_path, rows).steps.evidence.count == 30


def test_named_steps_of_which_every_fourth_updates_are_known_as_micro_batches(tmp_path):
    updating = [*MICRO_BATCH, *named(STEP_RANGE, update())]
    four = [*repeated(named("ProfilerStep#1", MICRO_BATCH), 3), *named("ProfilerStep#1", updating)]
    assert evidence(tmp_path, repeated(four, 3)).updates_every == 4
    assert evidence(tmp_path, repeated(named("step", updating), 8)).updates_every == 0


def test_a_refusal_names_the_ranges_that_would_be_steps(tmp_path):
    known = evidence(tmp_path, named("profile", [*named("Forward", forward(12))]))
    assert known.suggested == "Forward"
