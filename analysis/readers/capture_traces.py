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
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from ..errors import NotAReport, UsageError
from ..trace import KERNEL, Path, Trace
from ..vocabulary.served import SECOND_RUNNER
from .chrome_events import Args, Event, TraceFile, nanoseconds
from .chrome_values import whole_number
from .columns import Interner
from .graph_annotations import with_captures_at

THREAD_NAME = "capture of CUDA graphs, of its own trace"
MODULE = "nn.Module: "
ENDINGS = (".json", ".json.gz")
#: What ends the capture of a graph.
_END = re.compile(r"(?:cuda|hip)(?:StreamEndCapture|GraphInstantiate)")
UNDECIDED = "The modules of {} of {} replays of CUDA graphs are undecided: {}."


class _Args(Args, gc=False, frozen=True):
    kernel: Any = None


class _Event(Event, gc=False):
    args: _Args = _Args()


_EVENTS = msgspec.json.Decoder(list[_Event])


#: A captured graph: its kernels and the module of each, in the order of their launches.
Graph = list[tuple[str, Path]]


def with_captures(trace: Trace, folder: FilePath) -> Trace:
    """Return a trace of replays with the modules from traces of the capture: a file, or all in a folder.

    Raises UsageError without traces, and NotAReport for a damaged one.
    """
    files = [folder] if folder.is_file() else sorted(f for f in folder.glob("*") if f.name.endswith(ENDINGS))
    if not files:
        raise UsageError(f"{folder} has no traces of a capture ({', '.join(ENDINGS)}). {SECOND_RUNNER}")
    graphs_of_names: dict[Any, list[Graph]] = defaultdict(list)
    for file in files:
        for graph in captured_graphs(file):
            graphs_of_names[_counted(kernel for kernel, _ in graph)].append(graph)

    work = trace.work
    rows = np.flatnonzero((work.kind == KERNEL) & (work.launch >= 0))
    rows = rows[np.lexsort((work.start_ns[rows], work.launch[rows]))]
    replays = [part for part in np.split(rows, np.flatnonzero(np.diff(work.launch[rows])) + 1) if len(part) > 1]
    replays.sort(key=lambda part: int(work.start_ns[part[0]]))
    names_of = [[*map(trace.names.__getitem__, work.name_id[part])] for part in replays]
    count = Counter(map(_counted, names_of))
    turns = Counter[Any]()
    path_of_row = dict[int, Path]()
    missing = 0
    ambiguous = 0
    for part, names in zip(replays, names_of, strict=True):
        key = _counted(names)
        graphs = graphs_of_names.get(key, [])
        if len({*map(_paths, graphs)}) > 1 and count[key] % len(graphs):
            ambiguous += 1
        elif not graphs:
            missing += 1
        else:  # pieces of a model with the same kernels are replayed in the order of their capture
            paths_of = defaultdict[str, list[Path]](list)
            for kernel, path in graphs[turns[key] % len(graphs)]:
                paths_of[kernel].append(path)
            turns[key] += 1
            next_paths = {name: iter(paths) for name, paths in paths_of.items()}
            pairs = ((row, next(next_paths[name])) for row, name in zip(part.tolist(), names, strict=True))
            path_of_row |= {row: path for row, path in pairs if path}
    notes = [UNDECIDED.format(missing, len(replays), "no captured graph has the same kernels")] if missing else []
    several = "several captured graphs have the same kernels, in different modules"
    notes += [UNDECIDED.format(ambiguous, len(replays), several)] if ambiguous else []
    trace = replace(trace, notes=(*trace.notes, *notes))
    number: Interner[Path] = Interner()
    of_row = np.array([number(path) for path in path_of_row.values()], np.int64)
    captured = np.array([*path_of_row], np.int64)
    if path_of_row:
        return with_captures_at(trace, captured, of_row, [*number], THREAD_NAME)
    return trace


def _paths(graph: Graph) -> tuple[Path, ...]:
    return tuple(path for _, path in graph)


def _counted(kernels: Iterable[str]) -> frozenset[tuple[str, int]]:
    return frozenset(Counter(kernels).items())


def captured_graphs(path: FilePath) -> list[Graph]:
    """Read the graphs that a trace of a capture has.

    Raises NotAReport for a file that is no trace of PyTorch's profiler.
    """
    # Calls of modules, launches of kernels, and with neither of both, ends of graphs.
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
                kernel = event.args.kernel if isinstance(event.args.kernel, str) else ""
                if kernel or _END.match(event.name):
                    threads[event.pid, event.tid].append((event, "", kernel))
    graphs: list[Graph] = []
    for seen in threads.values():
        try:
            start = nanoseconds([event.ts for event, _, _ in seen])
            end = start + nanoseconds([event.dur for event, _, _ in seen])
        except ValueError as error:
            raise NotAReport(f"{path} is damaged: it has {error}. Copy or record it again.") from error
        steps = [  # what is around comes first
            (first, -last, module, kernel)
            for first, last, (event, module, kernel) in zip(start.tolist(), end.tolist(), seen, strict=True)
            if module or whole_number(event.args.correlation) not in executed
        ]
        graph = Graph()
        modules = list[tuple[int, str]]()  # with their ends
        for start_ns, negative_end_ns, module, kernel in sorted(steps):
            while modules and modules[-1][0] <= start_ns:
                modules.pop()
            if module:
                modules.append((-negative_end_ns, module))
            elif kernel:
                graph.append((kernel, tuple(name for _, name in modules)))
            else:
                graphs.append(graph)
                graph = Graph()
        graphs.append(graph)
    return [graph for graph in graphs if graph]
