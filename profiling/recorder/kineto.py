"""Turn what torch.profiler and the log of ranges saw into rows of a report.

Kineto's events are read as they are: integer ns on the clock of `time.time_ns`, OS thread ids for calls,
stream ids for GPU work, and CUPTI's correlation ids on both.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch._C._autograd import DeviceType

from ..annotate.others import OPTIMIZER_BLOCKS
from .allocations import Allocation
from .gpu_details import Details
from .range_log import Event, RangeLog
from .trace_file import Row, TraceFile, global_tid

# nsys's types of NVTX events.
RANGE, MARK, DOMAIN_CREATED, CATEGORY_NAMED = 59, 34, 75, 33
INT64 = range(-(1 << 63), 1 << 63)
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
ALLOCATIONS = "NVTX_KERNELS_ALLOCATIONS"
# By kineto's activity.
WORK_TABLES = {"kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET}

# Older releases of PyTorch keep an event's activity type to themselves; it follows from its device and name.
ACTIVITY_OF_NAME = {
    DeviceType.CPU: ((r"cuda[A-Z]", "cuda_runtime"), (r"cu[A-Z]", "cuda_driver"), (r"", "cpu_op")),
    DeviceType.CUDA: ((r"Memcpy ", "gpu_memcpy"), (r"Memset ", "gpu_memset"), (r"", "kernel")),
}
EVENT_CLASS = {"cuda_runtime": 0, "cuda_driver": 1}
# CUpti_ActivityMemcpyKind, by the word in kineto's name of a copy, such as `Memcpy HtoD (Pageable -> Device)`.
COPY_KINDS = dict(HtoD=1, DtoH=2, HtoA=3, AtoH=4, AtoA=5, AtoD=6, DtoA=7, DtoD=8, HtoH=9)  # noqa: C408
PEER_COPY, UNKNOWN_COPY = 10, 0
# NOT NULL in nsys's schema, and not known here.
UNKNOWN_OF_KERNEL = {
    **dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 0),
    **dict.fromkeys(("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"), 0),
    **dict.fromkeys(("localMemoryPerThread", "localMemoryTotal", "gridId"), 0),
}
# `autograd::engine::evaluate_function: MmBackward0` encloses the node that has the sequence number.
ENGINE = "autograd::engine::"
# Autograd's numbers count per thread; ours have the thread above these bits, so that one belongs to one operator.
SEQUENCE_BITS = 32


def activity(event: Any) -> str:
    """Return kineto's activity type of an event, such as `kernel`, `cuda_runtime` or `cpu_op`."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    if event.is_user_annotation():
        return "gpu_user_annotation" if event.device_type() == DeviceType.CUDA else "user_annotation"
    if event.device_index() < 0:
        return "overhead"
    rules = ACTIVITY_OF_NAME.get(event.device_type(), ())
    return next((kind for pattern, kind in rules if re.match(pattern, event.name())), "")


def short_name(demangled: str) -> str:
    """Return the base name of a C++ function, as nsys's shortName: no templates, arguments or namespaces.

    >>> short_name("void at::native::(anonymous namespace)::foo<float, 4>(int, float*)")
    'foo'
    """
    plain = demangled.replace("(anonymous namespace)", "anonymous").removeprefix("void ")
    return re.split(r"[<(]", plain, maxsplit=1)[0].rsplit("::", 1)[-1] or demangled


