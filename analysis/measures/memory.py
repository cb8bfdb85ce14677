"""What each range and phase allocated, kept for backward and freed, and what it held when memory peaked.

An allocation belongs to the ranges that were open where it was made, as a kernel does to those of its launch; a
free to those where it happened, whoever had allocated. *Kept* is what forward allocated and still lived when
the backward of its step began. What is held at a moment is what the allocator said of itself; what it holds
without an allocation in the report was there before, or came and went unseen, and is never given to a range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..attribution.steps import step_of_nodes
from ..trace import Allocations, Bools, Int32s, Int64s, Path
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
    measured = _Measuring(attribution, table, include_warm_up, in_steps)
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
    measuring = _Measuring(attribution, table, include_warm_up=True, in_steps=False)
    rows_of = [np.flatnonzero(measuring.device == device) for device in range(len(measuring.labels))]
    return {
        label: (table.at_ns[rows], measuring.held[rows])
        for label, rows in zip(measuring.labels, rows_of, strict=True)
    }


class _Measuring:
    """The allocations of a report, each with its step, its end and whether it counts; entries are by event."""

    def __init__(
        self, attribution: Attribution, table: Allocations, include_warm_up: bool, in_steps: bool
    ) -> None:
        self.attribution, self.table = attribution, table
        self.node, self.phase = attribution.memory_node, attribution.memory_phase
        self.paths = Paths(attribution)
        self.is_new = table.bytes > 0
        self.ended = _ends(table, self.is_new)
        self.step = step_of_nodes(attribution, include_warm_up=include_warm_up)[self.node]
        warm_up = np.append(attribution.warm_up, False)[self.node]
        self.counted: Bools = (include_warm_up | ~warm_up) & ((self.step >= 0) | (not in_steps))
        self.device, self.labels = _devices(attribution, table)
        self.held = self._held()

    def ranges(self) -> Iterator[RangeMemory]:
        """Yield each path and phase with its sums, outer before inner; last what is in no range."""
        forest, size, new = self.attribution.forest, np.abs(self.table.bytes), self.is_new & self.counted
        columns = (  # of RangeMemory
            (new, np.ones_like(size)),
            (new, size),
            (self.kept & self.counted, size),
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
            on_device = self.counted & (self.device == device)
            for phase in np.unique(self.phase[on_device]).tolist():
                rows = np.flatnonzero(on_device & (self.phase == phase))
                top = int(rows[np.argmax(level[rows])])
                yield Peak(self.labels[device], PHASES[phase], int(level[top]), self._path(top))

    def holders(self) -> Iterator[Holder]:
        """Yield who held memory at each device's peak, most first, and what nobody explains."""
        for device, moment in self.moments.items():
            rows = np.flatnonzero(self.at_peak & (self.device == device))
            held = [
                Holder(self.labels[device], path, phase, len(events), int(self.table.bytes[events].sum()))
                for (path, phase), events in self._by_place(rows)
            ]
            yield from sorted(held, key=lambda holder: (-holder.held_bytes, holder.path, holder.phase))
            unexplained = int(self.held[moment]) - sum(holder.held_bytes for holder in held)
            if unexplained:
                yield Holder(self.labels[device], None, "", 0, unexplained)

    def blocks(self) -> Iterator[Blocks]:
        """Yield allocations by place, size and the phase that freed them, largest first."""
        blocks = []
        for (path, phase), rows in self._by_place(np.flatnonzero(self.is_new & self.counted)):
            freed = self.ended[rows]
            is_seen = (freed >= 0) & ~self.is_new[freed]
            sizes, ends = self.table.bytes[rows], np.where(is_seen, self.phase[freed].astype(np.int64), NONE)
            keys, counts = np.unique(np.stack([sizes, ends]), axis=1, return_counts=True)
            for (size, end), count in zip(keys.T.tolist(), counts.tolist(), strict=True):
                blocks.append(Blocks(path, phase, PHASES[end] if end >= 0 else "", size, count))
        yield from sorted(
            blocks, key=lambda block: (-block.bytes, -block.count, block.path, block.phase, block.freed_in)
        )

    def balances(self) -> Iterator[Balance]:
        """Yield each device's sums over everything recorded."""
        for device, label in enumerate(self.labels):
            rows = np.flatnonzero(self.device == device)
            size = self.table.bytes[rows]
            before, after = int(self.held[rows[0]] - size[0]), int(self.held[rows[-1]])
            allocated, freed = int(size[size > 0].sum()), int(-size[size < 0].sum())
            yield Balance(label, before, allocated, freed, after - before - allocated + freed, after)

    @cached_property
    def moments(self) -> dict[int, int]:
        """The event at which each device held most while it was measured, by the device's number."""
        by_device = {}
        for device in range(len(self.labels)):
            rows = np.flatnonzero(self.counted & (self.device == device))
            if len(rows):
                by_device[device] = int(rows[np.argmax(self.held[rows])])
        return by_device

    @cached_property
    def at_peak(self) -> Bools:
        """Whether each is an allocation that lived when its device held most."""
        moment = np.array([self.moments.get(device, NONE) for device in range(len(self.labels))])[self.device]
        number = np.arange(len(self.table))
        lives: Bools = (self.ended == NONE) | (self.ended > moment)
        return self.is_new & (number <= moment) & lives

    @cached_property
    def kept(self) -> Bools:
        """Whether each is an allocation of forward that lived when the backward of its step began."""
        number, events = np.arange(len(self.table)), len(self.table)
        steps = int(self.step.max(initial=NONE)) + 2  # and that of no step; each process has its own
        moment = (self.table.process.astype(np.int64) * steps + self.step + 1) * events + number
        backward = np.append(np.sort(moment[self.phase == IN_BACKWARD]), NONE)
        then = backward[np.searchsorted(backward[:-1], moment)]
        has_backward: Bools = (then >= 0) & (then // events == moment // events)
        lives: Bools = (self.ended == NONE) | (self.ended >= then % events)
        is_forward: Bools = self.phase == IN_FORWARD
        return self.is_new & is_forward & lives & has_backward

    def _by_place(self, rows: Int64s) -> Iterator[tuple[tuple[Path, str], Int64s]]:
        """Group events by their own path and phase."""
        place = self.paths.of_node[self.node[rows]].astype(np.int64) * len(PHASES) + self.phase[rows]
        order = np.argsort(place, kind="stable")
        keys, first = np.unique(place[order], return_index=True)
        for key, events in zip(keys.tolist(), np.split(rows[order], first[1:]), strict=False):
            number, phase = divmod(key, len(PHASES))
            yield (self.paths.paths[number], PHASES[phase]), events

    def _path(self, event: int) -> Path:
        path: Path = self.paths.paths[self.paths.of_node[self.node[event]]]
        return path

    def _held(self) -> Int64s:
        """Return what the device of each event holds after it, by the allocator, or else by the events alone."""
        held = self.table.total_bytes.copy()
        on_cpu = self.attribution.trace.provenance.unit_of_work == "CPU"
        for device in range(len(self.labels)):
            rows = np.flatnonzero(self.device == device)
            if held[rows[0]] < 0:
                held[rows] = np.cumsum(self.table.bytes[rows])
            elif on_cpu:  # the CPU's total begins with the first profiler of the process, not with the process
                held[rows] -= held[rows[0]] - self.table.bytes[rows[0]]
        return held


def _ends(table: Allocations, is_new: Bools) -> Int64s:
    """Return the event that ends each allocation: its free, or the next one in its place; -1 if it stays."""
    order = np.lexsort((np.arange(len(table)), table.block, table.device_id, table.process))
    first, second = order[:-1], order[1:]
    same = is_new[first]
    for column in (table.block, table.device_id, table.process):
        same &= column[first] == column[second]
    ended = np.full(len(table), NONE, np.int64)
    ended[first[same]] = second[same]
    return ended


def _devices(attribution: Attribution, table: Allocations) -> tuple[Int32s, list[str]]:
    """Return each event's number of device and process, and their names."""
    trace = attribution.trace
    pairs, number = np.unique(np.stack([table.process, table.device_id]), axis=1, return_inverse=True)
    several = len(set(pairs[0].tolist())) > 1
    labels = []
    for process, device in pairs.T.tolist():
        name = "CPU" if trace.provenance.unit_of_work == "CPU" else f"GPU {device}"
        labels.append(f"{name} of process {trace.processes[process].process_id}" if several else name)
    return number.reshape(-1).astype(np.int32), labels
