"""From nsys's tables, wherever they were stored, to a `Trace`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from analysis.readers.columns import Interner, encode, ints, translate
from analysis.readers.launch_keys import LaunchKeys
from analysis.readers.nsys_events import DOMAIN_TYPE, MARK_TYPE, NEVER_CLOSED, START_END_TYPES
from analysis.trace import (
    GRAPH,
    KINDS,
    MEMCPY,
    MEMSET,
    PUSH_POP,
    START_END,
    Bools,
    Domain,
    Int32s,
    Int64s,
    Launches,
    Process,
    Provenance,
    Ranges,
    Thread,
    Trace,
    Work,
    empty_ranges,
    sorted_ranges,
)
from analysis.vocabulary import without_suffixes

# CUpti_ActivityMemcpyKind, in the words of nsys's reports.
COPY_KINDS = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
}  # fmt: skip

RUN_MARK = "nvtx-kernels.run "
TOOLS = {"NVIDIA Nsight Systems": "nsys"}


class NsysTables(Protocol):
    """What a store of nsys's tables answers; `NsysSqlite` says what each method returns."""

    path: Path

    def ranges(self) -> pa.Table | None:
        """Return NVTX ranges, marks and domain names, in the file's order."""
        ...

    def launches(self) -> pa.Table | None:
        """Return CUDA API calls, the runtime's and the driver's."""
        ...

    def work(self, kind: int) -> pa.Table | None:
        """Return the GPU work of one kind."""
        ...

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of these string ids."""
        ...

    def thread_names(self) -> list[tuple[int, str]]:
        """Return (global thread id, name) rows."""
        ...

    def gpus(self) -> tuple[str, ...]:
        """Return the names of the GPUs."""
        ...

    def metadata(self) -> dict[str, str]:
        """Return the export's own description of itself."""
        ...


