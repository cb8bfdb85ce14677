"""What rules of a CPU look at: the operators of the steps that count, and the ranges around them.

Without steps all that was recorded takes the place of one step. Operators have times of their own, without those
that they call; ranges have the time from their begin to their end.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..account import Partition
from ..account.cells import IDLE
from ..account.cpu import LOADING
from ..account.intervals import union
from ..account.lines import lines_of_work, longest_lines
from ..attribution.steps import range_of_nodes
from ..report.account import LineTime
from ..trace import NO_CATEGORY, PUSH_POP, Bools, Int32s, Int64s, Path
from ..vocabulary import PHASES
from .counted_work import counted_work
from .gpu_time import Floats

#: The most ranges that are named as places of a change.
MOST_PLACES = 20
#: The engine's own operators around autograd's nodes, and around the gradients of parameters.
OF_ENGINE = "autograd::"
GRADIENT_OF_PARAMETER = "torch::autograd::AccumulateGrad"


class CpuSubject:
    """The operators and ranges of the steps that count; masks are per operator, times are ns per step."""

    def __init__(self, partition: Partition) -> None:
        attribution = partition.attribution
        self.partition = partition
        self.attribution = attribution
        self.trace = attribution.trace
        self.has_steps = partition.has_steps
        self.steps = len(partition.counted) if partition.has_steps else 1
        self.run: Mapping[str, Any] = self.trace.provenance.run
        self.row = counted_work(partition)
        work = self.trace.work
        self.name_id = work.name_id[self.row]
        self.start_ns = work.start_ns[self.row]
        self.ns: Floats = work.duration_ns[self.row].astype(np.float64)
        self.phase = attribution.phase[self.row]
        self.node = attribution.node[self.row]
        self._id_of = {name: number for number, name in enumerate(self.trace.names)}

    @property
    def step_ns(self) -> float:
        """How long a step takes, as recorded; without steps, all that was recorded."""
        times_ns = self.partition.table.own_ns
        return float(times_ns[self.partition.counted].mean())

    def named(self, *names: str) -> Bools:
        """Mark the operators of some names."""
        ids = [self._id_of.get(name, -1) for name in names]
        return np.isin(self.name_id, ids)

    def beginning(self, prefix: str) -> list[str]:
        """Return the names that begin so."""
        return [name for name in self._id_of if name.startswith(prefix)]

    def in_phase(self, phase: str) -> Bools:
        """Mark the operators of a phase."""
        in_phase: Bools = self.phase == PHASES.index(phase)
        return in_phase

    def in_ranges(self, ranges: Int64s) -> Bools:
        """Mark the operators that run in some ranges of the attribution."""
        inside: Bools = range_of_nodes(self.attribution, ranges)[self.node] >= 0
        return inside

    def per_step(self, operators: Bools) -> float:
        """Return how many of these operators a step has."""
        return float(operators.sum()) / self.steps

    def time_ns(self, operators: Bools) -> float:
        """Return how long these operators take themselves in a step."""
        return float(self.ns[operators].sum()) / self.steps

    def phase_ns(self, phase: str) -> float:
        """Return how long a phase takes in a step: its ranges, with Python in them, or its operators if longer."""
        of_ranges = self.wall_ns(self.ranges_of_phase(phase))
        of_operators = self.time_ns(self.in_phase(phase))
        return max(of_ranges, of_operators)

    def row_ns(self, phase: str) -> float:
        """Return how long a phase's operators take in a step, as the account's row says."""
        cells = self.partition.cells
        in_phase = (cells.kind != IDLE) & (cells.phase == PHASES.index(phase))
        return float(cells.ns[in_phase & np.isin(cells.row, self.partition.counted)].sum()) / self.steps

    def wall_ns(self, ranges: Int64s) -> float:
        """Return how long some ranges last in a step, together where they overlap."""
        table = self.attribution.ranges
        covered = union(table.start_ns[ranges], table.end_ns[ranges])
        return float(covered.total_ns) / self.steps

    @cached_property
    def step_of_range(self) -> Int32s:
        """The step that each range of the attribution is in, as a place among those that count; -1 for none."""
        attribution = self.attribution
        if self.has_steps:
            steps = self.partition.table.range[self.partition.counted]
            return range_of_nodes(attribution, steps)[attribution.home]
        counts = (attribution.home >= 0) & ~attribution.left_out()[attribution.home]
        return np.where(counts, np.int32(0), np.int32(-1))

    def ranges_in_steps(self, chosen: Bools) -> Int64s:
        """Return the chosen ranges that are in a step that counts, by start."""
        is_in_step = (self.attribution.home >= 0) & (self.step_of_range >= 0)
        rows = np.flatnonzero(chosen & is_in_step)
        start_ns = self.attribution.ranges.start_ns[rows]
        return rows[np.argsort(start_ns, kind="stable")]

    def ranges_of_phase(self, phase: str) -> Int64s:
        """Return the program's ranges that open a phase, by start."""
        facts = self.attribution.facts
        ranges = self.attribution.ranges
        opens = facts.opens_phase & (facts.phase == PHASES.index(phase))
        is_of_program = (ranges.category == NO_CATEGORY) & (ranges.style == PUSH_POP)
        return self.ranges_in_steps(opens[ranges.name_id] & is_of_program)

    def ranges_of_kind(self, category: int) -> Int64s:
        """Return the ranges of a kind, such as MODEL_FORWARD, by start."""
        return self.ranges_in_steps(self.attribution.ranges.category == category)

    @cached_property
    def _loading_ns(self) -> Int64s:
        """The time of each of the account's cells that is waiting for data in a step that counts, ns."""
        cells = self.partition.cells
        is_loading = (cells.kind == IDLE) & (cells.what == LOADING)
        is_counted = np.isin(cells.row, self.partition.counted)
        return np.where(is_loading & is_counted, cells.ns, 0)

    @property
    def loading_ns(self) -> float:
        """How long the program waits for data in a step, as the account says."""
        return float(self._loading_ns.sum()) / self.steps

    def loading_places(self) -> tuple[Path, ...]:
        """Return the ranges in which it waits for data, those with the most time first."""
        return self._longest(self.partition.cells.path, self._loading_ns)

    def loading_lines(self) -> tuple[LineTime, ...]:
        """Return the lines at which it waits for data, those with the most time first; none if unknown."""
        is_loading = self._loading_ns > 0
        return longest_lines(self.attribution, self.partition.cells.line[is_loading], self._loading_ns[is_loading])

    def lines(self, operators: Bools) -> tuple[LineTime, ...]:
        """Return the lines that call some operators, those with the most time first; none if unknown."""
        return lines_of_work(self.attribution, self.row[operators])

    def places(self, operators: Bools) -> tuple[Path, ...]:
        """Return the ranges of some operators, those with the most time first."""
        path = self.partition.paths.names_of_node[self.node[operators]]
        return self._longest(path, self.ns[operators])

    def _longest(self, path: Int32s, times_ns: NDArray[Any]) -> tuple[Path, ...]:
        """Return the paths with the most time, given rows of a path each, -1 for none, and their times, ns."""
        names = self.partition.paths.names
        is_known = path >= 0
        of_path_ns = np.bincount(path[is_known], times_ns[is_known], len(names))
        order = np.argsort(-of_path_ns, kind="stable")[:MOST_PLACES]
        return tuple(names[number] for number in order.tolist() if of_path_ns[number] > 0 and names[number])
