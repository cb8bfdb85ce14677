"""Loops that are drawn at random, without names of steps: as many steps are found as were made, or none."""

from random import Random

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.report.evidence import NONE

from tests.analysis.making.building import write
from tests.analysis.making.looping import (
    COPY,
    backward,
    forward,
    graph,
    pointwise,
    report_of,
    together,
    unknown_update,
    update,
)

SEEDS = range(30)


def passes(layers, *, are_graphs):
    """Return a forward and a backward, whose kernels graphs may hide."""
    if are_graphs:
        return [graph(1), pointwise(1), graph(2), pointwise(2)], [graph(3), pointwise(3)]
    return forward(layers), backward(layers)


def drawn(seed):
    """Return the reports of each rank as one, and how many steps they may have.

    Where no update is known, micro-batches are steps too, and so are the steps from one evaluation to the next.
    """
    random = Random(seed)
    steps, layers = random.randint(4, 24), random.choice([1, 2, 4, 12])
    batches, every = random.choice([1, 1, 2, 4]), random.choice([0, 0, 3, 10])
    there, back = passes(layers, are_graphs=random.random() < 0.2)
    batch = [*[COPY] * random.randint(1, 2), *there, *back]
    is_known = random.random() < 0.7
    step = [*batch * batches, *(update(random.choice(["Adam", "SGD"])) if is_known else unknown_update())]
    evaluation = [COPY, *there] * 3
    program = []
    for number in range(steps):
        program += step + (evaluation if every and number % every == every - 1 else [])
    ranks = [report_of(program, seed=seed + rank) for rank in range(random.choice([1, 1, 2, 3]))]
    possible = [steps] if is_known else [steps, steps * batches, steps // (every or 1)]
    return together(*ranks), possible, is_known


@pytest.mark.parametrize("seed", SEEDS)
def test_as_many_steps_are_found_as_were_made_or_none(tmp_path, seed):
    rows, possible, is_known = drawn(seed)
    known = attribute(read(write(tmp_path / "report.sqlite", rows))).steps.evidence
    if known.by == NONE:
        assert known.refused
        assert not is_known
    else:
        assert min(abs(known.count - steps) for steps in possible) <= 1
