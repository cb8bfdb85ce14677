"""A report in memory: its tables as numpy columns, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from .support.threads import at_once


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers come from, as far as the report records it."""

    file: str
    tool: str = ""  # "nsys 2025.3.2", "nvtx-kernels recorder 0.1.0", "PyTorch profiler"
    schema: str = ""
    gpus: tuple[str, ...] = ()
    unit_of_work: str = "GPU"  # "CPU" where operators' self times take the place of kernels
    gpu_operator: str = ""  # an operator that only GPUs run, where nothing of the GPU's work was recorded
    run: Mapping[str, Any] = field(default_factory=dict)  # what the run wrote about itself in its mark
    # What annotated models wrote: by a model's name, each module's class by its path of ranges below the model.
    models: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # And what PyTorch calls each module: vocabulary/modules.py has both.
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    names_joined: int = 0  # how many names of kernels and ranges are joined, as there were too many
    #: By a path of ranges, joined by `/`, what PyTorch's trace with stacks calls its module: `Linear_7`.
    trace_modules: Mapping[str, str] = field(default_factory=dict)
    steps: str = ""  # what the ranges that annotation opened as steps count: "steps of AdamW"

    # What each process counted in one step: `ranges` by phase and path, `calls` of models, operators `uncounted`.
    counted: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_of_pytorch(self) -> bool:
        """Whether PyTorch's own profiler recorded it, which does not record NVTX."""
        return self.tool.startswith("PyTorch")

    @property
    def is_of_rocprof(self) -> bool:
        """Whether AMD's rocprofv3 recorded it, whose ranges are roctx's."""
        return self.tool.startswith("rocprof")

    @property
    def is_recording(self) -> bool:
        """Whether our own recorder wrote it, without nsys."""
        return self.tool.startswith("nvtx-kernels")


#: Names of ranges, outermost first.
Path: TypeAlias = tuple[str, ...]
Int64s: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]
Int8s: TypeAlias = NDArray[np.int8]
Bools: TypeAlias = NDArray[np.bool_]

KINDS = ("kernel", "memcpy", "memset", "graph")
KERNEL, MEMCPY, MEMSET, GRAPH = range(len(KINDS))

PUSH_POP, START_END = 0, 1

# The kinds of ranges, by this project's NVTX categories: other ranges, or a part of a model. The outermost range
# of a call without gradient has a kind of its own. GRADIENT is a gradient that a forward asks for. TIMELINE ranges
# are drawn while recording, and are not part of a path. Calls of modules in a trace with stacks are parts of the
# model too; FUNCTION is a call of a Python function there, whose name is never that of a phase.
NO_CATEGORY, MODEL_FORWARD, MODEL_BACKWARD, NO_GRADIENT, EVALUATION, GRADIENT, TIMELINE, FUNCTION = range(8)
FORWARD_CATEGORIES = (MODEL_FORWARD, NO_GRADIENT, EVALUATION)
#: What annotation calls the NVTX categories of its ranges.
CATEGORIES = {
    "model/forward": MODEL_FORWARD,
    "model/backward": MODEL_BACKWARD,
    "model/no gradient": NO_GRADIENT,
    "model/evaluation": EVALUATION,
    "gradient": GRADIENT,
    "timeline": TIMELINE,
}


def element_of(array: Any) -> Any:
    """Return the type of the elements of an `NDArray[…]`: its own argument since NumPy 2.5, its dtype's before."""
    while arguments := get_args(array):
        array = arguments[-1]
    return array


