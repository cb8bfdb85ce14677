"""Bytes that each range and phase allocated, kept for backward and freed, and held when memory peaked.

An allocation belongs to the ranges that were open when it was made, as a kernel belongs to those of its launch. A
free belongs to the ranges in which it happened. *Kept* bytes were allocated in forward and still in use when the
backward of the step began. The bytes in use at a moment are the allocator's own total; those without an allocation
in the report were there before, or came unseen, and are never given to a range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..attribution.steps import step_of_nodes
from ..support.small_numbers import each_row, grouped_rows, rows_of_each
from ..trace import Allocations, Bools, Int64s, Path
from ..vocabulary import BACKWARD, FORWARD, PHASES

IN_FORWARD, IN_BACKWARD = PHASES.index(FORWARD), PHASES.index(BACKWARD)
NONE = -1


@dataclass(frozen=True, slots=True)
class RangeMemory:
    """One range and phase with all inside it, bytes; `path` is empty for what is in no range.

    `peak_bytes` are those of its allocations that lived when their device held most.
    """

    path: Path
    phase: str
    allocations: int
    allocated_bytes: int
    kept_bytes: int
    freed_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that one device held, bytes, in one phase or at all (`phase` is empty), and the range it was in."""

    device: str
    phase: str
    held_bytes: int
    path: Path


