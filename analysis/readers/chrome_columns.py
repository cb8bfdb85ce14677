"""The events of a PyTorch profiler trace, sorted by kind and turned into columns block by block."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..operators import is_known
from ..operators.calls import type_of
from ..trace import BETWEEN_TEXTS, KERNEL, MEMCPY, MEMSET, CallText, Int64s, Path
from ..vocabulary.calls import LOADING, kind_of_call
from .chrome_events import Args, Event, nanoseconds
from .columns import Interner
from .graph_annotations import module_path, node_id
from .memory_kinds import memory_of
from .stack_frames import FRAME, FUNCTION_CALL, NO_FRAME, Functions, kind_of, range_name
from .weight_shapes import WEIGHTS, weight_shape

WORK = "work"
LAUNCHES = "launches"
RANGES = "ranges"
FRAMES = "frames"
OVERHEAD = "overhead"
SYNCS = "syncs"

# What an operator's shapes are of use for: the shape of a module's weight, and its FLOPs and bytes.
OF_WEIGHT = 1
OF_COST = 2

DEVICES = ("cuda", "xpu", "mtia", "privateuse1")

# What PyTorch 1.8 and 1.9 call an operator; nodes of autograd got a number at the end of their names in 1.10.
OLD_OPERATOR = 2
_OLD_NODE = re.compile(r"[A-Z]\w*Backward")

# Kineto's categories: the table that an event goes to, and for work its kind. What is not here is left out:
# `gpu_user_annotation` repeats ranges on the GPU's side. Of Python's frames, `stack_frames` chooses. Of the flows,
# those from a forward operator to the backward node that it made are read; the others repeat ids.
CATEGORIES: dict[str, tuple[str, int]] = {
    "kernel": (WORK, KERNEL),
    "gpu_memcpy": (WORK, MEMCPY),
    "gpu_memset": (WORK, MEMSET),
    **{
        f"{device}_{api}": (LAUNCHES, number)
        for number, device in enumerate(DEVICES)
        for api in ("runtime", "driver")
    },
    "user_annotation": (RANGES, 0),
    "cpu_op": (RANGES, 1),
    # As PyTorch 1.8 called them; record_function blocks were operators to it.
    "Kernel": (WORK, KERNEL),
    "Memcpy": (WORK, MEMCPY),
    "Memset": (WORK, MEMSET),
    "Runtime": (LAUNCHES, 0),
    "Operator": (RANGES, OLD_OPERATOR),
    "overhead": (OVERHEAD, 0),
    "cuda_sync": (SYNCS, 1),
    "cuda_event": (SYNCS, 0),
}
#: By Kineto's names, what CUPTI calls the type of a synchronization (CUpti_ActivitySynchronizationType).
SYNC_TYPES = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
FORWARD_TO_BACKWARD = "fwdbwd"
MEMORY_EVENT = "[memory]"

# Kineto's words for a copy's direction: `HtoD` is nsys's Host-to-Device.
COPY_ENDS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}

# Columns whose numbers are positions or kinds, in the bytes that they need.
_SMALL = ("kind", "is_operator", "is_end", "loads", "frame")
_POSITIONS = ("name", "place", "weight", "call_text")
_TINY = ("from_memory", "to_memory")
WIDTHS = {
    **dict.fromkeys(_POSITIONS, np.int32),
    **dict.fromkeys(_SMALL, np.uint8),
    **dict.fromkeys(_TINY, np.int8),
}

# What Kineto writes into kernels that communicate is by PyTorch's torch/csrc/distributed/c10d/ParamCommsUtils.hpp,
# and libkineto's output_json.cpp before it: elements and their type; bytes are their product. Types are named as
# c10::ScalarType does, and in PyTorch's own spelling.
#: More than any collective carries: a count beyond it is damaged.
MOST_ELEMENTS = 1 << 48
MESSAGE = ("collective", "group", "ranks", "sent", "received")

# A process or thread as the trace numbers it; GPUs count as processes there, and streams as threads.
Id = int | str
Place = tuple[Id, Id]

_NUMBER = re.compile(r"-?\d{1,18}")
_SIZES = msgspec.json.Decoder(tuple[int, int, int])
_UNKNOWN_SIZES = (0, 0, 0)
_NOTHING = msgspec.Raw()
# The largest number that is taken for an id.
LARGEST = (1 << 62) - 1


@dataclass(slots=True)
class Table:
    """Columns of one length, collected in pieces; small numbers in few bytes, and all of them read as int64."""

    pieces: dict[str, list[Int64s]] = field(default_factory=lambda: defaultdict(list))
    rows: int = 0

    def add(self, **columns: Int64s) -> None:
        """Append some rows."""
        self.rows += len(next(iter(columns.values())))
        for name, values in columns.items():
            self.pieces[name].append(values.astype(WIDTHS.get(name, np.int64), copy=False))

    def __getitem__(self, column: str) -> Int64s:
        if self.rows:
            return np.concatenate(self.pieces[column], dtype=np.int64)
        return np.empty(0, np.int64)


class TraceColumns:
    """Everything that is read of a trace's events, names and places as numbers.

    Work: `start`, `end`, `name`, `kind`, `device`, `stream`, `place` (in `tracks`), `correlation`, `grid`.
    Launches: `start`, `end`, `place` (in `threads`), `correlation`, `external`, `call` (in `calls`). Ranges:
    `start`, `end`, `name`, `place` (in `threads`), `external`, `sequence`, `forward` (the profiler's number of the
    thread that made a backward node, 0 for any other), `is_operator`, `frame` (what a Python frame is, by
    `stack_frames`), `weight` (in `shapes`, -1 where unknown). Messages, of work that communicates: `work` (its
    row), `collective` and `group` (names), `ranks`, `sent` and `received` (bytes, -1 where unknown). Copies:
    `work` (its row), `bytes` (-1 where unknown), `from_memory` and `to_memory` (numbered by `memory_kinds`).
    Nodes, of
    work of CUDA graphs: `work` (its row), `node` (its id, -1 where unknown) and `path` (in `module_paths`, -1
    where PyTorch did not annotate it). Flows, from an operator to the node that it made: `id`, `place`, `start`
    of the one, `is_end`: of the node. Memory: `start`, `place` (in `threads`), `device_type` (0 is the CPU),
    `device`, `block`, `bytes`, `total`. Frames, of Python's functions: `start`, `end`, `name` (in `functions`),
    `place` (in `threads`). Operators, with shapes: `start`, `end`, `place` (in `threads`), `call_text` (in
    `operator_calls`). Overhead, of the profiler: `start`, `end`, `place` (in `overhead_places`),
    `loads` (it is the loading of code). Syncs, which `stream_waits` reads: `start`, `end`, `correlation`, `kind`
    (of SYNC_TYPES, 0 where an event is recorded), `stream`, `event` (0 for none), `record` (the correlation of
    the call that recorded it) and `record_stream`, `device`, `context`. Times in ns; a missing correlation,
    external id, sequence number or stream is -1.
    """

    def __init__(self, functions: Functions = "") -> None:
        self.work = Table()
        self.launches = Table()
        self.ranges = Table()
        self.flows = Table()
        self.called_devices: set[str] = set()
        self.messages = Table()
        self.nodes = Table()
        self.memory = Table()
        self.overhead = Table()
        self.frames = Table()
        self.syncs = Table()
        self.copies = Table()
        self.operators = Table()
        self.operator_calls: Interner[CallText] = Interner()
        self.names: Interner[str] = Interner()
        self.functions: Interner[str] = Interner()
        self.calls: Interner[str] = Interner()
        self.overhead_places: Interner[Place] = Interner()  # not all are threads
        self.threads: Interner[Place] = Interner()
        self.tracks: Interner[Place] = Interner()
        self.module_paths: Interner[Path] = Interner()
        self.thread_names: dict[Place, str] = {}
        self.process_names: dict[Id, str] = {}
        self.without_duration = 0
        self.shapes: Interner[str] = Interner()
        self._of_use = np.empty(0, np.uint8)
        self._functions: Functions = functions
        self._calls_of_functions: list[Event] = []
        self._kind_of_frame: dict[str, tuple[int, bool]] = {}

    def __len__(self) -> int:
        return self.work.rows + self.launches.rows + self.ranges.rows

    def take(self, events: Iterable[Event]) -> None:
        """Sort some events into the tables.

        Raises ValueError for an event whose time is not a number.
        """
        timed: dict[tuple[str, int], list[Event]] = defaultdict(list)
        flows = []
        allocations = []
        for event in events:
            if event.ph == "X":
                table_and_kind = CATEGORIES.get(event.cat)
                if table_and_kind is None:
                    frame = self._frame(event) if event.cat == FRAME else NO_FRAME
                    if not frame:
                        continue
                    table_and_kind = FRAMES, frame
                if event.dur == _NOTHING:
                    self.without_duration += 1
                else:
                    timed[table_and_kind].append(event)
            elif event.cat == FORWARD_TO_BACKWARD:
                flows.append(event)
            elif event.name == MEMORY_EVENT:
                allocations.append(event)
            elif event.ph == "M" and event.name == "thread_name":
                self.thread_names[_id(event.pid), _id(event.tid)] = str(event.args.name or "")
            elif event.ph == "M" and event.name == "process_name":
                self.process_names[_id(event.pid)] = str(event.args.name or "")
        add = {
            WORK: self._add_work,
            LAUNCHES: self._add_launches,
            RANGES: self._add_ranges,
            FRAMES: self._add_frames,
            OVERHEAD: self._add_overhead,
            SYNCS: self._add_syncs,
        }
        for (table, kind), rows in timed.items():
            add[table](rows, kind)
        self._add_calls_of_functions()
        if flows:
            self._add_flows(flows)
        if allocations:
            self._add_memory(allocations)

    def _add_work(self, events: list[Event], kind: int) -> None:
        args = [event.args for event in events]
        self._add_messages(args)
        self._add_nodes(args)
        if kind == MEMCPY:
            self._add_copies(events)
        self.work.add(
            **_times(events),
            name=self._names(events, _NAME_OF_WORK[kind]),
            kind=np.full(len(events), kind),
            device=integers([_first(event.args.device, event.pid) for event in events], 0),
            stream=integers(list(map(_stream, events)), 0),
            place=_places(events, self.tracks),
            correlation=_numbers(args, "correlation", -1),
            grid=numbered([bytes(of_work.grid) for of_work in args], _blocks),
        )

    def _add_messages(self, args_of_work: list[Args]) -> None:
        """Add the collectives in kernels' own arguments; call this before their rows are added."""
        messages = []
        for row, args in enumerate(args_of_work, self.work.rows):
            if args.collective is None:
                continue
            element_bytes = int(type_of(str(args.dtype)).bytes)
            ranks = _first(args.group_ranks, "")  # a list, or the text of one
            if not isinstance(ranks, str):
                ranks = json.dumps(ranks)
            parts = (args.group, ranks.replace(" ", ""))
            group = " ".join(str(part) for part in parts if part not in (None, ""))
            messages.append(
                (
                    row,
                    self.names(str(args.collective)),
                    self.names(group),
                    max(_count(args.group_size), 0),
                    _bytes(args.sent, element_bytes),
                    _bytes(args.received, element_bytes),
                )
            )
        if messages:
            columns = np.array(messages, np.int64).T
            self.messages.add(**dict(zip(("work", *MESSAGE), columns, strict=True)))

    def _add_nodes(self, args_of_work: list[Args]) -> None:
        """Take which graph's node work is of, and its module as PyTorch annotated it; call as `_add_messages`."""
        of_graphs = [(row, args) for row, args in enumerate(args_of_work, self.work.rows) if args.graph_node]
        paths = [module_path(args.module, args.name, args.phase) for _, args in of_graphs]
        self.nodes.add(
            work=np.array([row for row, _ in of_graphs], np.int64),
            node=integers([node_id(args.graph, args.graph_node) for _, args in of_graphs], -1),
            path=np.array([self.module_paths(path) if path else -1 for path in paths], np.int64),
        )

    def _add_copies(self, events: list[Event]) -> None:
        """Take the sizes of copies, and whose memory they are from and to; call as `_add_messages`."""
        memory = [memory_of(event.name) for event in events]
        self.copies.add(
            work=np.arange(len(events)) + self.work.rows,
            bytes=integers([event.args.copied for event in events], -1),
            from_memory=np.array([source for source, _ in memory], np.int64),
            to_memory=np.array([target for _, target in memory], np.int64),
        )

    def _add_launches(self, events: list[Event], device: int) -> None:
        self.called_devices.add(DEVICES[device])
        self.launches.add(
            **_times(events),
            place=_places(events, self.threads),
            correlation=_numbers([event.args for event in events], "correlation", -1),
            external=_external_ids(events),
            call=numbered([event.name for event in events], self.calls),
        )

    def _add_overhead(self, events: list[Event], _: int) -> None:
        self.overhead.add(
            **_times(events),
            place=_places(events, self.overhead_places),
            loads=np.fromiter((kind_of_call(event.name) == LOADING for event in events), np.uint8, len(events)),
        )

    def _add_syncs(self, events: list[Event], is_wait: int) -> None:
        events = [event for event in events if not is_wait or event.name in SYNC_TYPES]
        args = [event.args for event in events]
        self.syncs.add(
            **_times(events),
            correlation=_numbers(args, "correlation", -1),
            kind=np.array([SYNC_TYPES.get(event.name, 0) for event in events], np.int64),
            stream=_numbers(args, "stream", -1),
            event=_numbers(args, "waited_event" if is_wait else "recorded_event", 0),
            record=_numbers(args, "record", -1),
            record_stream=_numbers(args, "record_stream", -1),
            device=_numbers(args, "device", 0),
            context=_numbers(args, "context", 0),
        )

    def _add_ranges(self, events: list[Event], kind: int) -> None:
        args = [event.args for event in events]
        times = _times(events)
        place = _places(events, self.threads)
        name = self._names(events, _NAME_OF_RANGE[kind])
        of_use = self._shapes_of_use[name] if kind else np.zeros(len(events), np.uint8)
        self.ranges.add(
            **times,
            name=name,
            place=place,
            external=_external_ids(events),
            sequence=_numbers(args, "sequence", -1),
            forward=_numbers(args, "forward", 0),
            is_operator=np.full(len(events), int(kind > 0)),
            frame=np.full(len(events), NO_FRAME),
            weight=self._weights(events, np.flatnonzero(of_use & OF_WEIGHT)),
        )
        self._add_operators(events, np.flatnonzero(of_use & OF_COST), **times, place=place)

    def _add_operators(self, events: list[Event], candidates: Int64s, **columns: Int64s) -> None:
        """Add the operators among some events whose shapes are recorded."""
        numbers = self.operator_calls
        join = BETWEEN_TEXTS.join
        rows = []
        calls = []
        for row in candidates.tolist():
            event = events[row]
            args = event.args
            if args.dims:
                text = join((args.dims, args.types, args.values, args.strides))
                rows.append(row)
                calls.append(numbers((event.name, text)))
        if rows:
            of_rows = {name: values[rows] for name, values in columns.items()}
            self.operators.add(**of_rows, call_text=np.array(calls))

    def _frame(self, event: Event) -> int:
        """Return the kind of a Python frame, found once for each name; keep it if it is a function's call."""
        name = event.name
        if name not in self._kind_of_frame:
            is_function = kind_of(name, "all") == FUNCTION_CALL
            self._kind_of_frame[name] = kind_of(name, self._functions), is_function
        frame, is_function = self._kind_of_frame[name]
        if is_function and event.dur != _NOTHING:
            self._calls_of_functions.append(event)
        return frame

    def _add_calls_of_functions(self) -> None:
        """Add the functions' calls that were kept."""
        calls = self._calls_of_functions
        if calls:
            names = numbered([event.name for event in calls], self.functions)
            places = _places(calls, self.threads)
            self.frames.add(**_times(calls), name=names, place=places)
            self._calls_of_functions = []

    def _add_frames(self, events: list[Event], frame: int) -> None:
        """Add Python's frames of one kind, which have no number and no operator."""
        none = np.full(len(events), -1)
        nothing = np.zeros(len(events), np.int64)
        self.ranges.add(
            **_times(events),
            name=self._names(events, range_name),
            place=_places(events, self.threads),
            external=none,
            sequence=none,
            forward=nothing,
            is_operator=nothing,
            frame=np.full(len(events), frame),
            weight=none,
        )

    def _weights(self, events: list[Event], candidates: Int64s) -> Int64s:
        """Return the shapes of the weights that operators used, as far as they are recorded."""
        weights = np.full(len(events), -1, np.int64)
        for row in candidates.tolist():
            event = events[row]
            shape = weight_shape(event.name, event.args.dims)
            if shape:
                weights[row] = self.shapes(shape)
        return weights

    def _add_flows(self, events: list[Event]) -> None:
        self.flows.add(
            id=_numbers(events, "id", -1),
            place=_places(events, self.threads),
            start=nanoseconds([event.ts for event in events]),
            is_end=np.fromiter((event.ph == "f" for event in events), np.int64, len(events)),
        )

    def _add_memory(self, events: list[Event]) -> None:
        args = [event.args for event in events]
        self.memory.add(
            start=nanoseconds([event.ts for event in events]),
            place=_places(events, self.threads),
            device_type=_numbers(args, "device_type", 0),
            device=_numbers(args, "memory_device", 0),
            block=_numbers(args, "address", 0),
            bytes=_numbers(args, "bytes", 0),
            total=_numbers(args, "total_bytes", -1),
        )

    def _names(self, events: list[Event], text: Callable[[str], str]) -> Int64s:
        """Return name ids; the text of each distinct name is made once."""
        return numbered([event.name for event in events], lambda name: self.names(text(name)))

    @property
    def _shapes_of_use(self) -> NDArray[np.uint8]:
        """What the shapes of an operator are of use for, per name id: bits OF_WEIGHT and OF_COST."""
        if len(self._of_use) < len(self.names):
            new = islice(self.names, len(self._of_use), None)
            uses = [OF_WEIGHT * (name in WEIGHTS) + OF_COST * is_known(name) for name in new]
            self._of_use = np.append(self._of_use, np.array(uses, np.uint8))
        return self._of_use


