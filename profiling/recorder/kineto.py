"""Turn what torch.profiler saw into rows of a report.

Kineto's events are read as they are: integer ns on the clock of `time.time_ns`, OS thread ids for calls,
stream ids for GPU work, and CUPTI's correlation ids on both.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch._C._autograd import DeviceType

from .allocations import Allocation
from .cpu_operators import Kernel, Operator, kernels
from .gpu_details import Details, no_details
from .trace_file import Row, TraceFile, global_pid, global_tid

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
ALLOCATIONS = "NVTX_KERNELS_ALLOCATIONS"
WORK_TABLES = (KERNEL, MEMCPY, MEMSET)

# Older releases of PyTorch keep an event's activity type to themselves; it follows from its device and name.
ACTIVITY_OF_NAME = {
    DeviceType.CPU: ((r"cuda[A-Z]", "cuda_runtime"), (r"cu[A-Z]", "cuda_driver"), (r"", "cpu_op")),
    DeviceType.CUDA: ((r"Memcpy ", "gpu_memcpy"), (r"Memset ", "gpu_memset"), (r"", "kernel")),
}
EVENT_CLASS = {"cuda_runtime": 0, "cuda_driver": 1}
# CUpti_ActivityMemcpyKind, by the word in kineto's name of a copy, such as `Memcpy HtoD (Pageable -> Device)`.
COPY_KINDS = {
    "HtoD": 1,
    "DtoH": 2,
    "HtoA": 3,
    "AtoH": 4,
    "AtoA": 5,
    "AtoD": 6,
    "DtoA": 7,
    "DtoD": 8,
    "HtoH": 9,
}
PEER_COPY, UNKNOWN_COPY = 10, 0
# NOT NULL in nsys's schema, and not known here.
UNKNOWN_OF_KERNEL = dict.fromkeys(
    (
        "registersPerThread",
        "staticSharedMemory",
        "dynamicSharedMemory",
        "localMemoryPerThread",
        "localMemoryTotal",
        "gridId",
    ),
    0,
)
# `autograd::engine::evaluate_function: MmBackward0` encloses the node that has the sequence number.
ENGINE = "autograd::engine::"
# Blocks that PyTorch's optimizers open themselves.
OPTIMIZER_BLOCKS = ("Optimizer.step#", "Optimizer.zero_grad#")
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
        self._gpu_tables = {
            "kernel": (KERNEL, self._gpu_kernel),
            "gpu_memcpy": (MEMCPY, self._copy),
            "gpu_memset": (MEMSET, self._memset),
        }

    def add(
        self,
        events: Iterable[Any],
        details: Callable[[str, Any], Details] = no_details,
        tells_optimizer: Callable[[int, int, int], bool] = lambda _thread, _start_ns, _end_ns: False,
    ) -> None:
        """Write the events of one profiling session; `details` adds details of GPU work.

        `tells_optimizer` returns whether a range `optimizer` of ours was open on a thread between two times, where
        PyTorch's own block would only repeat it.
        """
        by_activity: dict[str, list[Any]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.start_ns()):
            by_activity[activity(event)].append(event)
        self._insert(RUNTIME, self._calls(by_activity))
        for kind, (table, row_of) in self._gpu_tables.items():
            self._insert(table, (row_of(event, details(kind, event)) for event in by_activity[kind]))
        if not self._on_gpu:
            self._add_operators(by_activity["cpu_op"])
        blocks = [event for event in by_activity["user_annotation"] if not _repeats(event, tells_optimizer)]
        ranges = blocks + (by_activity["cpu_op"] if self._operators else [])
        self._insert("NVTX_EVENTS", map(self._operator_range, ranges))

    def add_allocations(self, allocations: Iterable[Allocation]) -> None:
        """Write allocations and frees; addresses, which say how a process is laid out, become numbers."""
        self._insert(ALLOCATIONS, map(self._allocation, allocations))

    def _allocation(self, one: Allocation) -> Row:
        return {
            "start": one.at_ns - self._origin_ns,
            "globalTid": self._global_tid(one.thread) if one.thread >= 0 else 0,
            "deviceId": one.device,
            "block": self._blocks.setdefault((one.device, one.address), len(self._blocks)),
            "bytes": one.bytes,
            "totalBytes": one.total_bytes,
        }

    def _insert(self, table: str, rows: Iterable[Row]) -> None:
        added = self._trace.add(table, rows)
        self.works += added if table in WORK_TABLES else 0

    def _times(self, event: Any) -> Row:
        return {"start": event.start_ns() - self._origin_ns, "end": event.end_ns() - self._origin_ns}

    def _global_tid(self, thread: int) -> int:
        self.threads.add(thread)
        return global_tid(self._pid, thread)

    def _calls(self, by_activity: dict[str, list[Any]]) -> Iterator[Row]:
        for kind, event_class in EVENT_CLASS.items():
            for event in by_activity[kind]:
                about = self._call(event.name(), event.device_resource_id(), event.correlation_id())
                yield {**self._times(event), **about, "eventClass": event_class}

    def _call(self, name: str, thread: int, correlation: int) -> Row:
        return {
            "globalTid": self._global_tid(thread),
            "correlationId": correlation,
            "nameId": self._trace.text_id(name),
            "returnValue": 0,
        }

    def _on_stream(self, event: Any, details: Details) -> Row:
        return {
            **self._times(event),
            "deviceId": event.device_index(),
            "contextId": details.get("context", 0),
            "streamId": event.device_resource_id(),
            "correlationId": event.correlation_id(),
            "globalPid": global_pid(self._pid),
            "graphNodeId": details.get("graph node id") or None,
        }

    def _gpu_kernel(self, event: Any, details: Details) -> Row:
        return {
            **UNKNOWN_OF_KERNEL,
            **self._on_stream(event, details),
            **self._kernel_name(event.name(), short_name(event.name())),
            **_extent("grid", details.get("grid", ())),
            **_extent("block", details.get("block", ())),
            "registersPerThread": details.get("registers per thread", 0),
        }

    def _kernel_name(self, full: str, short: str) -> Row:
        return {"demangledName": self._trace.text_id(full), "shortName": self._trace.text_id(short)}

    def _copy(self, event: Any, details: Details) -> Row:
        word = [*event.name().split(), "", ""][1]
        kind = COPY_KINDS.get(word, PEER_COPY if word == "PtoP" else UNKNOWN_COPY)
        return {**self._on_stream(event, details), "bytes": details.get("bytes", 0), "copyKind": kind}

    def _memset(self, event: Any, details: Details) -> Row:
        return {**self._on_stream(event, details), "value": 0, "bytes": details.get("bytes", 0)}

    def _add_operators(self, events: list[Any]) -> None:
        calls = (Operator(e.name(), e.start_ns(), e.end_ns(), e.device_resource_id()) for e in events)
        works = list(kernels(calls))
        first, self._launches = self._launches + 1, self._launches + len(works)
        self._insert(RUNTIME, (self._operator_call(work, n) for n, work in enumerate(works, first)))
        self._insert(KERNEL, (self._operator_kernel(work, n) for n, work in enumerate(works, first)))

    def _operator_call(self, work: Kernel, correlation: int) -> Row:
        operator = work.operator
        return {
            "start": operator.start_ns - self._origin_ns,
            "end": operator.end_ns - self._origin_ns,
            **self._call(operator.name, operator.thread, correlation),
            "eventClass": 0,
        }

    def _operator_kernel(self, work: Kernel, correlation: int) -> Row:
        return {
            **UNKNOWN_OF_KERNEL,
            **self._kernel_name(work.operator.name, work.operator.name),
            **_extent("grid", ()),
            **_extent("block", ()),
            "start": work.start_ns - self._origin_ns,
            "end": work.end_ns - self._origin_ns,
            "deviceId": 0,
            "contextId": 0,
            "streamId": work.operator.thread,
            "correlationId": correlation,
            "globalPid": global_pid(self._pid),
        }

    def _operator_range(self, event: Any) -> Row:
        numbered = event.sequence_nr() >= 0 and not event.name().startswith(ENGINE)
        number = _of_thread(event) << SEQUENCE_BITS | event.sequence_nr()
        return {
            **self._times(event),
            "eventType": 59,
            "text": f"{event.name()}, seq = {number}" if numbered else event.name(),
            "globalTid": self._global_tid(event.device_resource_id()),
            "domainId": 0,
        }


def _repeats(block: Any, tells_optimizer: Callable[[int, int, int], bool]) -> bool:
    if not block.name().startswith(OPTIMIZER_BLOCKS):
        return False
    return tells_optimizer(block.device_resource_id(), block.start_ns(), block.end_ns())


def _of_thread(event: Any) -> int:
    """Return PyTorch's number of the thread whose sequence number the event has: of a node, that of forward."""
    return int(event.fwd_thread_id() or event.start_thread_id())


def thread_name(thread: int) -> str:
    """Return the operating system's name of a thread of this process, empty when it has gone."""
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _extent(what: str, sizes: Iterable[int]) -> Row:
    return dict(zip((f"{what}X", f"{what}Y", f"{what}Z"), (*sizes, 0, 0, 0), strict=False))
