"""The events of a PyTorch profiler trace, sorted by what they are and turned into columns block by block."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from analysis.readers.columns import Interner
from analysis.readers.trace_events import Event, nanoseconds
from analysis.trace import KERNEL, MEMCPY, MEMSET, Int64s

WORK, LAUNCHES, RANGES = "work", "launches", "ranges"

# Kineto's categories: the table that an event goes to, and for work its kind. What is not here is left out:
# `gpu_user_annotation` repeats ranges on the GPU's side, `python_function` is a stack trace, flows repeat ids.
CATEGORIES: dict[str, tuple[str, int]] = {
    "kernel": (WORK, KERNEL), "gpu_memcpy": (WORK, MEMCPY), "gpu_memset": (WORK, MEMSET),
    "cuda_runtime": (LAUNCHES, 0), "cuda_driver": (LAUNCHES, 0), "xpu_runtime": (LAUNCHES, 0),
    "xpu_driver": (LAUNCHES, 0), "mtia_runtime": (LAUNCHES, 0), "privateuse1_runtime": (LAUNCHES, 0),
    "privateuse1_driver": (LAUNCHES, 0),
    "user_annotation": (RANGES, 0), "cpu_op": (RANGES, 1),
    # As PyTorch 1.8 called them; record_function blocks were operators to it.
    "Kernel": (WORK, KERNEL), "Memcpy": (WORK, MEMCPY), "Memset": (WORK, MEMSET),
    "Runtime": (LAUNCHES, 0), "Operator": (RANGES, 1),
}  # fmt: skip

# Kineto's words for a copy's direction, in those of nsys's reports.
COPY_WORDS = {
    "HtoD": "Host-to-Device", "DtoH": "Device-to-Host", "HtoA": "Host-to-Array", "AtoH": "Array-to-Host",
    "AtoA": "Array-to-Array", "AtoD": "Array-to-Device", "DtoA": "Device-to-Array", "DtoD": "Device-to-Device",
    "HtoH": "Host-to-Host", "PtoP": "Peer-to-Peer",
}  # fmt: skip

# A process or thread as the trace numbers it; GPUs count as processes there, and streams as threads.
Id = int | str
Place = tuple[Id, Id]

_NUMBER = re.compile(r"-?\d{1,18}")
_NO_DURATION = msgspec.Raw()


@dataclass(slots=True)
class Table:
    """Columns of one length, collected in pieces."""

    pieces: dict[str, list[Int64s]] = field(default_factory=lambda: defaultdict(list))
    rows: int = 0

    def add(self, rows: int, **columns: Int64s) -> None:
        """Append some rows."""
        self.rows += rows
        for name, values in columns.items():
            self.pieces[name].append(values)

    def __getitem__(self, column: str) -> Int64s:
        return np.concatenate(self.pieces[column]) if self.rows else np.empty(0, np.int64)


class TraceColumns:
    """Everything that is read of a trace's events, names and places as numbers.

    Work: `start`, `end`, `name`, `kind`, `device`, `stream`, `place` (in `tracks`), `correlation`, `grid`.
    Launches: `start`, `end`, `place` (in `threads`), `correlation`, `external`.
    Ranges: `start`, `end`, `name`, `place` (in `threads`), `external`, `sequence`, `is_operator`.
    Times in ns; a missing correlation, external id or sequence number is -1.
    """

    def __init__(self) -> None:
        self.work, self.launches, self.ranges = Table(), Table(), Table()
        self.names: Interner[str] = Interner()
        self.threads: Interner[Place] = Interner()
        self.tracks: Interner[Place] = Interner()
        self.thread_names: dict[Place, str] = {}
        self.process_names: dict[Id, str] = {}
        self.without_duration = 0

    def __len__(self) -> int:
        return self.work.rows + self.launches.rows + self.ranges.rows

    def take(self, events: Iterable[Event]) -> None:
        """Sort some events into the tables.

        Raises ValueError for an event whose time is no number.
        """
        chosen: dict[tuple[str, int], list[Event]] = defaultdict(list)
        for event in events:
            if event.ph == "X" and event.cat in CATEGORIES:
                chosen[CATEGORIES[event.cat]].append(event)
            elif event.ph == "M":
                self._name(event)
        add: dict[str, Callable[[list[Event], int], None]] = {
            WORK: self._add_work, LAUNCHES: self._add_launches, RANGES: self._add_ranges,
        }  # fmt: skip
        for (table, kind), found in chosen.items():
            timed = [event for event in found if event.dur != _NO_DURATION]
            self.without_duration += len(found) - len(timed)
            if timed:
                add[table](timed, kind)

    def _add_work(self, events: list[Event], kind: int) -> None:
        self.work.add(
            len(events),
            **_times(events),
            name=self._names(events, _NAME_OF_WORK[kind]),
            kind=np.full(len(events), kind),
            device=_integers([_device(event) for event in events], 0),
            stream=_integers([_stream(event) for event in events], 0),
            place=_places(events, self.tracks),
            correlation=_integers([event.args.correlation for event in events], -1),
            grid=np.fromiter((_blocks(event.args.grid) for event in events), np.int64, len(events)),
        )

    def _add_launches(self, events: list[Event], _: int) -> None:
        self.launches.add(
            len(events),
            **_times(events),
            place=_places(events, self.threads),
            correlation=_integers([event.args.correlation for event in events], -1),
            external=_external(events),
        )

    def _add_ranges(self, events: list[Event], is_operator: int) -> None:
        self.ranges.add(
            len(events),
            **_times(events),
            name=self._names(events, str),
            place=_places(events, self.threads),
            external=_external(events),
            sequence=_integers([event.args.sequence for event in events], -1),
            is_operator=np.full(len(events), is_operator),
        )

    def _names(self, events: list[Event], text: Callable[[str], str]) -> Int64s:
        return np.fromiter((self.names(text(event.name)) for event in events), np.int64, len(events))

    def _name(self, event: Event) -> None:
        if event.name == "thread_name":
            self.thread_names[_id(event.pid), _id(event.tid)] = str(event.args.name or "")
        elif event.name == "process_name":
            self.process_names[_id(event.pid)] = str(event.args.name or "")


def _copy_name(name: str) -> str:
    """Name a copy as nsys does: `Memcpy HtoD (Pageable -> Device)` is a `[CUDA memcpy Host-to-Device]`."""
    word = [*name.split(), "", ""][1]
    return f"[CUDA memcpy {COPY_WORDS.get(word, 'of unknown kind')}]"


_NAME_OF_WORK: dict[int, Callable[[str], str]] = {
    KERNEL: lambda name: name or "(kernel without a name)",
    MEMCPY: _copy_name,
    MEMSET: lambda _: "[CUDA memset]",
}


def _times(events: list[Event]) -> dict[str, Int64s]:
    start = nanoseconds([event.ts for event in events])
    return {"start": start, "end": start + nanoseconds([event.dur for event in events])}


def _places(events: list[Event], number: Interner[Place]) -> Int64s:
    written = [(event.pid, event.tid) for event in events]
    numbers = {place: number((_id(place[0]), _id(place[1]))) for place in dict.fromkeys(written)}
    return np.fromiter((numbers[place] for place in written), np.int64, len(written))


def _external(events: list[Event]) -> Int64s:
    every = [event.args for event in events]
    return _integers([args.old_external if args.external is None else args.external for args in every], -1)


def _device(event: Event) -> Any:
    """Return the GPU of a piece of work, which the trace also takes for its process."""
    return event.pid if event.args.device is None else event.args.device


def _stream(event: Event) -> Any:
    """Return the stream of a piece of work; PyTorch 1.8 had only `stream 7` as its thread."""
    if event.args.stream is not None:
        return event.args.stream
    return event.tid.removeprefix("stream ") if isinstance(event.tid, str) else event.tid


def _blocks(grid: Any) -> int:
    """Return how many blocks a grid such as `[32, 1, 2]` has; 0 where unknown."""
    if not isinstance(grid, list) or len(grid) != 3 or not all(isinstance(size, int) for size in grid):
        return 0
    return min(max(0, int(grid[0] * grid[1] * grid[2])), 2**31 - 1)


def _id(value: Any) -> Id:
    """Return a process or thread id; one that is written as a string of digits is a number."""
    number = _whole(value)
    return str(value) if number is None else number


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if _NUMBER.fullmatch(value) else None
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if is_whole and abs(value) < 1 << 62 else None


def _integers(values: Sequence[Any], missing: int) -> Int64s:
    whole = (value if type(value) is int and abs(value) < 1 << 62 else _whole(value) for value in values)
    return np.fromiter((missing if value is None else value for value in whole), np.int64, len(values))