class Columns:
    """A table whose dataclass has one field per column, all of one length."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]  # the names of its columns, also of those that it inherits

    def __len__(self) -> int:
        return len(getattr(self, self.__match_args__[0]))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name."""
        return {name: getattr(self, name) for name in self.__match_args__}

    @classmethod
    def empty(cls) -> Self:
        """Return a table without rows."""
        hints = get_type_hints(cls)
        return cls(*(np.empty(0, element_of(hints[name])) for name in cls.__match_args__))

    def take(self, rows: NDArray[Any]) -> Self:
        """Return the rows at these positions, or under this mask: the table itself if that is all of them."""
        if rows.dtype == np.bool_:
            if rows.all():
                return self
            rows = np.flatnonzero(rows)  # found once, not once a column
        taken = [partial(getattr(self, name).__getitem__, rows) for name in self.__match_args__]
        return type(self)(*at_once(taken, len(rows)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, one part after another; of one part that has rows, that part itself."""
        parts = [part for part in parts if len(part)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        columns = [[getattr(part, name) for part in parts] for name in cls.__match_args__]
        return cls(*at_once([partial(np.concatenate, column) for column in columns], sum(map(len, parts))))


@dataclass(frozen=True, slots=True)
class Work(Columns):
    """What the GPU did, one row per kernel, copy, memset or whole CUDA graph launch."""

    start_ns: Int64s
    end_ns: Int64s
    kind: NDArray[np.uint8]  # position in KINDS
    name_id: Int32s  # position in Trace.names: demangled kernel name, or the copy's direction
    device_id: Int32s
    stream_id: Int64s
    process: Int32s  # position in Trace.processes
    launch: Int32s  # position in Launches; -1 where the report has no launch row
    grid: Int32s  # blocks in the grid; 0 where unknown

    @property
    def duration_ns(self) -> Int64s:
        """How long each piece of work ran, ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Spots(Columns):
    """Intervals on threads: calls, ranges, operators or moments."""

    start_ns: Int64s
    end_ns: Int64s
    thread: Int32s  # position in Trace.threads

    def on(self, thread: int | Int32s) -> Spots:
        """Return the same intervals on another thread, or on one each."""
        return Spots(self.start_ns, self.end_ns, np.full(len(self), thread, np.int32))


NO_SPOTS = Spots.empty()


@dataclass(frozen=True, slots=True)
class Launches(Spots):
    """CUDA API calls of the runtime and the driver; those that caused work are pointed at by `Work.launch`."""


@dataclass(frozen=True, slots=True)
class CallNames:
    """What each launch calls: `of_launch` are positions in `names`, one for each row of `Launches`.

    `kind_of_name` says what a call of each name does: positions in vocabulary.calls.CALL_KINDS.
    """

    names: tuple[str, ...]
    kind_of_name: NDArray[np.uint8]
    of_launch: NDArray[np.uint16]

    @property
    def kinds(self) -> NDArray[np.uint8]:
        """What each call does: a position in vocabulary.calls.CALL_KINDS, uint8 (launches,)."""
        return self.kind_of_name[self.of_launch]


@dataclass(frozen=True, slots=True)
class Overhead(Spots):
    """When the profiler itself kept a thread busy; `thread` is -1 where unknown. `loads` marks loading of code."""

    loads: Bools


@dataclass(frozen=True, slots=True)
class Frames(Spots):
    """Calls of Python functions of the program and of libraries; `name_id` is a position in Trace.frame_names."""

    name_id: Int32s


#: An operator's name, and how PyTorch's profiler wrote its dims, types, values and strides, between BETWEEN_TEXTS.
CallText: TypeAlias = tuple[str, bytes]
BETWEEN_TEXTS = b"\0"


@dataclass(frozen=True, slots=True)
class Operators(Spots):
    """Calls of operators whose shapes were recorded and which the table of operators has."""

    call: Int32s  # position in Trace.operator_calls


@dataclass(frozen=True, slots=True)
class Ranges(Spots):
    """NVTX ranges, sorted by (thread, start, longest first, order in the file): outer before inner."""

    name_id: Int32s  # position in Trace.names, without PyTorch's `, seq = …` suffixes
    domain: Int32s  # position in Trace.domains
    seq: Int64s  # autograd's sequence number; -1 where the name has none
    style: NDArray[np.uint8]  # PUSH_POP or START_END
    open_ended: Bools  # never closed: taken to end with the capture
    category: Int8s  # NO_CATEGORY, MODEL_FORWARD, …

    @property
    def of_forward(self) -> Bools:
        """Mark the ranges that annotation opened around the forward of a model or of its parts."""
        return np.isin(self.category, FORWARD_CATEGORIES)

    @property
    def of_model(self) -> Bools:
        """Mark the ranges that annotation opened around a model or its parts, forward and backward."""
        of_model: Bools = (self.category != NO_CATEGORY) & (self.category < GRADIENT)
        return of_model


@dataclass(frozen=True, slots=True)
class Allocations(Columns):
    """What was allocated and freed, in the order of time: PyTorch's blocks, or CUDA's own where nsys saw those."""

    at_ns: Int64s
    thread: Int32s  # position in Trace.threads; -1 where unknown
    device_id: Int32s
    process: Int32s  # position in Trace.processes
    block: Int64s  # an address, or a number for it
    bytes: Int64s  # negative if freed
    total_bytes: Int64s  # allocated on the device afterwards; -1 where the report does not say


@dataclass(frozen=True, slots=True)
class Captures:
    """Where nodes of CUDA graphs were created: a moment on a thread each (nsys gives it no length).

    `of_work` has the position of the creation for each piece of work, -1 where no node with a known one made it.
    """

    of_work: Int32s
    at_ns: Int64s
    thread: Int32s  # position in Trace.threads


@dataclass(frozen=True, slots=True)
class Messages(Columns):
    """Messages of launches that communicate, a row each, by launch; bytes are the launching rank's."""

    launch: Int64s  # position in Launches
    collective: Int32s  # position in Trace.names, as PyTorch calls it
    group: Int32s  # position in Trace.names: the process group's name and ranks
    ranks: Int64s  # in the group; 0 where unknown
    sent_bytes: Int64s  # -1 where unknown
    received_bytes: Int64s  # -1 where unknown
    #: The group's rank that a collective is from or to, or the other end of a send; -1 where unknown.
    root_or_peer: Int64s


@dataclass(frozen=True, slots=True)
class Waits(Columns):
    """Calls that record events, wait for events or streams, or let a stream wait, from nsys: a row a call.

    `stream` is the one that is waited for or recorded, or that is to wait; the call's name tells which.
    """

    call: Int32s  # position in Launches
    stream: Int64s  # of no GPU work where the call waits for the whole device
    event: Int64s  # 0 where none is involved


@dataclass(frozen=True, slots=True)
class Copies(Columns):
    """The sizes of copies between memories, and whose memory they are from and to."""

    work: Int64s  # position in Work
    bytes: Int64s
    from_pageable: Bools  # memory of the CPU that is not pinned
    to_pageable: Bools


@dataclass(frozen=True, slots=True)
class Fact:
    """A mark of annotation that says what happened at a moment on a thread: see readers/marks.py."""

    at_ns: int
    thread: int  # position in Trace.threads
    mark: object


#: What Python calls the code of a file outside of functions.
MODULE_BODY = "<module>"


class Line(NamedTuple):
    """A line of the program; of a trace with stacks, the line of the function's `def`."""

    file: str
    line: int
    function: str

    @property
    def at(self) -> str:
        """The file and the number: `train.py:65`."""
        return f"{self.file}:{self.line}"

    @property
    def called(self) -> str:
        """What people read: `train.py:65 (train)`."""
        return self.at + (f" ({self.function})" if self.function != MODULE_BODY else "")


@dataclass(frozen=True, slots=True)
class Source:
    """Where in the program something was called: `lines`, innermost first.

    If it is in the backward of what was called there, `backward` is the line that called backward.
    """

    lines: tuple[Line, ...]
    backward: Line | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """Which lines of the program made its calls: positions in `sources` by row of `Launches`, -1 where unknown.

    `of_launch` is where a call was made, `before_launch` where the program was the longest since the
    call before. If only one step was traced by line, `span_ns` is that step's time, and `begun_ns` are the moments
    at which the steps began that make the same calls. `reason` says why lines are missing.
    """

    sources: tuple[Source, ...]
    of_launch: Int32s
    before_launch: Int32s
    begun_ns: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    span_ns: tuple[int, int] = (0, 0)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Thread:
    """One CPU thread; `name` is empty if unknown."""

    process: int
    thread_id: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """One profiled process."""

    process_id: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Domain:
    """An NVTX domain of one process; the default domain has no name."""

    process: int
    domain_id: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A report in memory; `notes` are sentences on decisions of the reader, and on `shortfalls` of a recording."""

    work: Work
    launches: Launches
    ranges: Ranges
    names: list[str]
    threads: list[Thread]
    processes: list[Process]
    domains: list[Domain]
    provenance: Provenance
    notes: tuple[str, ...] = ()
    shortfalls: tuple[str, ...] = ()
    shortened: frozenset[str] = frozenset()  # names of ranges that say less than NVTX has: see module_names
    captures: Captures | None = None  # only where the report has the creation of graph nodes
    graph_node: Int64s | None = None  # of each piece of work, -1 for none; only of PyTorch's traces that have some
    messages: Messages | None = None  # only where the report has what its collectives carry
    memory: Allocations | None = None  # only where they were recorded
    waits: Waits | None = None  # only where the report has what calls waited for
    has_events: bool = False  # whether it has the events that calls recorded
    copies: Copies | None = None  # only where the report has the sizes of copies
    calls: CallNames | None = None  # only where the report names the calls
    overhead: Overhead | None = None  # only where the profiler recorded its own
    categories: Mapping[str, str] = field(
        default_factory=dict
    )  # of kernels whose names tell none, by their launches
    operators: Operators | None = None  # only of a trace with shapes
    operator_calls: tuple[CallText, ...] = ()  # distinct
    frames: Frames | None = None  # only of a trace with stacks
    frame_names: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()  # in the order of time
    lines: Lines | None = None  # only where calls are known by line, or why they are not
    pauses: Spots = field(default_factory=lambda: NO_SPOTS)  # in which the recorder kept a thread waiting
    launch_times_known: bool = True  # else a launch only says on which thread, and in which range, it was
    #: Its users, hosts, folders and commands: no answer has them, and scrub hides their words.
    surroundings: frozenset[str] = frozenset()

    def process_of_thread(self) -> Int32s:
        """Return the process of each thread; of none a 0, so that no rows can be looked up in it."""
        return np.array([thread.process for thread in self.threads] or [0], np.int32)

    def work_named(self, fits: Callable[[str], object]) -> Bools:
        """Mark the work whose name fits, bool (work,)."""
        return fitting(self.names, fits)[self.work.name_id]


def sorted_ranges(ranges: Ranges) -> Ranges:
    """Sort ranges as `Ranges` promises; free if they are so already."""
    order = range_order(ranges.thread, ranges.start_ns, ranges.end_ns)
    return ranges if order is None else ranges.take(order)


# So few that finding the rows of each in turn is faster than sorting.
FEW_THREADS = 6


def range_order(thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> Int64s | None:
    """Return the order of ranges by (thread, start, longest first, order in the file); None if they have it."""
    same = thread[1:] == thread[:-1]
    later = start_ns[1:] > start_ns[:-1]
    tied = (start_ns[1:] == start_ns[:-1]) & (end_ns[1:] <= end_ns[:-1])
    if ((thread[1:] > thread[:-1]) | (same & (later | tied))).all():
        return None
    if (later | tied).all():
        # Events mostly come in the order of their starts; then sorting them by thread is all that is needed.
        threads = np.flatnonzero(np.bincount(thread))
        if len(threads) <= FEW_THREADS:
            return np.concatenate([np.flatnonzero(thread == number) for number in threads])
        if threads[-1] < 2**15:  # a radix sort
            return np.argsort(thread.astype(np.int16), kind="stable")
    return np.lexsort((-end_ns, start_ns, thread))


@dataclass(frozen=True, slots=True)
class Calls(Spots):
    """Calls that caused work, each once: with positions in `Launches`, and whether a kernel came of it."""

    row: Int64s
    launches_kernel: Bools


def working_calls(trace: Trace) -> Calls:
    """Collect the calls that caused work."""
    launch = trace.work.launch
    launches = trace.launches
    kernel = (trace.work.kind == KERNEL) | (trace.work.kind == GRAPH)
    row = np.flatnonzero(marked(launch, len(launches)))
    calls = launches.take(row)
    launches_kernel = marked(launch[kernel], len(launches))[row]
    return Calls(calls.start_ns, calls.end_ns, calls.thread, row, launches_kernel)


def fitting(names: Iterable[str], fits: Callable[[str], object]) -> Bools:
    """Mark which names fit, bool (names,); of no names a single False, so that no rows can be looked up in it."""
    return np.array([bool(fits(name)) for name in names] or [False], np.bool_)


def marked(rows: Int32s | Int64s, count: int) -> Bools:
    """Mark which of `count` rows occur, bool (count,); -1 means no row."""
    is_marked = np.zeros(count, np.bool_)
    is_marked[rows[rows >= 0]] = True
    return is_marked
