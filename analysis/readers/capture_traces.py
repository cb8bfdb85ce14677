"""The modules of CUDA graphs' kernels by a trace of their capture, as serving engines write one.

A trace of the replays has one launch of a graph for hundreds of kernels. The engine's trace of the capture
(`--capture FOLDER`) has each kernel's launch inside the calls of modules (`nn.Module: …`, PyTorch's with_stack).
The two are joined by graph: a replay is of the captured graph whose kernels have the same names equally often,
and of one name the first in the one is the first in the other. Where no graph fits, or several with different
modules, that is said, and the replay stays as it is.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import NotAReport, UsageError
from ..trace import KERNEL, Captures, Path, Ranges, Thread, Trace, sorted_ranges
from .chrome_columns import whole_number
from .chrome_events import TraceFile, nanoseconds
from .columns import Interner
from .graph_annotations import captures_of

THREAD_NAME = "capture of CUDA graphs, of its own trace"
MODULE = "nn.Module: "
ENDINGS = (".json", ".json.gz")
#: What ends the capture of a graph.
_END = re.compile(r"(?:cuda|hip)(?:StreamEndCapture|GraphInstantiate)")
UNDECIDED = "The modules of {} of {} replays of CUDA graphs are undecided: {}."


class _Args(msgspec.Struct, gc=False, frozen=True):
    kernel: Any = None
    correlation: Any = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: _Args = _Args()


_EVENTS = msgspec.json.Decoder(list[_Event])


class _Step(NamedTuple):
    """A moment on a thread of a capture: a module's call, a kernel's launch, or the end of a graph."""

    start_ns: int
    negative_end_ns: int  # so that what is around comes first
    module: str
    kernel: str


@dataclass(slots=True)
class Graph:
    """A captured graph: its kernels and the module of each, in the order of their launches."""

    kernels: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)


def with_captures(trace: Trace, folder: FilePath) -> Trace:
    """Return a trace of replays with the modules that the traces in a folder, or one of them, have of the capture.

    Raises UsageError where there is none, and NotAReport for a damaged one.
    """
    files = [folder] if folder.is_file() else sorted(f for f in folder.glob("*") if f.name.endswith(ENDINGS))
    if not files:
        raise UsageError(f"{folder} has no traces of a capture ({', '.join(ENDINGS)}).")
    graphs_of_names: dict[Any, list[Graph]] = defaultdict(list)
    for file in files:
        for graph in captured_graphs(file):
            graphs_of_names[_names(graph.kernels)].append(graph)

    work = trace.work
    rows = np.flatnonzero((work.kind == KERNEL) & (work.launch >= 0))
    rows = rows[np.lexsort((work.start_ns[rows], work.launch[rows]))]
    replays = [part for part in np.split(rows, np.flatnonzero(np.diff(work.launch[rows])) + 1) if len(part) > 1]
    replays.sort(key=lambda part: int(work.start_ns[part[0]]))
    path_of_row, missing, ambiguous = dict[int, Path](), 0, 0
    turns: Counter[Any] = Counter()
    count = Counter(_names(_kernels(trace, part)) for part in replays)
    for part in replays:
        names = _kernels(trace, part)
        key = _names(names)
        graphs = graphs_of_names.get(key, [])
        if len({tuple(graph.paths) for graph in graphs}) > 1 and count[key] % len(graphs):
            ambiguous += 1
        elif not graphs:
            missing += 1
        else:  # pieces of one model, alike in kernels, are replayed in the order of their capture
            path_of_row |= _joined(part.tolist(), names, graphs[turns[key] % len(graphs)])
            turns[key] += 1
    notes = [UNDECIDED.format(missing, len(replays), "no captured graph has the same kernels")] if missing else []
    several = "several captured graphs have the same kernels, in different modules"
    notes += [UNDECIDED.format(ambiguous, len(replays), several)] if ambiguous else []
    return _placed(replace(trace, notes=(*trace.notes, *notes)), path_of_row)


def _kernels(trace: Trace, rows: Iterable[int]) -> list[str]:
    return [trace.names[trace.work.name_id[row]] for row in rows]


def _names(kernels: Iterable[str]) -> frozenset[tuple[str, int]]:
    return frozenset(Counter(kernels).items())


def _joined(rows: Sequence[int], names: Sequence[str], graph: Graph) -> dict[int, Path]:
    """Return the path of each kernel of a replay: that of the captured one of its name and turn."""
    turns = defaultdict[str, list[Path]](list)
    for kernel, path in zip(graph.kernels, graph.paths, strict=True):
        turns[kernel].append(path)
    next_paths = {name: iter(paths) for name, paths in turns.items()}
    return {row: path for row, name in zip(rows, names, strict=True) if (path := next(next_paths[name]))}


def _placed(trace: Trace, path_of_row: dict[int, Path]) -> Trace:
    """Return the trace with ranges where these kernels' nodes were made."""
    if not path_of_row:
        return trace
    paths = list(dict.fromkeys(path_of_row.values()))
    position = {path: number for number, path in enumerate(paths)}
    rows = np.array(list(path_of_row), np.int64)
    starts = (trace.work.start_ns, trace.launches.start_ns, trace.ranges.start_ns)
    before_ns = min(int(start.min()) for start in starts if len(start))
    of_row = np.array([position[path] for path in path_of_row.values()], np.int64)
    added: Interner[str] = Interner()
    place = before_ns, len(trace.threads)
    captures, around = captures_of(
        len(trace.work), rows, of_row, paths, place, lambda name: len(trace.names) + added(name)
    )
    if trace.captures is not None:  # what the report itself has of other graphs
        report_captures = trace.captures
        of_work = np.where(
            captures.of_work >= 0, captures.of_work + len(report_captures.at_ns), report_captures.of_work
        ).astype(np.int32)
        at_ns, thread = (
            np.append(report_captures.at_ns, captures.at_ns),
            np.append(report_captures.thread, captures.thread),
        )
        captures = Captures(of_work, at_ns, thread)
    return replace(
        trace,
        ranges=sorted_ranges(Ranges.joined([trace.ranges, around])),
        names=[*trace.names, *added],
        threads=[*trace.threads, Thread(0, 0, THREAD_NAME)],
        captures=captures,
    )