@dataclass(frozen=True, slots=True)
class Holder:
    """What a range's own allocations held at a device's peak; `path` is None for what no allocation explains."""

    device: str
    path: Path | None
    phase: str
    blocks: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """Allocations of one size in one range and phase, and the phase that freed them, empty if none did."""

    path: Path
    phase: str
    freed_in: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class Balance:
    """One device from the first event to the last, bytes: before + allocated - freed + unseen = after."""

    device: str
    before_bytes: int
    allocated_bytes: int
    freed_bytes: int
    unseen_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a report; `balances` are of everything recorded, the rest of what is measured."""

    ranges: tuple[RangeMemory, ...]
    peaks: tuple[Peak, ...]
    holders: tuple[Holder, ...]
    blocks: tuple[Blocks, ...]
    balances: tuple[Balance, ...]
    of_tensors: bool  # what PyTorch's allocator handed out; else what CUDA did
    of_steps: bool  # all that is measured lies in measured steps


def memory(attribution: Attribution, *, include_warm_up: bool = False, in_steps: bool = False) -> Memory | None:
    """Join allocations to ranges; None if the report has none.

    Warm-up is left out unless asked for; with `in_steps`, what lies in no measured step is left out too.
    """
    table = attribution.trace.memory
    if table is None or not len(table):
        return None
    measured = _Measured(attribution, table, include_warm_up, in_steps)
    return Memory(
        ranges=tuple(measured.ranges()),
        peaks=tuple(measured.peaks()),
        holders=tuple(measured.holders()),
        blocks=tuple(measured.blocks()),
        balances=tuple(measured.balances()),
        of_tensors=bool((table.total_bytes >= 0).all()),
        of_steps=bool((measured.step[measured.counted] >= 0).all()),
    )


def held_over_time(attribution: Attribution) -> dict[str, tuple[Int64s, Int64s]]:
    """Return, by device, when its allocator did something, ns, and how many bytes it held then."""
    table = attribution.trace.memory
    if table is None or not len(table):
        return {}
    measured = _Measured(attribution, table, include_warm_up=True, in_steps=False)
    devices = zip(measured.labels, measured.events, strict=True)
    return {label: (table.at_ns[events], measured.held[events]) for label, events in devices}


class _Measured:
    """The allocations of a report, each with its step, its end and whether it counts; entries are by event.

    `labels` name the devices, and `events` are those of each; `moments` are the events at which each held most
    while it was measured, by the device's number.
    """

    def __init__(
        self, attribution: Attribution, table: Allocations, include_warm_up: bool, in_steps: bool
    ) -> None:
        self.trace = attribution.trace
        self.forest = attribution.forest
        self.table = table
        self.node = attribution.memory_node
        self.phase = attribution.memory_phase
        self.paths = Paths(attribution)
        self.is_new = table.bytes > 0
        self.ended = _ends(table, self.is_new)
        self.step = step_of_nodes(attribution, include_warm_up=include_warm_up)[self.node]
        left_out = attribution.left_out(include_warm_up=include_warm_up)[self.node]
        self.counted: Bools = ~left_out & ((self.step >= 0) | (not in_steps))
        devices, self.events = zip(*rows_of_each(table.process, table.device_id), strict=True)
        several = len({process for process, _ in devices}) > 1
        on_cpu = self.trace.provenance.unit_of_work == "CPU"
        self.labels = [
            ("CPU" if on_cpu else f"GPU {device}")
            + (f" of process {self.trace.processes[process].process_id}" if several else "")
            for process, device in devices
        ]
        # What the device of each event holds after it, by the allocator, or else by the events alone.
        self.held = table.total_bytes.copy()
        self.moments = dict[int, int]()
        for device, events in enumerate(self.events):
            if self.held[events[0]] < 0:
                self.held[events] = np.cumsum(table.bytes[events])
            elif on_cpu:  # the CPU's total begins with the first profiler of the process, not with the process
                self.held[events] -= self.held[events[0]] - table.bytes[events[0]]
            measured = events[self.counted[events]]
            if len(measured):
                self.moments[device] = int(measured[np.argmax(self.held[measured])])
        # The allocations that lived when their device held most.
        self.at_peak = np.zeros(len(table), np.bool_)
        for device, moment in self.moments.items():
            before = self.events[device][self.events[device] <= moment]
            lives = (self.ended[before] == NONE) | (self.ended[before] > moment)
            self.at_peak[before] = self.is_new[before] & lives

    def ranges(self) -> Iterator[RangeMemory]:
        """Yield each path and phase with its sums, outer before inner; last what is in no range."""
        forest = self.forest
        size = np.abs(self.table.bytes)
        new = self.is_new & self.counted
        columns = (  # of RangeMemory
            (new, np.ones_like(size)),
            (new, size),
            (self._kept() & self.counted, size),
            (~self.is_new & self.counted, size),
            (self.at_peak, size),
        )
        sums = np.zeros((len(forest) + 1, len(columns)), np.int64)  # per node, and last of what is in none
        for column, (chosen, values) in enumerate(columns):
            np.add.at(sums[:, column], self.node[chosen], values[chosen])
        for nodes in forest.by_depth()[:0:-1]:
            np.add.at(sums, forest.parent[nodes], sums[nodes])
        of_paths = np.zeros((len(self.paths) + 1, len(columns)), np.int64)
        np.add.at(of_paths, self.paths.of_node, sums)
        phases = [*(PHASES[phase] for phase in self.paths.phase), ""]
        for number in np.flatnonzero(of_paths.any(axis=1)).tolist():
            yield RangeMemory(self.paths.paths[number], phases[number], *of_paths[number].tolist())

    def peaks(self) -> Iterator[Peak]:
        """Yield the peak of each device, and of each of its phases."""
        level = np.maximum(self.held, self.held - self.table.bytes)
        for device, moment in self.moments.items():
            yield Peak(self.labels[device], "", int(self.held[moment]), self._path(moment))
            events = self.events[device][self.counted[self.events[device]]]
            for (phase,), rows in rows_of_each(self.phase[events]):
                top = int(events[rows[np.argmax(level[events[rows]])]])
                yield Peak(self.labels[device], PHASES[phase], int(level[top]), self._path(top))

    def holders(self) -> Iterator[Holder]:
        """Yield who held memory at each device's peak, most first, and what nobody explains."""
        for device, moment in self.moments.items():
            events = self.events[device][self.at_peak[self.events[device]]]
            label = self.labels[device]
            holders = []
            for (number, phase), rows in rows_of_each(self.paths.of_node[self.node[events]], self.phase[events]):
                held_bytes = int(self.table.bytes[events[rows]].sum())
                holders.append(Holder(label, self.paths.paths[number], PHASES[phase], len(rows), held_bytes))
            yield from sorted(holders, key=lambda holder: (-holder.held_bytes, holder.path, holder.phase))
            unexplained = int(self.held[moment]) - sum(holder.held_bytes for holder in holders)
            if unexplained:
                yield Holder(label, None, "", 0, unexplained)

    def blocks(self) -> Iterator[Blocks]:
        """Yield allocations by place, size and the phase that freed them, largest first."""
        events = np.flatnonzero(self.is_new & self.counted)
        freed = self.ended[events]
        freed_in = np.where((freed >= 0) & ~self.is_new[freed], self.phase[freed], np.int8(NONE))
        path = self.paths.of_node[self.node[events]]
        keys, group = grouped_rows(path, self.phase[events], freed_in, self.table.bytes[events])
        columns = each_row(*keys, np.bincount(group))
        blocks = [
            Blocks(self.paths.paths[number], PHASES[phase], PHASES[end] if end >= 0 else "", size, count)
            for number, phase, end, size, count in columns
        ]
        yield from sorted(
            blocks, key=lambda block: (-block.bytes, -block.count, block.path, block.phase, block.freed_in)
        )

    def balances(self) -> Iterator[Balance]:
        """Yield each device's sums over everything recorded."""
        for label, events in zip(self.labels, self.events, strict=True):
            size = self.table.bytes[events]
            before = int(self.held[events[0]] - size[0])
            after = int(self.held[events[-1]])
            allocated = int(size[size > 0].sum())
            freed = int(-size[size < 0].sum())
            yield Balance(label, before, allocated, freed, after - before - allocated + freed, after)

    def _kept(self) -> Bools:
        """Return whether each is an allocation of forward that lived when the backward of its step began."""
        number = np.arange(len(self.table))
        count = len(self.table)
        steps = int(self.step.max(initial=NONE)) + 2  # and that of no step; each process has its own
        moment = (self.table.process.astype(np.int64) * steps + self.step + 1) * count + number
        backward = np.append(np.sort(moment[self.phase == IN_BACKWARD]), NONE)
        then = backward[np.searchsorted(backward[:-1], moment)]
        has_backward = (then >= 0) & (then // count == moment // count)
        lives = (self.ended == NONE) | (self.ended >= then % count)
        kept: Bools = self.is_new & (self.phase == IN_FORWARD) & lives & has_backward
        return kept

    def _path(self, event: int) -> Path:
        return self.paths.paths[int(self.paths.of_node[self.node[event]])]


def _ends(table: Allocations, is_new: Bools) -> Int64s:
    """Return the event that ends each allocation: its free, or the next one in its place; -1 if it stays."""
    _, place = grouped_rows(table.process, table.device_id, table.block)
    order = np.argsort(place, kind="stable")
    first = order[:-1]
    second = order[1:]
    ended = np.full(len(table), NONE, np.int64)
    same = is_new[first] & (place[first] == place[second])
    ended[first[same]] = second[same]
    return ended
