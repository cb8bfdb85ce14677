"""What a step is, of programs that run on a CPU: the same table of cases as for synthetic recordings."""

import json
import sqlite3

import pytest
import torch
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.steps import measured_steps
from nvtx_kernels.profiling.training import Profile

from nvtx_kernels import analysis
from tests.analysis.making.step_cases import CASES
from tests.analysis.making.training_facts import flat
from tests.profiling.making.training_programs import Doing

#: Calls of real models are alike, and so are steps; those of the table launch too little for that.
OF_CALLS = {"inference": ["E"] * 4}
ON_CPU = [case for case in CASES if not any(event.kind == "R" for event, _ in flat(case.events))]
MARKS = "SELECT at_ns, text FROM marks WHERE text LIKE 'event %' ORDER BY at_ns"


def events_in_steps(path):
    """Return the events that began in each measured step and not in an evaluation, by their marks."""
    attribution = attribute(analysis.read(path))
    names, ranges = attribution.trace.names, attribution.ranges
    windows = [(ranges.start_ns[step], ranges.end_ns[step]) for step in measured_steps(attribution)]
    removed = [
        (ranges.start_ns[n], ranges.end_ns[n])
        for n in range(len(ranges))
        if names[ranges.name_id[n]] == "evaluation"
    ]
    marks = sqlite3.connect(path).execute(MARKS).fetchall()
    kept = [(at, text) for at, text in marks if not any(start <= at <= end for start, end in removed)]
    return ["".join(text[len("event ")] for at, text in kept if start < at <= end) for start, end in windows]


@pytest.mark.parametrize("case", ON_CPU, ids=[case.name for case in ON_CPU])
def test_steps_of_programs_are_those_of_the_table(case, tmp_path):
    doing = Doing(case.events)
    given = [doing.optimizers[name] for name in case.given if name in doing.optimizers]
    models, path = [*doing.models.values()], tmp_path / "report.sqlite"
    with Profile(models, given, path, warmup=case.warmup, steps=None) as profile:
        number = 0
        for event in case.events:
            number = doing.do(event, number, profile)
    assert events_in_steps(tmp_path / "report.sqlite") == OF_CALLS.get(case.name, case.steps)


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another, as Accelerate's is."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, optimizer.defaults)

    def step(self, closure=None):
        return self.optimizer.step(closure)


def test_a_wrapper_and_what_it_wraps_are_one_and_others_are_numbered(tmp_path):
    first, second = (torch.nn.Linear(4, 4) for _ in range(2))
    wrapped = Wrapper(torch.optim.SGD(first.parameters()))
    other = torch.optim.SGD(second.parameters())
    with Profile([first, second], None, tmp_path / "report.sqlite", warmup=0):
        for _ in range(3):
            (first(torch.ones(2, 4)) + second(torch.ones(2, 4))).sum().backward()
            wrapped.step()
            other.step()
    facts = read_facts(tmp_path / "report.sqlite")
    assert [fact["optimizer"] for fact in facts if fact["event"] == "update"] == ["SGD", "SGD#2"] * 3


def read_facts(path):
    """Return what the marks of training say, in the order of time."""
    rows = sqlite3.connect(path).execute(MARKS.replace("event %", "nvtx-kernels training: %")).fetchall()
    return [json.loads(text.partition(": ")[2]) for _, text in rows]
