"""Which of a report's own ranges are its steps; the truth of each report is counted while it is made."""

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.steps import kernels_per_step, measured_steps
from nvtx_kernels.analysis.report import per_step
from nvtx_kernels.analysis.summary.totals import summarize

from nvtx_kernels import analysis
from tests.analysis.making.building import AUTOGRAD, MAIN, WORKER, Launch, Range, Work, build


class Program:
    """Rows of a program that opens ranges and launches kernels; each kernel lasts 10 ns and runs at once."""

    def __init__(self):
        self.now, self.rows, self.count = 0, {"ranges": [], "launches": [], "work": []}, 0

    def launch(self, count=1, thread=MAIN, kind="kernel"):
        for _ in range(count):
            self.count += 1
            self.rows["launches"].append(Launch(self.count, self.now, self.now + 2, thread))
            name = "kernel" if kind == "kernel" else 1
            self.rows["work"].append(Work(self.count, self.now + 3, self.now + 13, name, kind))
            self.now += 20

    def range(self, name, *parts, thread=MAIN):
        """Open a range around calls, numbers of kernels and ranges: (name, …) each."""
        start = self.now
        self.now += 1
        for part in parts:
            if callable(part):
                part()
            elif isinstance(part, int):
                self.launch(part, thread)
            else:
                self.range(*part, thread=thread)
        self.now += 1
        self.rows["ranges"].append(Range(name, start, self.now, thread))
        self.now += 1
        return self

    def attributed(self, tmp_path):
        return attribute(analysis.read(build(tmp_path, **self.rows)))


TRAINING = (("forward", 3), ("backward", 5), ("optimizer", 2))


def names(attribution):
    ranges = attribution.ranges
    return [attribution.trace.names[ranges.name_id[step]] for step in measured_steps(attribution)]


def test_training_steps_are_the_steps_and_validation_is_named_in_a_note(tmp_path):
    program = Program()
    for epoch in range(2):
        for n in range(5):
            program.range(f"train step {5 * epoch + n}", *TRAINING)
        for n in range(20):
            program.range(f"val step {20 * epoch + n}", ("forward", 7))
    attribution = program.attributed(tmp_path)
    assert names(attribution) == [f"train step {n}" for n in range(10)]
    assert kernels_per_step(attribution).tolist() == [10] * 10
    note = "Steps are the ranges `train step *`; not counted as steps: `val step *` (40)."
    assert note in summarize(attribution).notes


BATCHES = [(f"batch {k}", ("forward", 1), ("backward", 2)) for k in range(8)]
#: The ranges of each iteration, whose number is added to their names, and which of them are steps.
CHOSEN = {
    "the outermost of groups that nest": ([("step", *BATCHES, ("optimizer", 1))], "step"),
    "without training the group with most work": ([("infer step", 5), ("test step", 2)], "infer step"),
    "of two kinds of training steps that with most optimizer work": (
        [("local step", *TRAINING), ("global step", *TRAINING, ("optimizer", 1))],
        "global step",
    ),
}


@pytest.mark.parametrize(("iteration", "chosen"), CHOSEN.values(), ids=CHOSEN)
def test_of_several_groups_the_steps_are(tmp_path, iteration, chosen):
    program = Program()
    for n in range(3):
        for name, *parts in iteration:
            program.range(f"{name} {n}", *parts)
    assert names(program.attributed(tmp_path)) == [f"{chosen} {n}" for n in range(3)]


def test_where_nothing_decides_between_two_kinds_per_step_is_refused(tmp_path, capsys):
    program = Program()
    for n in range(3):
        program.range(f"local step {n}", *TRAINING).range(f"global step {n}", *TRAINING)
    report = build(tmp_path, **program.rows)
    assert kernels.main([str(report), "--per-step"]) == 1
    said = capsys.readouterr().err
    assert "Several kinds of ranges could be its steps (`local step *`, `global step *`)" in said
    assert "--step NAME" in said
    assert kernels.main([str(report), "--per-step", "--step", "local step *"]) == 0


