"""Phases and steps on the CPU and on the GPU: one span per outermost range of a phase, and per measured step.

A phase's range is one whose name opens the phase inside no range of the same phase; recomputed
forward does not count. If it works on several GPUs, it has a span on each. Work whose phase is known only by its
thread has a span in each step, without bounds on the CPU.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Instances, projections
from ..attribution.steps import measured_steps
from ..attribution.user_ranges import named_phases
from ..support.small_numbers import bounds, each_row, grouped_rows, summed
from ..trace import KERNEL, Bools, Columns, Int32s, Int64s
from ..vocabulary import BACKWARD, FORWARD, OTHER, PHASES, SERVING

STEP = len(PHASES)
NAMES = (*PHASES, "step")
_SERVING = [PHASES.index(phase) for phase in SERVING]


def kinds_of(phases: Collection[str]) -> list[int]:
    """Return the positions of phases in NAMES, and of the steps where these are all phases."""
    kinds = [number for number, phase in enumerate(PHASES) if phase in phases]
    return [*kinds, STEP] if len(kinds) == len(PHASES) else kinds


@dataclass(frozen=True, slots=True)
class Spans(Columns):
    """Columns by span: its `kind` (a position in NAMES), its GPU, first start and last end of its work.

    `part` marks ranges that are only a part of their phase, such as a loss next to a forward. `gpu` is a position
    in `Extents.gpus`; `kernel_ns` is the time of the kernels launched inside; `cpu_start_ns` and `cpu_end_ns` are
    the range's own bounds, both the end of the work if it is not `ranged`.
    """

    kind: Int32s
    gpu: Int32s
    start_ns: Int64s
    end_ns: Int64s
    kernel_ns: Int64s
    part: Bools
    cpu_start_ns: Int64s
    cpu_end_ns: Int64s
    ranged: Bools


class Extents:
    """The phases and steps of an attribution in time, and their work."""

    def __init__(self, attribution: Attribution, *, include_warm_up: bool = False) -> None:
        self.attribution = attribution
        self._places = Instances(attribution)
        self._left_out = attribution.left_out(include_warm_up=include_warm_up)
        #: The measured steps in order of start: positions in the attribution's ranges.
        self.steps = measured_steps(attribution, include_warm_up=include_warm_up)
        self._counted: Bools = ~self._left_out[attribution.node]  # per piece of work
        self.kept: Int64s = np.flatnonzero(self._counted)
        # Processes number their GPUs themselves, so equal numbers in two processes need not be one GPU.
        work = attribution.of_all_work.trace.work
        processes = attribution.trace.processes
        (owners, devices), gpu = grouped_rows(work.process, work.device_id)
        self.gpu_of_all = gpu.astype(np.int32)
        self.gpu = gpu.astype(np.int32)[attribution.rows_of_all]
        self.gpus = [
            f"GPU {device}" + (f" of {processes[owner].process_id}" if (devices == device).sum() > 1 else "")
            for owner, device in each_row(owners, devices)
        ]

    @cached_property
    def phase_of(self) -> Int32s:
        """Per piece of work: the phase whose range it is in, else its thread's, or -1; int32 (work,)."""
        by_thread = np.where(self.attribution.phase == PHASES.index(OTHER), -1, self.attribution.phase)
        return np.where(self._ranged >= 0, self._ranged, by_thread).astype(np.int32)

    @cached_property
    def _ranged(self) -> Int32s:
        """Per piece of work: the phase whose range it is in, or -1."""
        return self._places.forest.nearest(self._phases)[self._places.of_node[self.attribution.node]]

    @cached_property
    def step_of(self) -> Int32s:
        """Per piece of work: the measured step it is in, 0 for the first, or -1."""
        return self._places.forest.nearest(self._step)[self._places.of_node[self.attribution.node]]

    def inside(self, kind: int) -> Bools:
        """Return, per piece of work, whether it is in a phase's ranges, or in measured steps."""
        return self._counted & (self.step_of >= 0 if kind == STEP else self.phase_of == kind)

    def spans(self, *, apart: bool = True) -> Spans:
        """Return the spans of all phases and measured steps; with `apart` one per GPU."""
        gpu = self.gpu if apart else np.zeros_like(self.gpu)
        attribution = self.attribution
        ranges = self.attribution.ranges
        projected = projections(self._places, self.kept, attribution, gpu, attribution.trace.work.kind == KERNEL)
        parts = []
        for kind in (self._phases, np.where(self._step >= 0, STEP, -1).astype(np.int32)):
            rows = projected.take(kind[projected.instance] >= 0)
            range_ = self._places.forest.range[rows.instance]
            parts.append(
                Spans(
                    kind=kind[rows.instance],
                    gpu=rows.group,
                    start_ns=rows.start_ns,
                    end_ns=rows.end_ns,
                    kernel_ns=rows.kernel_ns,
                    part=self._parts[rows.instance],
                    cpu_start_ns=ranges.start_ns[range_],
                    cpu_end_ns=ranges.end_ns[range_],
                    ranged=np.ones(len(rows), np.bool_),
                )
            )
        # One span per phase, step and GPU of the work that is in no range of its phase.
        work = np.flatnonzero(self._counted & (self._ranged < 0) & (self.phase_of >= 0))
        (kind, _, on), group = grouped_rows(self.phase_of[work], self.step_of[work], gpu[work])
        parts.append(self._unranged(kind, on, work, group))
        return Spans.joined(parts)

    def _unranged(self, kind: Int32s, gpu: Int32s, rows: Int64s, group: Int64s) -> Spans:
        """Return the spans, by group, of pieces of work that no range of their phase is around."""
        work = self.attribution.trace.work
        no = np.zeros(len(kind), np.bool_)
        start, end = bounds(group, work.start_ns[rows], work.end_ns[rows], len(kind))
        kernel_ns = np.where(work.kind[rows] == KERNEL, work.duration_ns[rows], 0)
        return Spans(kind, gpu, start, end, summed(group, kernel_ns, len(kind)), no, end, end, no)

    @cached_property
    def _phases(self) -> Int32s:
        """Per instance: the phase it opens, outside of the same phase, or -1; no forward inside backward."""
        places = self._places
        forest = self._places.forest
        attribution = self.attribution
        opens = named_phases(attribution.facts, attribution.ranges)[forest.range].astype(np.int32)
        opens[self._left_out[places.node]] = -1
        opens[attribution.recompute[places.node] & (opens == PHASES.index(FORWARD))] = -1
        around = np.zeros(len(forest), np.int32)  # a bit for each phase that a range above opens
        for places_at in forest.by_depth()[1:]:
            above = forest.parent[places_at]
            around[places_at] = around[above] | np.where(opens[above] >= 0, 1 << np.maximum(opens[above], 0), 0)
        recomputed = (opens == PHASES.index(FORWARD)) & ((around >> PHASES.index(BACKWARD)) & 1 > 0)
        served = (opens == PHASES.index(FORWARD)) & np.isin(attribution.node_phase[places.node], _SERVING)
        nested = recomputed | served | ((around >> np.maximum(opens, 0)) & 1 > 0)
        return np.where(nested, -1, opens).astype(np.int32)

    @cached_property
    def _parts(self) -> Bools:
        """Per instance whether its range is only a part of a phase."""
        return self.attribution.facts.part[self.attribution.ranges.name_id[self._places.forest.range]]

    @cached_property
    def _step(self) -> Int32s:
        """Per instance the number of the measured step that it is, else -1."""
        number = np.full(len(self.attribution.ranges), -1, np.int32)
        number[self.steps] = np.arange(len(self.steps))
        return number[self._places.forest.range]

    def count(self, kind: int) -> int:
        """Count the ranges of a phase, or the measured steps; parts of a phase if it has no other ranges."""
        if kind == STEP:
            return len(self.steps)
        of_phase = self._phases == kind
        return int((of_phase & ~self._parts).sum() or of_phase.sum())