_NAME_OF_RANGE: dict[int, Callable[[str], str]] = {
    0: str,
    # A method of TorchScript is an operator, which its `forward` is: no block that opens the phase.
    1: lambda name: "torchscript::forward" if name == "forward" else name,
    # As PyTorch spells it since 1.10: `MmBackward` is `MmBackward0`.
    OLD_OPERATOR: lambda name: f"{name}0" if _OLD_NODE.fullmatch(name) else name,
}


def _copy_name(name: str) -> str:
    """Name a copy as nsys does: `Memcpy HtoD (Pageable -> Device)` is a `[CUDA memcpy Host-to-Device]`."""
    start, _, end = [*name.split(), "", ""][1].partition("to")
    if start not in COPY_ENDS or end not in COPY_ENDS:
        return "[CUDA memcpy of unknown kind]"
    return f"[CUDA memcpy {COPY_ENDS[start]}-to-{COPY_ENDS[end]}]"


_NAME_OF_WORK: dict[int, Callable[[str], str]] = {
    KERNEL: lambda name: name or "(kernel without a name)",
    MEMCPY: _copy_name,
    MEMSET: lambda _: "[CUDA memset]",
}


def _times(events: list[Event]) -> dict[str, Int64s]:
    start = nanoseconds([event.ts for event in events])
    duration = nanoseconds([event.dur for event in events])
    return {"start": start, "end": start + duration}


