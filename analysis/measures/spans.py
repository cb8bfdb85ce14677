"""Phases and steps on the CPU and on the GPU: one span per outermost range of a phase, and per measured step.

A phase's range is one whose name opens the phase inside no range of the same phase; recomputed
forward does not count. If it works on several GPUs, it has a span on each. Work whose phase is known only by its
thread has a span in each step, without bounds on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import Attribution
from ..attribution.places import instances, measured_steps, projections
from ..attribution.user_ranges import named_phases
from ..support.small_numbers import bounds, grouped, summed
from ..trace import KERNEL, Bools, Columns, Int32s, Int64s
from ..vocabulary import BACKWARD, FORWARD, OTHER, PHASES, SERVING

STEP, ALL = len(PHASES), len(PHASES) + 1
NAMES = (*PHASES, "step", "all work")
_SERVING = [PHASES.index(phase) for phase in SERVING]


@dataclass(frozen=True, slots=True)
class Spans(Columns):
    """Columns by span: what it is of (a position in NAMES), its GPU, first start and last end of its work.

    `part` marks ranges that are only a part of their phase, such as a loss next to a forward. `gpu` is a position
    in `Extents.gpus`; `kernel_ns` is the time of the kernels launched inside; `cpu_start_ns` and `cpu_end_ns` are
    the range's own bounds, both the end of the work if it is not `ranged`.
    """

    of: Int32s
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
        self.attribution, self._places = attribution, instances(attribution)
        warm_up = np.append(attribution.warm_up, False)
        self._left_out = warm_up & (not include_warm_up)
        self._steps = measured_steps(attribution, include_warm_up=include_warm_up)
        self.kept: Int64s = np.flatnonzero(~self._left_out[attribution.node])
        self.gpu, self.gpus = _gpus(attribution)

    @cached_property
    def phase_of(self) -> Int32s:
        """Per piece of work: the phase whose range it is in, else its thread's, or -1; int32 (work,)."""
        told = np.where(self.attribution.phase == PHASES.index(OTHER), -1, self.attribution.phase)
        return np.where(self._ranged >= 0, self._ranged, told).astype(np.int32)

    @cached_property
    def _ranged(self) -> Int32s:
        """Per piece of work: the phase whose range it is in, or -1."""
        return self._of_work(self._phases)

    @cached_property
    def step_of(self) -> Int32s:
        """Per piece of work: the measured step it is in, 0 for the first, or -1."""
        return self._of_work(self._step)

    @property
    def steps(self) -> Int32s:
        """The measured steps in order of start: positions in the attribution's ranges."""
        return self._steps

    def inside(self, of: int) -> Bools:
        """Return, per piece of work, whether it is in a phase's ranges, in measured steps, or anywhere."""
        mine: Bools = np.zeros(len(self.gpu), np.bool_)
        mine[self.kept] = True
        return mine if of == ALL else mine & (self.step_of >= 0 if of == STEP else self.phase_of == of)

    def spans(self, *, apart: bool = True) -> Spans:
        """Return the spans of all phases and measured steps; with `apart` one per GPU."""
        gpu = self.gpu if apart else np.zeros_like(self.gpu)
        attribution, kernel = self.attribution, self.attribution.trace.work.kind == KERNEL
        rows = projections(self._places, self.kept, attribution, gpu, kernel)
        parts: list[tuple[NDArray[Any], ...]] = []
        for of in (self._phases, np.where(self._step >= 0, STEP, -1).astype(np.int32)):
            at = np.flatnonzero(of[rows.instance] >= 0)
            range_ = self._places.range[rows.instance[at]]
            columns = (
                of[rows.instance[at]],
                rows.group[at],
                rows.start_ns[at],
                rows.end_ns[at],
                rows.kernel_ns[at],
                self._parts[rows.instance[at]],
            )
            bounds = attribution.ranges.start_ns[range_], attribution.ranges.end_ns[range_]
            parts.append((*columns, *bounds, np.ones(len(at), np.bool_)))
        parts.append(self._without_ranges(gpu))
        return Spans(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _without_ranges(self, gpu: Int32s) -> tuple[NDArray[Any], ...]:
        """Return the columns of one span per phase, step and GPU of the work that is in no range of its phase."""
        kept = self.kept
        rows = kept[(self._ranged[kept] < 0) & (self.phase_of[kept] >= 0)]
        keys = np.stack([self.phase_of[rows], self.step_of[rows], gpu[rows]])
        distinct, at = np.unique(keys, axis=1, return_inverse=True)
        at, count = at.reshape(-1), distinct.shape[1]
        start, end, kernel_ns = self._extent(rows, at, count)
        of, on = distinct[0].astype(np.int32), distinct[2].astype(np.int32)
        no = np.zeros(count, np.bool_)
        return of, on, start, end, kernel_ns, no, end, end, no

    def whole(self) -> Spans:
        """Return one span per GPU from the first start to the last end of all work; no range is open for it."""
        gpus, at = grouped(self.gpu[self.kept])
        start, end, kernel_ns = self._extent(self.kept, at, len(gpus))
        of, no = np.full(len(gpus), ALL, np.int32), np.zeros(len(gpus), np.bool_)
        return Spans(of, gpus.astype(np.int32), start, end, kernel_ns, no, start, end, no)

    def _extent(self, rows: Int64s, group: Int64s, count: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return by group the first start and the last end of pieces of work, and their kernels' time, ns."""
        work = self.attribution.trace.work
        start, end = bounds(group, work.start_ns[rows], work.end_ns[rows], count)
        return start, end, summed(group, np.where(work.kind[rows] == KERNEL, work.duration_ns[rows], 0), count)

    @cached_property
    def _phases(self) -> Int32s:
        """Per instance: the phase it opens, outside of the same phase, or -1; no forward inside backward."""
        places, attribution = self._places, self.attribution
        opens = named_phases(attribution.facts, attribution.ranges)[places.range].astype(np.int32)
        opens[self._left_out[places.node]] = -1
        opens[attribution.recompute[places.node] & (opens == PHASES.index(FORWARD))] = -1
        around = np.zeros(len(places), np.int32)  # a bit for each phase that a range above opens
        for at in places.of_depth()[1:]:
            above = places.parent[at]
            around[at] = around[above] | np.where(opens[above] >= 0, 1 << np.maximum(opens[above], 0), 0)
        recomputed = (opens == PHASES.index(FORWARD)) & ((around >> PHASES.index(BACKWARD)) & 1 > 0)
        served = (opens == PHASES.index(FORWARD)) & np.isin(attribution.node_phase[places.node], _SERVING)
        nested = recomputed | served | ((around >> np.maximum(opens, 0)) & 1 > 0)
        return np.where(nested, -1, opens).astype(np.int32)

    @cached_property
    def _parts(self) -> Bools:
        """Per instance whether its range is only a part of a phase."""
        part: Bools = self.attribution.facts.part[self.attribution.ranges.name_id[self._places.range]]
        return part

    @cached_property
    def _step(self) -> Int32s:
        """Per instance the number of the measured step that it is, else -1."""
        number = np.full(len(self.attribution.ranges), -1, np.int32)
        number[self._steps] = np.arange(len(self._steps))
        return number[self._places.range] if len(self._places) else number[:0]

    def count(self, of: int) -> int:
        """Count the ranges of a phase, or the measured steps; parts of a phase if it has no other ranges."""
        if of == STEP:
            return len(self._steps)
        mine = self._phases == of
        return int((mine & ~self._parts).sum() or mine.sum())

    def _of_work(self, of: Int32s) -> Int32s:
        """Pass a value of instances down to the work inside them."""
        inherited, places = of.copy(), self._places
        for at in places.of_depth()[1:]:
            inherited[at] = np.where(inherited[at] >= 0, inherited[at], inherited[places.parent[at]])
        return np.append(inherited, np.int32(-1))[places.of_node[self.attribution.node]]


def _gpus(attribution: Attribution) -> tuple[Int32s, list[str]]:
    """Return the number of the GPU of each piece of work, and the GPUs' labels.

    Processes number their GPUs themselves, so equal numbers in two processes need not be one GPU.
    """
    work, processes = attribution.trace.work, attribution.trace.processes
    numbers, device = grouped(work.device_id)
    found, gpu = grouped(work.process.astype(np.int64) * max(1, len(numbers)) + device)
    devices = [int(numbers[number % len(numbers)]) for number in found]
    labels = [
        f"GPU {device}"
        + (f" of {processes[number // len(numbers)].process_id}" if devices.count(device) > 1 else "")
        for number, device in zip(found.tolist(), devices, strict=True)
    ]
    return gpu.astype(np.int32), labels