@dataclass(slots=True)
class Operator:
    """One call of an operator on one thread, by an `event` of PyTorch's; times in ns on the events' clock."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    event: Any = None
    children_ns: int = field(default=0, init=False)

    @property
    def self_ns(self) -> int:
        """Return the time that no child operator accounts for."""
        return max(0, self.end_ns - self.start_ns - self.children_ns)


def kernels(operators: Iterable[Operator]) -> Iterator[tuple[Operator, int, int]]:
    """Yield operators with begin and end of their self time, by thread and start, never overlapping on a thread.

    Self time is an operator's duration without its child operators, so that all of them sum to the time of the
    outermost operators; it need not be contiguous. Kernels on one thread are therefore laid out as on one stream:
    each starts when its operator starts, or when the kernel before it ends. Self times are disjoint parts of their
    outermost operator, so no kernel overlaps another on its thread or ends after that operator.
    """
    ordered = sorted(operators, key=lambda operator: (operator.thread, operator.start_ns, -operator.end_ns))
    stack: list[Operator] = []
    for operator in ordered:
        while stack and (stack[-1].thread != operator.thread or stack[-1].end_ns <= operator.start_ns):
            stack.pop()
        if stack:
            stack[-1].children_ns += min(operator.end_ns, stack[-1].end_ns) - operator.start_ns
        stack.append(operator)
    free_ns, thread = 0, None
    for operator in ordered:
        if operator.self_ns:
            start = operator.start_ns if operator.thread != thread else max(free_ns, operator.start_ns)
            free_ns, thread = start + operator.self_ns, operator.thread
            yield operator, start, free_ns


class Rows:
    """Write profiler results into a report; times become ns since `origin_ns`.

    With `on_gpu` the GPU's own kernels are work, else the self time of CPU operators. Blocks of
    `torch.profiler.record_function` are ranges; with `operators` every operator is one too, with the sequence
    number that links backward to forward.
    """

    def __init__(self, trace: TraceFile, origin_ns: int, *, on_gpu: bool, operators: bool = False) -> None:
        self.threads: set[int] = set()
        self.works = 0
        self._trace = trace
        self._origin_ns = origin_ns
        self._on_gpu = on_gpu
        self._operators = operators
        self._pid = os.getpid()
        self._launches = 0
        self._blocks: dict[tuple[int, int], int] = {}

    def add(
        self,
        events: Iterable[Any],
        details: Callable[[str, Any], Details],
        tells_optimizer: Callable[[int, int, int], bool],
    ) -> None:
        """Write the events of one profiling session; `details` adds details of GPU work.

        `tells_optimizer` returns whether a range `optimizer` of ours was open on a thread between two times, where
        PyTorch's own block would only repeat it.
        """
        by_activity: dict[str, list[Any]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.start_ns()):
            by_activity[activity(event)].append(event)
        for kind, number in EVENT_CLASS.items():
            calls = by_activity[kind]
            self._trace.add(RUNTIME, (self._call(event, event.correlation_id(), number) for event in calls))
        for kind, table in WORK_TABLES.items():
            rows = (self._gpu_work(kind, event, details(kind, event)) for event in by_activity[kind])
            self.works += self._trace.add(table, rows)
        operators, blocks = by_activity["cpu_op"], by_activity["user_annotation"]
        if not self._on_gpu:
            works = kernels(
                Operator(e.name(), e.start_ns(), e.end_ns(), e.device_resource_id(), e) for e in operators
            )
            numbered = list(enumerate(works, self._launches + 1))
            self._launches += len(numbered)
            self._trace.add(RUNTIME, (self._call(work[0].event, number, 0) for number, work in numbered))
            self.works += self._trace.add(KERNEL, (self._cpu_work(number, *work) for number, work in numbered))
        ranges = [
            block
            for block in blocks
            if not block.name().startswith(OPTIMIZER_BLOCKS)
            or not tells_optimizer(block.device_resource_id(), block.start_ns(), block.end_ns())
        ]
        ranges += operators if self._operators else []
        self._trace.add("NVTX_EVENTS", map(self._range, ranges))

    def add_allocations(self, allocations: Iterable[Allocation]) -> None:
        """Write allocations and frees; addresses, which say how a process is laid out, become numbers."""
        rows = (
            {
                "start": allocation.at_ns - self._origin_ns,
                "globalTid": self._global_tid(allocation.thread) if allocation.thread >= 0 else 0,
                "deviceId": allocation.device,
                "block": self._blocks.setdefault((allocation.device, allocation.address), len(self._blocks)),
                "bytes": allocation.bytes,
                "totalBytes": allocation.total_bytes,
            }
            for allocation in allocations
        )
        self._trace.add(ALLOCATIONS, rows)

    def ranges(self, events: Iterable[Event], log: RangeLog) -> Iterator[Row]:
        """Yield the rows of a log's ranges and marks; their names are registered strings, as nvtx's are."""
        for event in events:
            payload = event.payload
            yield {
                "start": event.start_ns - self._origin_ns,
                "end": None if event.end_ns is None else event.end_ns - self._origin_ns,
                "eventType": MARK if event.is_mark else RANGE,
                "globalTid": global_tid(self._pid, event.thread),
                "textId": self._trace.text_id(event.name),
                "domainId": log.domains[event.domain],
                "category": log.categories.get(event.category),
                "int64Value": int(payload) if isinstance(payload, int) and payload in INT64 else None,
                "doubleValue": payload if isinstance(payload, float) else None,
            }

    def _times(self, event: Any) -> Row:
        return {"start": event.start_ns() - self._origin_ns, "end": event.end_ns() - self._origin_ns}

    def _global_tid(self, thread: int) -> int:
        self.threads.add(thread)
        return global_tid(self._pid, thread)

    def _call(self, event: Any, correlation: int, event_class: int) -> Row:
        return {
            **self._times(event),
            "globalTid": self._global_tid(event.device_resource_id()),
            "correlationId": correlation,
            "nameId": self._trace.text_id(event.name()),
            "returnValue": 0,
            "eventClass": event_class,
        }

    def _gpu_work(self, kind: str, event: Any, details: Details) -> Row:
        """Return the row of a kernel, copy or memset."""
        name = event.name()
        row: Row = {
            **self._times(event),
            "deviceId": event.device_index(),
            "contextId": details.get("context", 0),
            "streamId": event.device_resource_id(),
            "correlationId": event.correlation_id(),
            "globalPid": global_tid(self._pid, 0),
            "graphNodeId": details.get("graph node id") or None,
        }
        if kind == "gpu_memset":
            return {**row, "value": 0, "bytes": details.get("bytes", 0)}
        if kind == "gpu_memcpy":
            word = [*name.split(), "", ""][1]
            copy_kind = COPY_KINDS.get(word, PEER_COPY if word == "PtoP" else UNKNOWN_COPY)
            return {**row, "bytes": details.get("bytes", 0), "copyKind": copy_kind}
        return {
            **UNKNOWN_OF_KERNEL,
            **row,
            "demangledName": self._trace.text_id(name),
            "shortName": self._trace.text_id(short_name(name)),
            **dict(zip(("gridX", "gridY", "gridZ"), details.get("grid", ()), strict=False)),
            **dict(zip(("blockX", "blockY", "blockZ"), details.get("block", ()), strict=False)),
            "registersPerThread": details.get("registers per thread", 0),
        }

    def _cpu_work(self, correlation: int, operator: Operator, start_ns: int, end_ns: int) -> Row:
        """Return the row of an operator's self time, as a kernel on its thread's stream."""
        name_id = self._trace.text_id(operator.name)
        return {
            **UNKNOWN_OF_KERNEL,
            "demangledName": name_id,
            "shortName": name_id,
            "start": start_ns - self._origin_ns,
            "end": end_ns - self._origin_ns,
            "deviceId": 0,
            "contextId": 0,
            "streamId": operator.thread,
            "correlationId": correlation,
            "globalPid": global_tid(self._pid, 0),
        }

    def _range(self, event: Any) -> Row:
        """Return the row of an operator or block, with PyTorch's number and that of the thread it counts in.

        A node of backward has the thread of its forward.
        """
        text = event.name()
        if event.sequence_nr() >= 0 and not text.startswith(ENGINE):
            thread = int(event.fwd_thread_id() or event.start_thread_id())
            text = f"{text}, seq = {thread << SEQUENCE_BITS | event.sequence_nr()}"
        return {
            **self._times(event),
            "eventType": RANGE,
            "text": text,
            "globalTid": self._global_tid(event.device_resource_id()),
            "domainId": 0,
        }


def thread_name(thread: int) -> str:
    """Return the operating system's name of a thread of this process, empty when it has gone."""
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