def read_trace(tables: NsysTables) -> Trace:
    """Read everything that attribution needs; the two largest tables at the same time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        events = pool.submit(tables.ranges)
        calls = pool.submit(tables.launches)
        work = [pool.submit(tables.work, kind) for kind in range(len(KINDS))]
        return _Assembly(tables).trace(events.result(), calls.result(), [table.result() for table in work])


class _Assembly:
    """Puts the tables together; names, threads, processes and domains are numbered as they turn up."""

    def __init__(self, tables: NsysTables) -> None:
        self.tables = tables
        self.name: Interner[str] = Interner()
        self.process: Interner[int] = (
            Interner()
        )  # global process id: the global thread id without its last 24 bits
        self.thread: Interner[int] = Interner()
        self.domain: Interner[tuple[int, int]] = Interner()
        self.domain_names: dict[tuple[int, int], str] = {}
        self.run: dict[str, Any] = {}
        self.notes: list[str] = []

    def trace(self, events: pa.Table | None, calls: pa.Table | None, work: list[pa.Table | None]) -> Trace:
        launches, keys = self.launches(calls)
        done = _joined([self.work(kind, table, keys) for kind, table in enumerate(work) if table is not None])
        capture_end = max(int(times.max(initial=0)) for times in (launches.end_ns, done.end_ns))
        ranges = self.ranges(events, capture_end) if events is not None else empty_ranges()
        threads = self.threads()
        return Trace(
            work=done,
            launches=launches,
            ranges=ranges,
            names=list(self.name),
            threads=threads,
            processes=[Process(global_id & 0xFFFFFF) for global_id in self.process],
            domains=[
                Domain(process, id_, self.domain_names.get((process, id_), "")) for process, id_ in self.domain
            ],
            provenance=self.provenance(),
            notes=tuple(self.notes),
        )

    def launches(self, calls: pa.Table | None) -> tuple[Launches, LaunchKeys]:
        """Return the CUDA API calls and the index by which work finds its own."""
        if calls is None:
            none = np.empty(0, np.int64)
            return Launches(none, none, none.astype(np.int32)), LaunchKeys(none, none)
        start, end = ints(calls, "start"), ints(calls, "end")
        thread, process = self.places(ints(calls, "thread"))
        keys = LaunchKeys.of(process, ints(calls, "correlation"), ints(calls, "foreign_class") != 0, start)
        return Launches(start, end, thread), keys

    def places(self, global_tids: Int64s) -> tuple[Int32s, Int32s]:
        """Return the thread and the process of each global thread id."""
        codes, distinct = encode(global_tids)
        return translate(codes, distinct, self.thread), translate(
            codes, distinct, lambda tid: self.process(tid >> 24)
        )

    def work(self, kind: int, table: pa.Table, keys: LaunchKeys) -> Work:
        """Return the GPU work of one kind."""
        table = self.sane(table, KINDS[kind])
        codes, distinct = encode(ints(table, "process"))
        process = translate(codes, distinct, lambda pid: self.process(pid >> 24))
        return Work(
            start_ns=ints(table, "start"),
            end_ns=ints(table, "end"),
            kind=np.full(table.num_rows, kind, np.uint8),
            name_id=self.work_names(kind, ints(table, "name")),
            device_id=ints(table, "device").astype(np.int32),
            stream_id=ints(table, "stream"),
            process=process,
            launch=keys.find(process, ints(table, "correlation")),
            grid=np.clip(ints(table, "grid"), 0, 2**31 - 1).astype(np.int32),
        )

    def work_names(self, kind: int, names: Int64s) -> Int32s:
        """Return name ids: of a kernel its demangled name, of a copy its direction."""
        codes, distinct = encode(names)
        if kind == MEMCPY:
            text = {code: f"[CUDA memcpy {COPY_KINDS.get(code, 'of unknown kind')}]" for code in distinct}
        elif kind in (MEMSET, GRAPH):
            text = dict.fromkeys(distinct, "[CUDA memset]" if kind == MEMSET else "[CUDA graph]")
        else:
            known = self.tables.strings(distinct)
            text = {code: known.get(code) or f"(kernel without a name, string {code})" for code in distinct}
        return translate(codes, distinct, lambda code: self.name(text[code]))

    def ranges(self, events: pa.Table, capture_end: int) -> Ranges:
        """Return the NVTX ranges in order; marks and domain names are taken on the way."""
        event = ints(events, "event")
        self.meta_events(events.filter(pa.array((event == MARK_TYPE) | (event == DOMAIN_TYPE))))
        if (is_range := (event != MARK_TYPE) & (event != DOMAIN_TYPE)).sum() < len(event):
            events, event = events.filter(pa.array(is_range)), event[is_range]
        start, end = ints(events, "start"), ints(events, "end")
        open_ended = end == NEVER_CLOSED
        last = max(capture_end, int(end.max(initial=0)), int(start.max(initial=0)))
        thread, process = self.places(ints(events, "thread"))
        name, seq = self.range_names(events)
        ranges = Ranges(
            start_ns=start,
            end_ns=np.where(open_ended, last, end),
            thread=thread,
            name_id=name,
            domain=self.domains(process, ints(events, "domain")),
            seq=seq,
            style=np.where(np.isin(event, START_END_TYPES), START_END, PUSH_POP).astype(np.uint8),
            open_ended=open_ended,
        )
        return sorted_ranges(self.forward_in_time(ranges))

    def range_names(self, events: pa.Table) -> tuple[Int32s, Int64s]:
        """Return name ids and autograd sequence numbers, from the inline text or the registered string."""
        codes, inline = encode(events["text"])
        name, seq = translate(codes, inline, self.name), ints(events, "seq")
        ids, distinct = encode(ints(events, "text_id"))
        registered = {code: without_suffixes(text) for code, text in self.tables.strings(distinct).items()}
        if registered:
            from_id = ints(events, "text_id") >= 0
            bare = translate(ids, distinct, lambda code: self.name(registered.get(code, ("", -1))[0]))
            number = np.array([registered.get(code, ("", -1))[1] for code in distinct], np.int64)[ids]
            name, seq = np.where(from_id, bare, name), np.where(from_id, number, seq)
        return name, seq

    def domains(self, process: Int32s, domain_id: Int64s) -> Int32s:
        """Return the domain of each range; ids count per process."""
        codes, distinct = encode(process.astype(np.int64) << 40 | domain_id & (1 << 40) - 1)
        return translate(codes, distinct, lambda key: self.domain((key >> 40, key & (1 << 40) - 1)))

    def meta_events(self, events: pa.Table) -> None:
        """Take domain names, and what the run wrote about itself."""
        text_ids, kinds = ints(events, "text_id"), ints(events, "event")
        registered = self.tables.strings(set(text_ids.tolist()))
        _, process = self.places(ints(events, "thread"))
        inline = encode(events["text"])
        for row in range(events.num_rows):
            text = registered.get(int(text_ids[row])) or inline[1][inline[0][row]]
            if kinds[row] == DOMAIN_TYPE:
                self.domain_names[int(process[row]), int(ints(events, "domain")[row])] = text
            elif text.startswith(RUN_MARK):
                self.run = _parsed(text.removeprefix(RUN_MARK))

    def threads(self) -> list[Thread]:
        """Return the threads seen, each with all the names that the report gives it."""
        named: dict[int, list[str]] = {}
        for global_tid, name in self.tables.thread_names():
            named.setdefault(global_tid, []).append(name)
        return [
            Thread(self.process(tid >> 24), tid & 0xFFFFFF, ", ".join(dict.fromkeys(named.get(tid, []))))
            for tid in self.thread
        ]

    def sane(self, table: pa.Table, what: str) -> pa.Table:
        """Leave out work that ends before it starts: its time cannot be counted."""
        keep = ints(table, "end") >= ints(table, "start")
        if not keep.all():
            self.notes.append(f"{(~keep).sum()} {what} rows end before they start and are left out.")
        return table if keep.all() else table.filter(pa.array(keep))

    def forward_in_time(self, ranges: Ranges) -> Ranges:
        """Leave out ranges that end before they start, and say so."""
        keep: Bools = ranges.end_ns >= ranges.start_ns
        if not keep.all():
            self.notes.append(f"{(~keep).sum()} ranges end before they start and are left out.")
        return ranges if keep.all() else ranges.take(keep)

    def provenance(self) -> Provenance:
        """Say where the report comes from."""
        meta = self.tables.metadata()
        product = meta.get("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems")
        version = meta.get("EXPORT_PRODUCT_VERSION", "").removesuffix(".0")
        return Provenance(
            file=self.tables.path.name,
            tool=f"{TOOLS.get(product, product)} {version}".strip(),
            schema=meta.get("EXPORT_SCHEMA_VERSION", ""),
            gpus=self.tables.gpus(),
            unit_of_work=meta.get("NVTX_KERNELS_WORK", "GPU"),
            run=self.run,
        )


def _joined(parts: list[Work]) -> Work:
    columns = Work.__dataclass_fields__
    if not parts:
        none = np.empty(0, np.int64)
        return Work(none, none, *(none.astype(kind) for kind in ("u1", "i4", "i4", "i8", "i4", "i4", "i4")))
    return Work(*(np.concatenate([getattr(part, column) for part in parts]) for column in columns))


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
