"""PyTorch profiler traces: `*.pt.trace.json`, plain or gzipped, written by torch.profiler on a GPU or a CPU.

record_function blocks, steps and optimizers (`user_annotation`) and operators (`cpu_op`) become ranges, CUDA's
calls launches; with stacks, calls of modules are ranges too. A kernel says which GPU and stream it ran on, not
which process launched it: that is found by its correlation id. Without a GPU, operators' self time takes the place
of kernels, as in our recordings.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from ..errors import NotAReport
from ..support.heap import give_back
from ..support.progress import advance
from ..support.small_numbers import each_row
from ..support.units import counted
from ..trace import (
    FUNCTION,
    KERNEL,
    MODEL_FORWARD,
    NO_CATEGORY,
    NO_GRADIENT,
    Allocations,
    Copies,
    Domain,
    Frames,
    Int32s,
    Int64s,
    Launches,
    Messages,
    Operators,
    Overhead,
    Process,
    Provenance,
    Ranges,
    Spots,
    Thread,
    Trace,
    Waits,
    Work,
    sorted_ranges,
)
from ..vocabulary import OPTIMIZER_STEP
from .allocations import plausible
from .calls import named_calls
from .chrome_columns import MESSAGE, TraceColumns
from .chrome_events import Envelope, TraceFile
from .chrome_values import Id, whole_number
from .columns import Interner
from .graph_annotations import push_pop_ranges, with_annotated_graphs
from .launches import RowsById
from .lines import NumberedOperators, stack_lines
from .marks import DistributedInfo, fitting
from .memory_kinds import PAGEABLE
from .module_calls import ModuleTree, innermost_calls, module_tree, without_gradient
from .requirements import ASCEND_NPU
from .self_times import self_times, spots_of, with_inner
from .sequence_numbers import sequence_numbers
from .stack_frames import FUNCTION_CALL, MODULE_CALL, UPDATE, Functions
from .stream_waits import Synchronized, records_of, waits_of
from .trace_notes import gpu_operator, launched, notes_on

TOOL = "PyTorch profiler"
#: How torch_npu calls the process of an NPU's streams.
ASCEND = "Ascend Hardware"
# `thread 4711 (pt_autograd_0)`
_WRAPPED = re.compile(r"\Athread -?\d+ \((.*)\)\s*\Z")
# c10::DeviceType of the CPU, which `[memory]` events name by number.
CPU_DEVICE = 0


def read(path: Path, functions: Functions = "") -> Trace:
    """Read a PyTorch profiler trace; `functions` chooses which Python functions become ranges.

    Raises NotAReport for other JSON, and for a trace that is damaged or truncated.
    """
    file = TraceFile(path)
    columns = TraceColumns(functions)
    for events in file.blocks():
        advance(len(events))
        try:
            columns.take(events)
        except ValueError as error:
            raise NotAReport(f"{path} is damaged: it has {error}. Copy or record it again.") from error
    if not len(columns):
        raise NotAReport(
            f"{path} is not a trace of PyTorch's profiler: none of its events is an operator, a record_function "
            "block, a CUDA call or a kernel."
        )
    trace = Assembly(path, columns, file.envelope).trace()
    del columns  # as large as what was made of it
    give_back(len(trace.ranges))
    return trace


class Assembly:
    """Puts the columns together; our recorder's sessions are read by it too (`nvtx_kernels/sessions.py`)."""

    def __init__(self, path: Path, columns: TraceColumns, envelope: Envelope) -> None:
        self.path = path
        self.columns = columns
        self.envelope = envelope
        self.process: Interner[Id] = Interner()
        self.process_of = np.array([self.process(pid) for pid, _ in columns.threads], np.int32)
        self.notes: list[str] = []

    def trace(self) -> Trace:
        """Return the trace."""
        columns = self.columns
        gpus = self.gpus()
        info, _ = fitting(DistributedInfo, self.envelope.distributed)
        ranges, modules = self.with_modules(self.ranges())
        on_cpu = not (columns.work.rows or launched(columns))
        self.notes += notes_on(columns, gpus, on_cpu=on_cpu)
        work, launches = self.operators_as_work(ranges) if on_cpu else self.gpu_work(ranges)
        memory = self.memory(on_cpu)
        frames = self.frames()
        functions = tuple(columns.functions)
        trace = Trace(
            work=work,
            launches=launches,
            ranges=sorted_ranges(ranges.take(self.counted_ranges(ranges))),
            names=list(columns.names),
            threads=self.threads(),
            processes=self.processes(),
            domains=[Domain(process, 0) for process in range(len(self.process))],
            provenance=Provenance(
                file=self.path.name,
                tool=TOOL,
                schema=str(self.envelope.schema or ""),
                gpus=() if on_cpu else gpus,
                unit_of_work="CPU" if on_cpu else "GPU",
                gpu_operator=gpu_operator(columns) if on_cpu else "",
                run=msgspec.to_builtins(info) if info else {},  # its rank among several
                models=modules.tables() if modules else {},
                trace_modules=modules.traced() if modules else {},
            ),
            notes=tuple(self.notes),
            memory=memory,
            operators=self.operators(),
            operator_calls=tuple(columns.operator_calls),
            frames=frames,
            frame_names=functions,
            lines=stack_lines(frames, functions, self.nodes_of_autograd(ranges), launches),
        )
        if on_cpu:
            return trace
        waits, has_events = self.waits()
        trace = replace(
            trace,
            messages=self.messages(work),
            waits=waits,
            has_events=has_events,
            copies=self.copies(),
            calls=named_calls(columns.launches["call"], list(columns.calls)),
            overhead=self.overhead(),
            graph_node=self.graph_nodes(),
        )
        nodes = columns.nodes
        if not nodes.rows:
            return trace
        annotated = list(columns.module_paths)
        return with_annotated_graphs(trace, self.path, nodes["work"], nodes["node"], nodes["path"], annotated)

    def gpus(self) -> tuple[str, ...]:
        """Return the names of the GPUs that anything ran on, else of those in the machine, each once."""
        if ASCEND in {self.columns.process_names.get(pid) for pid, _ in self.columns.tracks}:
            return (ASCEND_NPU,)
        devices = self.envelope.devices or self.envelope.old_devices
        if not isinstance(devices, list):
            return ()
        described = [device for device in devices if isinstance(device, dict)]
        ran_on = np.unique(self.columns.work["device"]).tolist()
        used = [device for device in described if device.get("id") in ran_on]
        names = [str(device["name"]) for device in used or described if device.get("name")]
        return tuple(dict.fromkeys(names))

    def threads(self) -> list[Thread]:
        """Return the threads with their names, as far as these are recorded."""
        names = self.columns.thread_names
        threads = []
        for process, (pid, tid) in zip(self.process_of, self.columns.threads, strict=True):
            name = _WRAPPED.sub(r"\1", names.get((pid, tid), ""))
            threads.append(Thread(int(process), whole_number(tid) or 0, name))
        return threads

    def processes(self) -> list[Process]:
        """Return the processes with their names, as far as these are recorded."""
        names = self.columns.process_names
        return [Process(whole_number(pid) or 0, names.get(pid, "")) for pid in self.process]

    def messages(self, work: Work) -> Messages | None:
        """Return the messages of kernels that communicate, from their own arguments."""
        table = self.columns.messages
        if not table.rows:
            return None
        launches, first = np.unique(work.launch[table["work"]].astype(np.int64), return_index=True)
        rows = first[launches >= 0]  # of several of one launch the first
        if not len(rows):
            return None
        collective, group, ranks, sent, received = (table[name][rows] for name in MESSAGE)
        return Messages(
            launches[launches >= 0],
            collective.astype(np.int32),
            group.astype(np.int32),
            ranks,
            sent,
            received,
            root_or_peer=np.full(len(rows), -1, np.int64),
        )

    def waits(self) -> tuple[Waits | None, bool]:
        """Return the things calls waited for and the events they recorded, and whether any of these is known."""
        calls = self.columns.launches
        process = self.process_of[calls["place"]]
        keys = RowsById.of(process, calls["correlation"], calls["start"])
        waited = waits_of(self.columns.syncs)
        recorded = records_of(self.columns.syncs)
        joined = Synchronized.joined([waited, recorded])
        call = keys.find(self.processes_of(joined.correlation), joined.correlation)
        is_known = call >= 0
        has_events = bool(is_known[len(waited) :].any())
        waits = Waits(call, joined.stream, joined.event).take(is_known)
        if not len(waits):
            return None, has_events
        return waits, has_events

    def processes_of(self, correlation: Int64s) -> Int32s:
        """Return the only process with a call of each correlation id, -1 where several have one."""
        calls = self.columns.launches
        process = self.process_of[calls["place"]]
        if len(self.process) < 2:
            return np.zeros(len(correlation), np.int32)
        return _sole_owner(calls["correlation"], process, correlation)

    def copies(self) -> Copies | None:
        """Return the sizes of copies, and whose memory they are from and to; None where no size is known."""
        table = self.columns.copies
        size = table["bytes"]
        if not table.rows or size.max() < 0:
            return None
        from_pageable = table["from_memory"] == PAGEABLE
        to_pageable = table["to_memory"] == PAGEABLE
        return Copies(table["work"], size, from_pageable, to_pageable)

    def nodes_of_autograd(self, ranges: Ranges) -> NumberedOperators:
        """Return the operators, and which of them are nodes of autograd, with the numbers of their makers."""
        is_operator = self.columns.ranges["is_operator"] == 1
        is_node = self.columns.ranges["forward"] > 0
        spots = Spots(ranges.start_ns, ranges.end_ns, ranges.thread)
        return NumberedOperators(spots.take(is_operator), ranges.seq[is_operator], is_node[is_operator])

    def overhead(self) -> Overhead | None:
        """Return when the profiler kept threads busy; Kineto does not always say which thread."""
        table = self.columns.overhead
        if not table.rows:
            return None
        number_of = self.columns.threads.get
        numbers = [number_of(place, -1) for place in self.columns.overhead_places]
        thread = np.array(numbers, np.int32)[table["place"]]
        return Overhead(table["start"], np.maximum(table["start"], table["end"]), thread, table["loads"] == 1)

    def frames(self) -> Frames | None:
        """Return the calls of Python functions of a trace with stacks."""
        table = self.columns.frames
        if not table.rows:
            return None
        thread = table["place"].astype(np.int32)
        name = table["name"].astype(np.int32)
        return Frames(table["start"], np.maximum(table["start"], table["end"]), thread, name)

    def operators(self) -> Operators | None:
        """Return the calls of operators of a trace with shapes."""
        table = self.columns.operators
        if not table.rows:
            return None
        thread = table["place"].astype(np.int32)
        call = table["call_text"].astype(np.int32)
        return Operators(table["start"], np.maximum(table["start"], table["end"]), thread, call)

    def memory(self, on_cpu: bool) -> Allocations | None:
        """Return the allocations and frees of PyTorch's allocator: on the GPU, else on the CPU."""
        table = self.columns.memory
        rows = np.flatnonzero((table["device_type"] == CPU_DEVICE) == on_cpu)
        if not len(rows):
            return None
        thread = table["place"][rows].astype(np.int32)
        allocations = Allocations(
            at_ns=table["start"][rows],
            thread=thread,
            device_id=np.maximum(table["device"][rows], 0).astype(np.int32),
            process=self.process_of[thread],
            block=table["block"][rows],
            bytes=table["bytes"][rows],
            total_bytes=table["total"][rows],
        )
        return plausible(allocations, self.notes)

    def graph_nodes(self) -> Int64s | None:
        """Return the id of each piece of work's node in a CUDA graph; None without any."""
        if not self.columns.nodes.rows:
            return None
        node = np.full(self.columns.work.rows, -1, np.int64)
        node[self.columns.nodes["work"]] = self.columns.nodes["node"]
        return node

    def ranges(self) -> Ranges:
        """Return record_function blocks and operators, in the file's order."""
        table = self.columns.ranges
        thread = self.columns.ranges["place"].astype(np.int32)
        start = table["start"]
        name = table["name"].astype(np.int32)
        end = np.maximum(start, table["end"])
        domain = self.process_of[thread]
        return push_pop_ranges(
            start, end, thread, name, domain, sequence_numbers(self.columns, self.process_of, thread)
        )

    def with_modules(self, ranges: Ranges) -> tuple[Ranges, ModuleTree | None]:
        """Return the ranges with their categories, modules named by their callers; and the modules, if any."""
        frame = self.columns.ranges["frame"]
        weight = self.columns.ranges["weight"]
        category = np.where(frame == FUNCTION_CALL, FUNCTION, NO_CATEGORY).astype(np.int8)
        calls = np.flatnonzero(frame == MODULE_CALL)
        if not len(calls):
            return replace(ranges, category=category), None
        weights = np.flatnonzero(weight >= 0)
        rows = np.concatenate([calls, weights])
        around = innermost_calls(spots_of(ranges, rows), np.arange(len(rows)) < len(calls))
        around_calls = around[: len(calls)]
        around_weights = around[len(calls) :]
        names = list(self.columns.names)
        shapes = list(self.columns.shapes)
        process = self.process_of[ranges.thread[calls]]
        traced = [names[name] for name in ranges.name_id[calls]]
        tree, modules = module_tree(process, traced, spots_of(ranges, calls), around_calls)
        for call, shape in each_row(around_weights, weight[weights]):
            if call >= 0:  # the first that a module used itself is its own
                module = tree.modules[modules[call]]
                module.shape = module.shape or shapes[shape]
        number = self.columns.names
        has_caller = around_calls >= 0
        callers = np.where(has_caller, modules[around_calls], -1)
        pairs = each_row(callers, modules)
        name_id = ranges.name_id.copy()
        name_id[calls] = [number(tree.name(caller, called)) for caller, called in pairs]
        category[calls] = MODEL_FORWARD
        outermost = calls[~has_caller]
        operators = np.flatnonzero(self.columns.ranges["is_operator"])
        sequence = self.columns.ranges["sequence"][operators]
        is_without = without_gradient(spots_of(ranges, outermost), spots_of(ranges, operators), sequence)
        category[outermost[is_without]] = NO_GRADIENT
        return replace(ranges, name_id=name_id, category=category), tree

    def counted_ranges(self, ranges: Ranges) -> Int64s:
        """Return the ranges to keep: without frames of updates on threads where PyTorch marked these itself."""
        is_update = self.columns.ranges["frame"] == UPDATE
        marks = [name for text, name in self.columns.names.items() if text.startswith(OPTIMIZER_STEP)]
        is_marked = np.isin(ranges.name_id, marks) & ~is_update
        is_on_marked_thread = np.isin(ranges.thread, ranges.thread[is_marked])
        return np.flatnonzero(~(is_update & is_on_marked_thread))

    def gpu_work(self, ranges: Ranges | None = None) -> tuple[Work, Launches]:
        """Return the GPU's work, and the calls that launched it.

        Given the ranges, each call is trimmed to the operator or block that the profiler names as its caller. The
        two are timed by different clocks, or cut down to microseconds; a call can stick out of its operator.
        """
        calls = self.columns.launches
        thread = self.columns.launches["place"].astype(np.int32)
        start = calls["start"]
        end = np.maximum(calls["start"], calls["end"])
        if ranges is not None and len(ranges):
            last_first = -np.arange(len(ranges))
            callers = RowsById.of(ranges.thread, self.columns.ranges["external"], last_first)
            row = callers.find(thread, calls["external"])
            overlaps = (start <= ranges.end_ns[row]) & (ranges.start_ns[row] <= end)
            inside = (row >= 0) & overlaps
            caller = row[inside]
            start[inside] = np.maximum(start[inside], ranges.start_ns[caller])
            end[inside] = np.minimum(end[inside], ranges.end_ns[caller])
        launches = Launches(start, end, thread)
        table = self.columns.work
        process, correlation = self.processes_of_work()
        keys = RowsById.of(self.process_of[thread], calls["correlation"], start)
        work_start = table["start"]
        work = Work(
            start_ns=work_start,
            end_ns=np.maximum(work_start, table["end"]),
            kind=table["kind"].astype(np.uint8),
            name_id=table["name"].astype(np.int32),
            device_id=table["device"].astype(np.int32),
            stream_id=table["stream"],
            process=process,
            launch=keys.find(process, correlation),
            grid=table["grid"].astype(np.int32),
        )
        return work, launches

    def processes_of_work(self) -> tuple[Int32s, Int64s]:
        """Return each piece of work's process and correlation id, -1 if its process is unknown.

        A file with several processes was merged from several traces. An id that one of them alone used tells the
        process; if all known work of a GPU is of one process, so is the rest.
        """
        launches = self.columns.launches
        correlation = self.columns.work["correlation"]
        of_launch = self.process_of[launches["place"]]
        candidates = np.unique(of_launch)
        if not len(self.process):
            self.process(0)
        if len(candidates) < 2:
            only = candidates[0] if len(candidates) else 0
            return np.full(len(correlation), only, np.int32), correlation
        owner = _sole_owner(launches["correlation"], of_launch, correlation)
        gpu: Interner[Id] = Interner()  # a track is a stream of a GPU
        gpu_of_track = np.array([gpu(pid) for pid, _ in self.columns.tracks] or [0], np.int64)
        track = gpu_of_track[self.columns.work["place"]]
        is_owned = owner >= 0
        owner_of_gpu = _sole_owner(track[is_owned], owner[is_owned], track)
        owner = np.where(is_owned, owner, owner_of_gpu)
        unknown = owner < 0
        if unknown.any():
            self.notes.append(
                f"{counted(int(unknown.sum()), 'piece')} of GPU work could be any of {len(candidates)} processes'."
            )
        return np.where(unknown, 0, owner).astype(np.int32), np.where(unknown, -1, correlation)

    def operators_as_work(self, ranges: Ranges) -> tuple[Work, Launches]:
        """Return the self time of operators as kernels, each its own launch, as in our recordings."""
        work, _, launches = self.self_times(ranges)
        return work, launches

    def self_times(self, ranges: Ranges, added: Spots | None = None) -> tuple[Work, Int64s, Launches]:
        """Return the self time of operators as kernels, which range is the operator of each, and their launches.

        What an operator does inside a range that opens within it, of the trace or of `added`, is a kernel of its
        own that is launched there. Self time need not be contiguous: a thread's kernels are laid out as on one
        stream, each starting when its operator or range starts, or when the kernel before it ends.
        """
        is_operator = self.columns.ranges["is_operator"] == 1
        spots, row = with_inner(ranges, is_operator, added)
        order, self_ns, operator, end_ns = self_times(spots, row >= 0)
        counts = (self_ns > 0) & (operator >= 0)
        order = order[counts]
        self_ns = self_ns[counts]
        row = row[operator[counts]]
        until_ns = end_ns[counts]
        launches = Launches(spots.start_ns[order], until_ns, spots.thread[order])
        thread = launches.thread
        elapsed = np.cumsum(self_ns)
        # When each kernel ends that starts no sooner than the one before it on its thread has ended.
        latest = launches.start_ns - (elapsed - self_ns)  # how much later than without any pause
        for rows in np.split(latest, np.flatnonzero(np.diff(thread)) + 1):
            np.maximum.accumulate(rows, out=rows)
        end_ns = latest + elapsed
        tids = np.array([whole_number(tid) or 0 for _, tid in self.columns.threads] or [0], np.int64)
        count = len(row)
        work = Work(
            start_ns=end_ns - self_ns,
            end_ns=end_ns,
            kind=np.full(count, KERNEL, np.uint8),
            name_id=ranges.name_id[row],
            device_id=np.zeros(count, np.int32),
            stream_id=tids[thread],
            process=self.process_of[thread],
            launch=np.arange(count, dtype=np.int32),
            grid=np.zeros(count, np.int32),
        )
        return work, row, launches


def _sole_owner(key: Int64s, owner: Int32s, keys: Int64s) -> Int32s:
    """Return the only owner of each key; -1 if it has none or several."""
    pairs = np.unique(np.stack([key, owner.astype(np.int64)]), axis=1)
    distinct, first, count = np.unique(pairs[0], return_index=True, return_counts=True)
    if not len(distinct):
        return np.full(len(keys), -1, np.int32)
    position = np.minimum(np.searchsorted(distinct, keys), len(distinct) - 1)
    sole = (distinct[position] == keys) & (count[position] == 1) & (keys >= 0)
    return np.where(sole, pairs[1][first[position]], -1).astype(np.int32)
