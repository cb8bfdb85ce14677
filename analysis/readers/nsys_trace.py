"""From nsys's tables, wherever they were stored, to a `Trace`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np

from nvtx_kernels import DOMAIN

from ..support.heap import give_back
from ..support.small_numbers import distinct, grouped
from ..trace import (
    GRAPH,
    KERNEL,
    KINDS,
    MEMCPY,
    MEMSET,
    PUSH_POP,
    START_END,
    Bools,
    Copies,
    Domain,
    Int32s,
    Int64s,
    Launches,
    Lines,
    Overhead,
    Process,
    Provenance,
    Ranges,
    Spots,
    Thread,
    Trace,
    Waits,
    Work,
    range_order,
)
from ..vocabulary import SETTING_HOOKS, without_suffixes
from .allocations import allocations, marked, plausible
from .calls import named_calls, overhead_of
from .columns import Columns, Encoded, Interner, gather
from .launches import RowsById, captures_of
from .lines import marked_lines
from .memory_kinds import PAGEABLE
from .nccl_payloads import messages_of
from .nsys_tables import (
    CALLS,
    CATEGORY_TYPE,
    CUDA_EVENTS,
    DOMAIN_TYPE,
    EVENTS,
    MEMORY_USAGE,
    NEVER_CLOSED,
    NODES,
    RECORDED_ALLOCATIONS,
    START_END_TYPES,
    SYNCHRONIZATIONS,
    WORK,
    NsysTables,
)
from .operator_names import with_bare_names
from .recorded import Recording, setting_hooks
from .requirements import NSYS_SAYS
from .written import Written

# CUpti_ActivityMemcpyKind, in the words of nsys's reports.
COPY_KINDS = (
    *("of unknown kind", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array"),
    *("Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer"),
)

#: Of an API call: the classes of the runtime and the driver are 0 and 1; others' rows can have their ids.
DRIVER_CLASS = 1
GREEN = (
    "Green contexts had {} multiprocessors of their GPU: what ran in them can reach that share of the GPU's peaks."
)
TOOLS = {"NVIDIA Nsight Systems": "nsys"}
#: The numbers in such a recording have fewer digits.
LONGEST_NUMBER = 19


def read_trace(tables: NsysTables) -> Trace:
    """Read everything that attribution needs."""
    nodes = tables.parts(NODES)
    recorded = tables.parts(RECORDED_ALLOCATIONS)
    # Only where the report has the creation of graph nodes is it of use which node made a piece of work.
    of_node = {"graph_node": "graphNodeId"} if nodes else {}
    work = [replace(table, columns={**table.columns, **of_node}) for table in WORK]
    return _Assembly(tables).trace(
        gather(
            [
                (EVENTS, [partial(with_bare_names, part) for part in tables.parts(EVENTS)]),
                (CALLS, tables.parts(CALLS)),
                (NODES, nodes),
                (RECORDED_ALLOCATIONS, recorded or tables.parts(MEMORY_USAGE)),
                *((table, tables.parts(table)) for table in (SYNCHRONIZATIONS, CUDA_EVENTS, *work)),
            ]
        )
    )


class _Assembly:
    """Combines the tables; names, threads, processes and domains are numbered as they occur."""

    def __init__(self, tables: NsysTables) -> None:
        self.tables = tables
        self.name: Interner[str] = Interner()
        self.process: Interner[int] = Interner()  # by global id: a global thread id without its last 24 bits
        self.thread: Interner[int] = Interner()
        self.domain: Interner[tuple[int, int]] = Interner()
        self.domain_names: dict[tuple[int, int], str] = {}
        self.written = Written()
        self.notes: list[str] = []

    def trace(self, tables: list[Columns]) -> Trace:
        """Combine ranges, calls, graph nodes' creations, allocations and each kind of work; empties the list."""
        events, calls, created, memory, waited, recorded, *work = tables
        tables.clear()
        creators = self.processes_of(created), created.codes["thread"].numbered(self.thread)
        column = calls.numbers
        name = calls.codes["name"]
        texts = self.tables.strings(code for code in name.values if code >= 0)
        called = named_calls(name.codes, [texts.get(code, "") for code in name.values])
        # An MPI file has rows of class 67 next to the runtime's; of one class, the earliest counts.
        is_foreign = column["event_class"] > DRIVER_CLASS
        keys = RowsById.of(self.processes_of(calls), column["correlation"], is_foreign, column["start"])
        launches = Launches(column["start"], column["end"], calls.codes["thread"].numbered(self.thread))
        gpu_work = Work.joined([self.work(kind, table, keys) for kind, table in enumerate(work)])
        # Copies follow the kernels, as their table does.
        copies = _copies(work[MEMCPY], len(work[KERNEL]))
        waits = Waits.joined([self.waits(table, keys) for table in (waited, recorded)])
        captures = memory_events = None
        if len(created):
            node = np.concatenate([table.numbers["graph_node"] for table in work])
            captures = captures_of(created, *creators, gpu_work.process, node)
        if len(memory):
            memory_events = allocations(memory, self.thread, self.process, (launches, keys))
        del keys, calls, column, work  # each is as large as what was made of it
        capture_end = max(int(times.max(initial=0)) for times in (launches.end_ns, gpu_work.end_ns))
        ranges = self.ranges(events, capture_end)
        processes = list(self.process)
        marked_memory, unread_marks = marked(
            self.written.allocations, lambda process, tid: self.thread(processes[process] << 24 | tid & 0xFFFFFF)
        )
        self.notes += unread_marks
        memory_events = plausible(marked_memory or memory_events, self.notes)
        lines = self.lines(launches)
        messages = None
        if fields := self.tables.payload_fields():
            numbers = self.thread, self.name
            payloads = self.tables.payloads()
            messages, unread = messages_of(fields, payloads, gpu_work, launches, list(self.name), numbers)
            self.notes += unread
        if green := [f"{of_context} of {of_gpu}" for of_context, of_gpu in self.tables.green_contexts()]:
            self.notes.append(GREEN.format(" or ".join(green)))
        threads = self.threads()
        if not len(gpu_work):
            self.notes += [f"{NSYS_SAYS}{text.strip().rstrip('.')}" for text in self.tables.diagnostics()]
        metadata = self.tables.metadata()
        shortfalls = tuple(_recording(metadata).shortfalls())
        return Trace(
            work=gpu_work,
            launches=launches,
            ranges=ranges,
            names=list(self.name),
            threads=threads,
            processes=[Process(global_id & 0xFFFFFF) for global_id in self.process],
            domains=[Domain(*key, self.domain_names.get(key, "")) for key in self.domain],
            provenance=self.provenance(gpu_work, metadata),
            notes=(*self.notes, *shortfalls),
            shortfalls=shortfalls,
            captures=captures,
            messages=messages,
            waits=waits if len(waits) else None,
            has_events=len(recorded) > 0,
            copies=copies,
            calls=called,
            overhead=self.overhead(ranges, launches),
            memory=memory_events,
            facts=tuple(sorted(self.written.facts, key=attrgetter("at_ns"))),
            pauses=self.pauses(),
            lines=lines,
            surroundings=self.tables.surroundings(),
        )

    def lines(self, launches: Launches) -> Lines | None:
        """Return which lines made calls, where a step was traced by line."""
        if self.written.lines is None:
            return None
        mark, process, at_ns = self.written.lines
        global_id = list(self.process)[process]
        lines, unread = marked_lines(
            mark, at_ns, lambda tid: self.thread.get(global_id << 24 | tid & 0xFFFFFF), launches
        )
        self.notes += unread
        return lines

    def pauses(self) -> Spots:
        """Return when the recorder kept a thread waiting; threads that the program does not use never wait."""
        rows = [(start, end, self.thread[tid]) for start, end, tid in self.tables.pauses() if tid in self.thread]
        start_ns, end_ns, thread = zip(*rows, strict=True) if rows else ((), (), ())
        return Spots(np.array(start_ns, np.int64), np.array(end_ns, np.int64), np.array(thread, np.int32))

    def overhead(self, ranges: Ranges, launches: Launches) -> Overhead | None:
        """Return when nsys itself kept known threads busy, or annotation did, setting hooks."""
        numbered = {key: number for number, key in enumerate(self.thread)}
        rows = [
            (start, end, numbered[thread])
            for start, end, thread in self.tables.overhead()
            if thread in numbered and 0 <= start < end
        ]
        # By its name alone: a capture range loses what came before it, as the names of domains and categories.
        process = [tid >> 24 for tid in self.thread]
        rows += setting_hooks(ranges, self.name.get(SETTING_HOOKS, -1), launches, process)
        if rows:
            return overhead_of(rows)
        return None

    def processes_of(self, table: Columns) -> Int32s:
        """Return the process of each row's thread."""
        return table.codes["thread"].numbered(lambda tid: self.process(tid >> 24))

    def work(self, kind: int, table: Columns, keys: RowsById) -> Work:
        """Return the GPU work of one kind, named by a kernel's demangled name or a copy's direction."""
        self.keep_sane(table, f"{KINDS[kind]} rows")
        column = table.numbers
        process = table.codes["process"].numbered(lambda pid: self.process(pid >> 24))
        texts = self.tables.strings(table.codes["name"].values) if kind == KERNEL else {}
        name_of: Callable[[int], str] = {
            KERNEL: lambda code: texts.get(code) or f"(kernel without a name, string {code})",
            MEMCPY: lambda code: f"[CUDA memcpy {COPY_KINDS[code if 0 <= code < len(COPY_KINDS) else 0]}]",
            MEMSET: lambda _: "[CUDA memset]",
            GRAPH: lambda _: "[CUDA graph]",
        }[kind]
        return Work(
            start_ns=column["start"],
            end_ns=column["end"],
            kind=np.full(len(table), kind, np.uint8),
            name_id=table.codes["name"].numbered(lambda code: self.name(name_of(code))),
            device_id=column["device"].astype(np.int32),
            stream_id=column["stream"],
            process=process,
            launch=keys.find(process, column["correlation"]),
            grid=np.clip(column["grid"], 0, 2**31 - 1).astype(np.int32),
        )

    def waits(self, table: Columns, keys: RowsById) -> Waits:
        """Return the rows whose call is in the report."""
        process = table.codes["process"].numbered(lambda pid: self.process(pid >> 24))
        call = keys.find(process, table.numbers["correlation"])
        column = table.numbers
        return Waits(call, column["stream"], column["cuda_event"]).take(call >= 0)

    def ranges(self, events: Columns, capture_end: int) -> Ranges:
        """Return the NVTX ranges in order; marks and domain names are taken on the way."""
        assert events.aside is not None
        self.meta_events(events.aside)
        start = events.numbers["start"]
        end = events.numbers["end"]
        # Ranges that were never closed end with the capture.
        open_ended = events.numbers["open_ended"] = end == NEVER_CLOSED
        end[open_ended] = max(capture_end, int(end.max(initial=0)), int(start.max(initial=0)))
        del start, end, open_ended
        self.keep_sane(events, "ranges")
        column = events.numbers
        order = range_order(events.codes["thread"].numbered(self.thread), column["start"], column["end"])
        if order is not None:
            events.keep(order)
        del order  # it is as large as a column
        give_back(len(events))
        thread = events.codes["thread"]
        name, seq = self.range_names(events)
        domain = self.domains(thread, events.codes.pop("domain"))
        for key in self.written.domains:  # their names are lost before nsys's capture range
            self.domain_names.setdefault(key, DOMAIN)
        annotations = [key if self.domain_names.get(key) == DOMAIN else None for key in self.domain]
        return Ranges(
            start_ns=column["start"],
            end_ns=column["end"],
            thread=thread.numbered(self.thread),
            name_id=name,
            domain=domain,
            seq=seq,
            style=np.where(np.isin(column["event"], START_END_TYPES), np.uint8(START_END), np.uint8(PUSH_POP)),
            open_ended=column["open_ended"],
            category=self.written.categories_of(domain, column["category"], annotations),
        )

    def range_names(self, events: Columns) -> tuple[Int32s, Int64s]:
        """Return name ids and autograd sequence numbers, from the inline text or the registered string.

        The columns of both are taken out of the events, whose memory is then free.
        """
        text_id = events.codes.pop("text_id")
        seq = events.numbers["seq"]
        name = events.codes.pop("text").numbered(self.name)
        strings = self.tables.strings(code for code in text_id.values if code >= 0)
        registered = {code: without_suffixes(text) for code, text in strings.items()}
        if registered:
            rows = np.flatnonzero(np.array([code in registered for code in text_id.values])[text_id.codes])
            bare = Encoded(text_id.codes[rows], [registered.get(code, ("", -1)) for code in text_id.values])
            name[rows] = bare.numbered(lambda bare_name: self.name(bare_name[0]))
            seq[rows] = np.array([number for _, number in bare.values], np.int64)[bare.codes]
        return name, seq

    def domains(self, thread: Encoded, domain: Encoded) -> Int32s:
        """Return the domain of each range; their ids count per process."""
        process = np.array([self.process(tid >> 24) for tid in thread.values] or [0], np.int64)
        count = max(1, len(domain.values))
        pairs, pair = grouped(process[thread.codes] * count + domain.codes)
        first = np.zeros(len(pairs), np.int64)
        first[pair[::-1]] = np.arange(len(pair))[::-1]
        numbers = np.zeros(len(pairs), np.int32)
        for number in np.argsort(first):  # numbered as they occur
            numbers[number] = self.domain((int(pairs[number]) // count, domain.values[pairs[number] % count]))
        return numbers[pair]

    def meta_events(self, events: Columns) -> None:
        """Take the names of domains and categories, and what the run wrote about itself."""
        text = events.codes["text"]
        text_id = events.codes["text_id"]
        domain = events.codes["domain"]
        registered = self.tables.strings(text_id.values[code] for code in distinct(text_id.codes))
        process = self.processes_of(events)
        thread = events.codes["thread"].numbered(self.thread)
        for row, kind in enumerate(events.numbers["event"].tolist()):
            name = registered.get(text_id.values[text_id.codes[row]]) or text.values[text.codes[row]]
            key = int(process[row]), domain.values[domain.codes[row]]
            if kind == DOMAIN_TYPE:
                self.domain_names[key] = name
            elif kind == CATEGORY_TYPE:
                self.written.category(key, int(events.numbers["category"][row]), name)
            else:
                self.written.mark(key, name, int(events.numbers["start"][row]), int(thread[row]))
        self.notes += self.written.notes()

    def threads(self) -> list[Thread]:
        """Return the threads seen, each with all the names that the report gives it."""
        named: dict[int, list[str]] = {}
        for global_tid, name in self.tables.thread_names():
            named.setdefault(global_tid, []).append(name)
        return [
            Thread(self.process(tid >> 24), tid & 0xFFFFFF, ", ".join(dict.fromkeys(named.get(tid, []))))
            for tid in self.thread
        ]

    def keep_sane(self, table: Columns, rows_name: str) -> None:
        """Leave out rows that end before they start, with a note: their time cannot be counted."""
        keep: Bools = table.numbers["end"] >= table.numbers["start"]
        if not keep.all():
            self.notes.append(f"{(~keep).sum()} {rows_name} end before they start and are left out.")
        table.keep(keep)

    def provenance(self, work: Work, metadata: Mapping[str, str]) -> Provenance:
        """Return where the report comes from."""
        pids = [global_id & 0xFFFFFF for global_id in self.process]
        ran_on = {
            (pid, int(device))
            for process, pid in enumerate(pids)
            for device in distinct(work.device_id[work.process == process])
        }
        used = {gpu for pid, device, gpu in self.tables.cuda_devices() if (pid, device) in ran_on}
        named = self.tables.gpus()
        # The GPUs that anything ran on, each once; all where the export does not say.
        gpus = [name for gpu, name in named if gpu in used] or [name for _, name in named]
        product = metadata.get("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems")
        version = metadata.get("EXPORT_PRODUCT_VERSION", "").removesuffix(".0").replace("unknown", "")
        return Provenance(
            file=self.tables.path.name,
            tool=f"{TOOLS.get(product, product)} {version}".strip(),
            schema=metadata.get("EXPORT_SCHEMA_VERSION", ""),
            gpus=tuple(dict.fromkeys(gpus)),
            unit_of_work="CPU" if metadata.get("NVTX_KERNELS_WORK") == "CPU" else "GPU",
            run=self.written.run,
            models=self.written.models(),
            attributes=self.written.attributes(),
            steps=self.written.steps,
            counted=tuple(self.written.counted.values()),
        )


def _copies(table: Columns, first: int) -> Copies | None:
    """Return the sizes of copies, which begin at this position in the work; None if they are unknown."""
    column = table.numbers
    if not len(table) or column["bytes"].max() < 0:
        return None
    pageable = (column[name] == PAGEABLE for name in ("from_memory", "to_memory"))
    return Copies(first + np.arange(len(table)), column["bytes"], *pageable)


def _recording(metadata: Mapping[str, str]) -> Recording:
    """Return what a recording of an earlier version says, whose tables are nsys's."""

    def number(name: str) -> int:
        text = metadata.get(name, "").strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < LONGEST_NUMBER else 0

    return Recording(
        interrupted_by=metadata.get("NVTX_KERNELS_INTERRUPTED_BY", ""),
        ended_early=metadata.get("NVTX_KERNELS_ENDED_EARLY", ""),
        ranges_dropped=number("NVTX_KERNELS_RANGES_DROPPED"),
        unrecorded_ns=number("NVTX_KERNELS_UNRECORDED_NS"),
    )