def test_a_tutorials_step_is_the_optimizers_update(tmp_path):
    program = Program()
    for _ in range(4):
        program.range("forward", 3).range("backward", 5).range("step", 2)
        program.launch(1)  # the data of the next
    attribution = program.attributed(tmp_path)
    report = per_step(summarize(attribution))
    assert kernels_per_step(attribution).tolist() == [10, 11, 11, 11]
    expected = {"forward": 3, "backward": 5, "optimizer": 2, "other": 0.75}
    assert {row.phase: row.kernels for row in report.phases} == expected


def test_a_step_around_everything_that_has_no_inner_ranges_is_a_step(tmp_path):
    program = Program()
    for _ in range(3):
        program.range("step", 10).range("forward", 2)
    attribution = program.attributed(tmp_path)
    assert kernels_per_step(attribution).tolist() == [10] * 3


@pytest.mark.parametrize("lost", [0, 1, 3, 10])
@pytest.mark.parametrize("name", ["step {}", "step"])
@pytest.mark.parametrize("around", ["", "epoch 0"])
def test_a_step_whose_end_an_exception_took_is_none(name, lost, around, tmp_path):
    program = Program()
    for n in range(12):
        program.range(name.format(n), *TRAINING)
    rows, last = program.rows["ranges"], program.now
    where = [place for place, row in enumerate(rows) if row.name.startswith("step")][lost]
    rows[where] = Range(rows[where].name, rows[where].start, last if around else None)
    if around:  # whose own end closed the step's range
        rows.append(Range(around, 0, None))
    attribution = program.attributed(tmp_path)
    assert names(attribution) == [name.format(n) for n in range(12) if n != lost]
    assert kernels_per_step(attribution).tolist() == [10] * 11


@pytest.mark.parametrize("inner", [1, 3])
def test_steps_that_all_contain_their_like_are_the_outer_ones(inner, tmp_path):
    program = Program()
    for _ in range(4):
        program.range("step", *[("step", *TRAINING)] * inner)
    assert kernels_per_step(program.attributed(tmp_path)).tolist() == [10 * inner] * 4


@pytest.mark.parametrize("thread", [WORKER, AUTOGRAD])
def test_a_thread_that_launches_only_copies_has_no_steps(thread, tmp_path):
    program = Program()
    for n in range(10):
        program.range(f"batch {n}", lambda: program.launch(1, thread, "memcpy"), thread=thread)
        program.range(f"batch {n}", *TRAINING)
    attribution = program.attributed(tmp_path)
    assert kernels_per_step(attribution).tolist() == [10] * 10


@pytest.mark.parametrize("name", ["warmup_lr", "WarmupCosineSchedule.step", "lr_warmup"])
def test_a_schedules_warm_up_is_measured(name, tmp_path):
    program = Program()
    for n in range(3):
        program.range(f"step {n}", *TRAINING, (name, 1))
    report = summarize(program.attributed(tmp_path))
    assert (report.steps, report.totals.excluded_ns) == (3, 0)
    assert sum(row.count for row in report.kernels) == 33


@pytest.mark.parametrize("name", ["warmup", "Warm-up", "warm_up 2", "warm-up: no timing"])
def test_what_lies_in_warm_up_is_not_measured(name, tmp_path):
    program = Program().range(name, ("step 0", *TRAINING))
    program.range("step 1", *TRAINING)
    assert names(program.attributed(tmp_path)) == ["step 1"]


def test_steps_of_a_serving_engine_are_of_one_kind_whatever_they_held(tmp_path):
    program = Program()
    for n in range(2):
        program.range("step[EXTEND bs=8 toks=4096]", 3).range(f"step[DECODE bs={8 + n}]", 2)
    assert kernels_per_step(program.attributed(tmp_path)).tolist() == [3, 2, 3, 2]