def numbered(values: Sequence[Any], number: Callable[[Any], int]) -> Int64s:
    """Return the number of each value, made once of each distinct one."""
    numbers = {value: number(value) for value in dict.fromkeys(values)}
    return np.fromiter(map(numbers.__getitem__, values), np.int64, len(values))


def _places(events: list[Event], number: Interner[Place]) -> Int64s:
    written = [(event.pid, event.tid) for event in events]
    return numbered(written, lambda place: number((_id(place[0]), _id(place[1]))))


def _first(value: Any, other: Any) -> Any:
    """Return a value, or another one where it is missing."""
    if value is None:
        return other
    return value


def _external_ids(events: list[Event]) -> Int64s:
    return integers([_first(event.args.external, event.args.old_external) for event in events], -1)


def _stream(event: Event) -> Any:
    """Return the stream of a piece of work; PyTorch 1.8 had only `stream 7` as its thread."""
    track = event.tid.removeprefix("stream ") if isinstance(event.tid, str) else event.tid
    return _first(event.args.original_stream, _first(event.args.stream, track))


def _count(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)  # PyTorch's own annotation of CUDA graphs writes all arguments as text
    if not isinstance(value, int) or isinstance(value, bool):
        return -1
    if 0 <= value < MOST_ELEMENTS:
        return value
    return -1


