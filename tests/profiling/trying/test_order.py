"""In which order changes are tried, and for how long: with runs that take time on a simulated clock."""

import pytest
from nvtx_kernels.profiling.trying import order
from nvtx_kernels.profiling.trying.keeper import Outcome
from nvtx_kernels.profiling.trying.order import NOT_AT_RUN_TIME, Choice, Program, Trying, arms_of
from nvtx_kernels.profiling.trying.results import Ending, LeverFacts, Written

MS = 1e6
BUDGET_S = 120


class Machine:
    """Runs jobs: each takes `process_s`, and a step 60 ms, or 30 ms where its lever is on."""

    def __init__(self, process_s, saw=1):
        self.now_s, self.process_s, self.saw, self.begun_s = 0.0, process_s, saw, []

    def run(self, job, longest_s):
        self.begun_s.append(self.now_s)
        self.now_s += self.process_s
        facts = {name: LeverFacts(self.saw, int(name in job.on)) for name in (*job.on, *job.watched)}
        step_ns = [(30 if job.on else 60) * MS] * 20
        ending = Ending("", steps=20, step_ns=step_ns, losses=[1.0] * 20, weights=1.0, device="CPU", levers=facts)
        return Outcome(Written(ending=ending), self.process_s)


def tried(monkeypatch, machine, levers=("workers", "pinned"), predicted=()):
    monkeypatch.setattr(order.time, "monotonic", lambda: machine.now_s)
    choice = Choice(levers, None, steps=20, rounds=4, budget_s=BUDGET_S)
    arms = arms_of(choice)
    for arm in arms:
        if arm.name in predicted:
            arm.predicted_ns = (20 * MS, 20 * MS)
    return Trying(machine, Program(("train.py",)), choice, lambda _: None).go(arms)


@pytest.mark.parametrize("process_s", [2, 20, 45, 100])
def test_no_round_but_the_first_begins_once_the_budget_is_spent(monkeypatch, process_s):
    machine = Machine(process_s)
    answer = tried(monkeypatch, machine)
    first_round = 5  # levers are looked for, then the program as it is, both levers, and as it is again
    assert len(machine.begun_s) >= first_round
    round_s = 3 * process_s
    assert all(begun_s <= BUDGET_S + round_s for begun_s in machine.begun_s[first_round:])
    assert [round(arm.gain.saved_ns / MS) for arm in answer.arms] == [30, 30]


def test_what_was_suggested_and_cannot_be_changed_from_outside_is_said(monkeypatch):
    answer = tried(monkeypatch, Machine(2, saw=0), predicted=("pinned",))
    assert answer.arms == []
    assert answer.skipped == {"pinned": NOT_AT_RUN_TIME}