def captured_graphs(path: FilePath) -> list[Graph]:
    """Read the graphs that a trace of a capture has.

    Raises NotAReport for a file that is no trace of PyTorch's profiler.
    """
    threads: dict[tuple[Any, Any], list[tuple[_Event, str, str]]] = defaultdict(list)
    executed = set()  # launches with a kernel of their own were not captured
    for events in TraceFile(path, decoder=_EVENTS).blocks():
        for event in events:
            if event.ph != "X":
                continue
            if event.cat == "kernel":
                executed.add(whole_number(event.args.correlation))
            elif event.cat == "python_function" and event.name.startswith(MODULE):
                threads[event.pid, event.tid].append((event, event.name.removeprefix(MODULE), ""))
            elif event.cat in ("cuda_runtime", "cuda_driver"):
                kernel = event.args.kernel
                if (isinstance(kernel, str) and kernel) or _END.match(event.name):
                    threads[event.pid, event.tid].append((event, "", kernel if isinstance(kernel, str) else ""))
    graphs = []
    for seen in threads.values():
        events = [event for event, _, _ in seen]
        try:
            start = nanoseconds([event.ts for event in events])
            end = start + nanoseconds([event.dur for event in events])
        except ValueError as error:
            raise NotAReport(f"{path} is damaged: it has {error}. Copy or record it again.") from error
        steps = [
            _Step(first, -last, module, kernel)
            for first, last, (event, module, kernel) in zip(start.tolist(), end.tolist(), seen, strict=True)
            if module or whole_number(event.args.correlation) not in executed
        ]
        graphs += _graphs_of(sorted(steps))
    return graphs


def _graphs_of(steps: Iterable[_Step]) -> list[Graph]:
    graphs, modules = [Graph()], list[_Step]()
    for step in steps:
        while modules and -modules[-1].negative_end_ns <= step.start_ns:
            modules.pop()
        if step.module:
            modules.append(step)
        elif step.kernel:
            graphs[-1].kernels.append(step.kernel)
            graphs[-1].paths.append(tuple(module.module for module in modules))
        elif graphs[-1].kernels:
            graphs.append(Graph())
    return [graph for graph in graphs if graph.kernels]
