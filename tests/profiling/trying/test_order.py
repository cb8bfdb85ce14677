"""In which order changes are tried, and for how long: with runs that take time on a simulated clock."""

import pytest
from nvtx_kernels.profiling.cli import CommandError
from nvtx_kernels.profiling.trying import order
from nvtx_kernels.profiling.trying.keeper import Outcome
from nvtx_kernels.profiling.trying.order import ENDED_FIRST, NOT_AT_RUN_TIME, Choice, Program, Trying, arms_of
from nvtx_kernels.profiling.trying.results import Block, Ending, LeverFacts, Written

MS = 1e6
BUDGET_S = 120
LEVERS = ("workers", "pinned")


class Machine:
    """Runs jobs: each takes `process_s`, a step 60 ms less the share that its lever `saves`; no screen ends.

    It is stopped in the run of the number `stopped_in`, from 1 on.
    """

    def __init__(self, process_s, saw=1, saves=None, stopped_in=0):
        self.now_s, self.process_s, self.saw, self.stopped_in = 0.0, process_s, saw, stopped_in
        self.saves = saves or {}
        self.is_stopped = False
        self.runs = []

    def run(self, job, longest_s):
        if self.is_stopped:
            return Outcome(Written(), 0, "no end", is_cut=True)
        self.runs.append("+".join(job.on))
        seconds = 1e9 if job.kind == "screen" else self.process_s
        is_cut = seconds > longest_s
        if len(self.runs) == self.stopped_in:
            self.is_stopped = is_cut = True
        self.now_s += min(seconds, longest_s)
        facts = {name: LeverFacts(self.saw, int(name in job.on)) for name in (*job.on, *job.watched)}
        if job.kind == "screen":
            return Outcome(self._screened(job, facts), longest_s, "no end", is_cut=is_cut)
        if is_cut:
            return Outcome(Written(), longest_s, "no end", is_cut=True)
        step_ns = 60 * MS
        for name in job.on:
            step_ns *= 1 - self.saves.get(name, 0.5)
        ending = Ending(steps=20, step_ns=[step_ns] * 20, losses=[1.0] * 20, weights=1.0, device="CPU")
        ending.levers = facts
        return Outcome(Written(ending=ending), self.process_s)

    def _screened(self, job, facts):
        """Return a screen that is cut off in its last arm, after a round."""
        *arms, last = job.plan
        blocks = [Block("", [60 * MS] * 6, [0.06] * 2)]
        for arm in arms:
            step_ns = 60 * MS * (1 - self.saves.get(arm, 0.5))
            blocks += [Block(arm, [step_ns] * 6, [0.06] * 2), blocks[0]]
        return Written(arm=last, blocks=blocks, seen=facts, seen_after_s=self.process_s)


def tried(monkeypatch, machine, levers=LEVERS, predicted=(), against=None):
    monkeypatch.setattr(order.time, "monotonic", lambda: machine.now_s)
    choice = Choice(levers, against, steps=20, rounds=4, budget_s=BUDGET_S)
    arms = arms_of(choice)
    for arm in arms:
        if arm.name in predicted:
            arm.predicted_ns = (20 * MS, 20 * MS)
    return Trying(machine, Program(("train.py",)), choice, lambda _: None).go(arms)


@pytest.mark.parametrize("process_s", [2, 10, 20, 29])
def test_what_fits_into_the_budget_is_measured_and_nothing_else_begins(monkeypatch, process_s):
    machine = Machine(process_s)
    answer = tried(monkeypatch, machine)
    assert machine.now_s <= BUDGET_S
    assert answer.skipped == ({"pinned": ENDED_FIRST} if process_s == 29 else {})
    gains = [arm.gain for arm in answer.arms]
    assert [round(gain.saved_ns / MS) for gain in gains] == [30] * (2 - len(answer.skipped))
    assert all(gain.is_sure for gain in gains)


@pytest.mark.parametrize("process_s", [100, 1e6])
def test_a_program_that_is_too_slow_for_the_budget_ends_a_fifth_later_at_most(monkeypatch, process_s):
    machine = Machine(process_s)
    with pytest.raises(CommandError, match="the budget of 120 s ended before its steps could be measured"):
        tried(monkeypatch, machine)
    assert machine.now_s <= 1.2 * BUDGET_S


@pytest.mark.parametrize(("predicted", "first"), [(("pinned",), "pinned"), ((), "workers")])
def test_what_may_save_most_runs_first(monkeypatch, predicted, first):
    machine = Machine(30)
    answer = tried(monkeypatch, machine, predicted=predicted)
    assert machine.runs == ["", "", first, ""][: len(machine.runs)]
    assert answer.skipped


def test_a_second_process_of_what_saves_much_comes_before_the_first_of_what_may_save_nothing(monkeypatch):
    machine = Machine(2, saves={"workers": 0.25, "pinned": 0, "channels_last": 0})
    tried(monkeypatch, machine, levers=("workers", "pinned", "channels_last", "float32"), predicted=("workers",))
    first = [run for run in machine.runs if run]
    assert first[0] == first[2] == "workers"


def test_a_screen_that_does_not_end_leaves_time_for_processes(monkeypatch):
    machine = Machine(5, saves={"fused": 0.5, "workers": 0})
    answer = tried(monkeypatch, machine, levers=("zero_grad", "fused", "compile", "workers"), predicted=("fused",))
    by_name = {arm.name: arm.verdict for arm in answer.arms}
    assert by_name["fused"] == "use"
    assert answer.skipped == {"compile": ENDED_FIRST}
    assert machine.now_s <= BUDGET_S


@pytest.mark.parametrize("stopped_in", [4, 5, 7])
def test_what_was_measured_before_it_was_stopped_is_answered(monkeypatch, stopped_in):
    machine = Machine(5, stopped_in=stopped_in)
    answer = tried(monkeypatch, machine)
    assert len(machine.runs) == stopped_in
    assert answer.is_interrupted
    assert answer.base_ns == 60 * MS
    assert [arm.name for arm in answer.arms] == ([] if stopped_in < 7 else ["workers", "pinned"])


def test_it_is_interrupted_if_nothing_was_measured(monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        tried(monkeypatch, Machine(5, stopped_in=1))


def test_what_was_suggested_and_cannot_be_changed_from_outside_is_said(monkeypatch):
    answer = tried(monkeypatch, Machine(2, saw=0), predicted=("pinned",))
    assert answer.arms == []
    assert answer.skipped == {"pinned": NOT_AT_RUN_TIME}