def _bytes(elements: Any, element_bytes: int) -> int:
    """Return the size of some elements, -1 where their count or type is unknown."""
    count = _count(elements)
    if not element_bytes or count < 0:
        return -1
    return count * element_bytes


def three_sizes(text: bytes) -> tuple[int, int, int]:
    """Return the sizes of a grid or block as written, `[32, 1, 2]`; zeros where unknown."""
    try:
        sizes = _SIZES.decode(text)
    except msgspec.DecodeError:
        return _UNKNOWN_SIZES
    if max(map(abs, sizes)) <= LARGEST:
        return sizes
    return _UNKNOWN_SIZES


def _blocks(grid: bytes) -> int:
    """Return how many blocks a grid has; 0 where unknown."""
    x, y, z = three_sizes(grid)
    return min(max(0, x * y * z), 2**31 - 1)


def _id(value: Any) -> Id:
    """Return a process or thread id; one that is written as a string of digits is a number."""
    number = whole_number(value)
    if number is None:
        return str(value)
    return number


def whole_number(value: Any) -> int | None:
    """Return an integer that may be written as a string of digits or as a float; None for anything else."""
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return int(value)
        return None
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if is_whole and abs(value) <= LARGEST:
        return int(value)
    return None


def _numbers(rows: Sequence[Args] | Sequence[Event], name: str, missing: int) -> Int64s:
    return integers(list(map(attrgetter(name), rows)), missing)


def integers(values: list[Any], missing: int) -> Int64s:
    """Return whole numbers, and another number for other values."""
    present = [missing if value is None else value for value in values]
    try:
        array = np.array(present)
    except (ValueError, OverflowError):  # lists among them, or a number beyond any
        array = np.empty(0)
    if array.dtype == np.int64 and (np.abs(array) <= LARGEST).all():
        return array
    numbers = (whole_number(value) for value in present)
    return np.fromiter((missing if value is None else value for value in numbers), np.int64, len(present))
