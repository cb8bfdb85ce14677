"""One account of a step: which steps count, and where every nanosecond of them goes on each GPU.

    Attribution ─► step_table ─► choice ─► cells ─► sums ─► report.account
                   (each step's   (which    (step × GPU × state: they add
                    own time)      count)    up to the own times)

Every answer takes its steps, the time of a step, busy and idle time, phases and "per step" from here, so that no
two answers have two of them. Without steps, all that was recorded takes their place.

This room may import `attribution` and what is below it. It promises that the cells of each step and GPU add up to
the step's own time, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..attribution.steps import in_steps, measured_steps
from ..report.evidence import RECORDING, StepEvidence, refusal_of
from ..support.small_numbers import distinct
from ..trace import Int64s
from .cells import Cells, Gpus, cells_of, split
from .choice import Choice, choices_of
from .gaps import gaps_between, within
from .idle import GAPS_AT_ONCE, NO_PIECES, Pieces, pieces_of
from .intervals import union
from .step_table import Steps, StepTable, all_of_it, steps_of

LOST = "{} of {} steps have no recorded work, so how long a step takes is not known. Record with a longer warm-up."


@dataclass(frozen=True)
class Partition:
    """The steps of a report and their cells; `choices` has one entry for each loop.

    `refusal` says why there are no steps, although some ranges could be steps.
    """

    attribution: Attribution  # of all work, whose steps know which of them count
    steps: Steps
    choices: tuple[Choice, ...]
    cells: Cells
    paths: Paths
    gpus: Gpus
    per: str
    include_warm_up: bool
    refusal: str = ""

    @property
    def table(self) -> StepTable:
        """The steps with work."""
        return self.steps.table

    @property
    def on_cpu(self) -> bool:
        """Whether operators take the place of a GPU's work."""
        return self.attribution.trace.provenance.unit_of_work == "CPU"

    @property
    def evidence(self) -> StepEvidence:
        """By what the steps are known, or why not."""
        evidence = self.attribution.steps.evidence
        if self.has_steps or evidence.refused:
            return evidence
        return StepEvidence(refused=self.refusal)

    @property
    def has_steps(self) -> bool:
        """Whether steps were found; else the only row of each process is all of its recording."""
        return self.per != RECORDING

    @cached_property
    def main_loop(self) -> int:
        """The loop whose counted steps take the most time."""
        times_ns = [int(self.table.own_ns[choice.counted].sum()) for choice in self.choices]
        return times_ns.index(max(times_ns))

    @cached_property
    def counted(self) -> Int64s:
        """The rows of the steps that count, of all loops."""
        return np.concatenate([choice.counted for choice in self.choices])

    @cached_property
    def of_counted_steps(self) -> Attribution:
        """The attribution with only the work launched in steps that count."""
        numbers = np.sort(self.table.number[self.counted])
        return in_steps(self.attribution, numbers, include_warm_up=self.include_warm_up)

    def idle_pieces(self) -> Pieces:
        """Return the idle time of GPUs in the steps that count, in pieces of one cause each, by GPU and time."""
        parts = [NO_PIECES]
        for number, choice in enumerate(self.choices):
            loop = self.steps.loops[number].pieces.in_steps()
            times = loop.take(np.isin(loop.row, choice.counted))
            for gpu in self.gpus_of(number):
                rows = np.flatnonzero(self.gpus.of_work == gpu)
                gaps = gaps_between(self.attribution.trace.work, rows, gpu, int(times.start_ns[0]))
                gaps = within(gaps, union(times.start_ns, times.end_ns))
                for pieces in pieces_of(self.attribution, gaps, self.gpus.of_work):
                    owner, _, start_ns, end_ns = split(pieces.start_ns, pieces.end_ns, times)
                    parts.append(replace(pieces.take(owner), start_ns=start_ns, end_ns=end_ns))
        pieces = Pieces.joined(parts)
        return pieces.take(np.lexsort((pieces.start_ns, pieces.gpu)))

    def gpus_of(self, loop: int) -> list[int]:
        """Return the GPUs that work in a loop's steps."""
        gpus: list[int] = distinct(self.cells.gpu[self.table.loop[self.cells.row] == loop]).tolist()
        return gpus


def partition(
    attribution: Attribution, *, include_warm_up: bool = False, gaps_at_once: int = GAPS_AT_ONCE
) -> Partition:
    """Return the partition of a report's time, given the attribution of all of its work."""
    attribution = attribution.of_all_work
    ranges = measured_steps(attribution, include_warm_up=include_warm_up)
    steps = steps_of(attribution, ranges, include_warm_up=include_warm_up) if len(ranges) else None
    evidence = attribution.steps.evidence
    refusal = attribution.steps.refusal or (refusal_of(evidence) if steps is None else "")
    choices = choices_of(attribution, steps) if steps else []
    if steps and steps.dropped > sum(len(choice.counted) for choice in choices):
        refusal = LOST.format(steps.dropped, len(ranges))
        steps = None
    per = evidence.per if steps else RECORDING
    if steps is None:
        steps = all_of_it(attribution, include_warm_up=include_warm_up)
        choices = choices_of(attribution, steps)
    paths = Paths(attribution)
    gpus = Gpus(attribution.trace)
    cells = cells_of(attribution, paths, steps, gpus, at_once=gaps_at_once)
    return Partition(attribution, steps, tuple(choices), cells, paths, gpus, per, include_warm_up, refusal)
