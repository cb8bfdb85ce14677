"""What rules of a CPU look at: the operators of the steps that count, and the ranges around them.

Without steps all that was recorded takes the place of one step. Operators have times of their own, without those
that they call; ranges have the time from their begin to their end.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from ..account import Partition
from ..account.cells import IDLE
from ..account.cpu import LOADING
from ..account.intervals import union
from ..attribution.steps import range_of_nodes
from ..support.small_numbers import grouped_rows, summed
from ..trace import PUSH_POP, Bools, Int32s, Int64s, Path
from ..vocabulary import PHASES
from .gpu_time import Floats

#: The most ranges that are named as places of a change.
MOST_PLACES = 20
#: The engine's own operators around autograd's nodes, and around the gradients of parameters.
OF_ENGINE = "autograd::"
GRADIENT_OF_PARAMETER = "torch::autograd::AccumulateGrad"


class CpuSubject:
    """The operators and ranges of the steps that count; masks are per operator, times are ns per step."""

    def __init__(self, partition: Partition) -> None:
        self.partition, self.attribution = partition, partition.attribution
        self.trace, self.has_steps = partition.attribution.trace, partition.has_steps
        self.steps = len(partition.counted) if partition.has_steps else 1
        self.row = self._rows()
        work = self.trace.work
        self.name_id, self.start_ns = work.name_id[self.row], work.start_ns[self.row]
        self.ns: Floats = work.duration_ns[self.row].astype(np.float64)
        self.phase, self.node = self.attribution.phase[self.row], self.attribution.node[self.row]
        self.run: Mapping[str, Any] = self.trace.provenance.run
        self._id_of = {name: number for number, name in enumerate(self.trace.names)}

    def _rows(self) -> Int64s:
        if self.has_steps:
            return self.partition.of_counted_steps.rows_of_all
        is_warm_up = np.append(self.attribution.warm_up, False)[self.attribution.node]
        return np.flatnonzero(self.partition.include_warm_up | ~is_warm_up)

    @property
    def step_ns(self) -> float:
        """How long a step takes, as recorded; without steps, all that was recorded."""
        return float(self.partition.table.own_ns[self.partition.counted].mean())

    def named(self, *names: str) -> Bools:
        """Mark the operators of some names."""
        return np.isin(self.name_id, [self._id_of.get(name, -1) for name in names])

    def beginning(self, prefix: str) -> list[str]:
        """Return the names that begin so."""
        return [name for name in self._id_of if name.startswith(prefix)]

    def in_phase(self, phase: str) -> Bools:
        """Mark the operators of a phase."""
        in_phase: Bools = self.phase == PHASES.index(phase)
        return in_phase

    def per_step(self, operators: Bools) -> float:
        """Return how many of these operators a step has."""
        return float(operators.sum()) / self.steps

    def time_ns(self, operators: Bools) -> float:
        """Return how long these operators take themselves in a step."""
        return float(self.ns[operators].sum()) / self.steps

    def phase_ns(self, phase: str) -> float:
        """Return how long a phase takes in a step: its ranges, with Python in them, or its operators if longer."""
        return max(self.wall_ns(self.ranges_of_phase(phase)), self.time_ns(self.in_phase(phase)))

    def wall_ns(self, ranges: Int64s) -> float:
        """Return how long some ranges last in a step, together where they overlap."""
        table = self.attribution.ranges
        return float(union(table.start_ns[ranges], table.end_ns[ranges]).total_ns) / self.steps

    @cached_property
    def step_of_range(self) -> Int32s:
        """The step that each range of the attribution is in, as a place among those that count; -1 for none."""
        attribution = self.attribution
        home = attribution.home
        if not self.has_steps:
            return np.where((home >= 0) & ~np.append(attribution.warm_up, False)[home], 0, -1).astype(np.int32)
        steps = self.partition.table.range[self.partition.counted]
        return range_of_nodes(attribution, steps)[home]

    def ranges_in_steps(self, chosen: Bools) -> Int64s:
        """Return the chosen ranges that are in a step that counts, by start."""
        ranges = self.attribution.ranges
        rows = np.flatnonzero(chosen & (self.attribution.home >= 0) & (self.step_of_range >= 0))
        return rows[np.argsort(ranges.start_ns[rows], kind="stable")]

    def ranges_of_phase(self, phase: str) -> Int64s:
        """Return the program's ranges that open a phase, by start."""
        facts, ranges = self.attribution.facts, self.attribution.ranges
        opens = facts.opens_phase & (facts.phase == PHASES.index(phase))
        return self.ranges_in_steps(opens[ranges.name_id] & (ranges.category == 0) & (ranges.style == PUSH_POP))

    def ranges_of_kind(self, category: int) -> Int64s:
        """Return the ranges of a kind, such as MODEL_FORWARD, by start."""
        return self.ranges_in_steps(self.attribution.ranges.category == category)

    @property
    def loading_ns(self) -> float:
        """How long the program waits for data in a step, as the account says."""
        return float(self._loading.sum()) / self.steps

    def loading_places(self) -> tuple[Path, ...]:
        """Return the ranges in which it waits for data, those with the most time first."""
        cells, paths = self.partition.cells, self.partition.paths
        times_ns = summed(cells.path, self._loading, len(paths.names))
        order = np.argsort(-times_ns, kind="stable")[:MOST_PLACES].tolist()
        return tuple(paths.names[number] for number in order if times_ns[number] and paths.names[number])

    @property
    def _loading(self) -> Int64s:
        cells = self.partition.cells
        is_loading = (cells.kind == IDLE) & (cells.what == LOADING)
        return np.where(is_loading & np.isin(cells.row, self.partition.counted), cells.ns, 0)

    def places(self, operators: Bools) -> tuple[Path, ...]:
        """Return the ranges of some operators, those with the most time first."""
        (path,), group = grouped_rows(self.partition.paths.names_of_node[self.node[operators]])
        times_ns = np.bincount(group, self.ns[operators], len(path))
        names = self.partition.paths.names
        order = np.argsort(-times_ns, kind="stable")[:MOST_PLACES].tolist()
        return tuple(names[path[place]] for place in order if names[path[place]])
