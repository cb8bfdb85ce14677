"""PyTorch's own annotation of the work of CUDA graphs (torch.cuda.graph_annotations, PyTorch 2.15).

While a graph is captured, `mark_kernels` notes for each node the module that made it (`module_fqn`) or any `name`.
An export writes that into the events of replays; older ones wrote a side file by the nodes' ids, one folder above
the trace: `kernel_annotations_rank0_….json`, `{"4294967299": [{"name": …}]}`.

Such a node was made where its module's range would have been: `with_captures_at` adds these ranges, on a thread of
their own before everything else, and says where in them each node was made. Attribution then leads a replay's
work below the range that replays it, as it does for graphs whose capture was recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path as FilePath
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from ..errors import NotAReport
from ..trace import PUSH_POP, Captures, Int32s, Int64s, Path, Ranges, Thread, Trace, sorted_ranges
from .columns import Names
from .safety import content_of, newest_beside

SIDE_FILES = "kernel_annotations_rank{rank}_*.json"
LARGEST_BYTES = 64 << 20
THREAD_NAME = "capture of CUDA graphs, as PyTorch annotated it"

# Of `layers.0.attention.wq`: layers.0, attention and wq.
_PARTS = re.compile(r"[^.]+(?:\.\d+(?=\.|$))*")
# CUPTI's id of a node has its graph in the upper half; a newer writer has that by itself.
_GRAPH_BITS = 32
MOST_DEPTH = 64
MOST_DIGITS = 20
#: An annotation's values of `autograd_phase` (from PyTorch 2.14 on), which are the names of ranges of phases.
PHASES_OF_NODES = ("forward", "backward")

Text = Annotated[str, Meta(max_length=1024)]


class _Annotation(msgspec.Struct):
    """A side file's annotation of a node; of several with the same field, the last is the innermost."""

    module: Text | None = msgspec.field(default=None, name="module_fqn")
    name: Text | None = None
    phase: Text | None = msgspec.field(default=None, name="autograd_phase")


_SIDE_FILE = msgspec.json.Decoder(dict[str, list[_Annotation]])


def module_path(module: Any, name: Any, phase: Any = None) -> Path:
    """Return a node's ranges, outermost first: its phase, its module's, its annotation's name; () for none."""
    modules = tuple(_PARTS.findall(module))[:MOST_DEPTH] if isinstance(module, str) else ()
    named = isinstance(name, str) and name and name != module and name not in modules[-1:]
    path = (*modules, name) if named else modules
    if path and phase in PHASES_OF_NODES:
        return (phase, *path)
    return path


def node_id(graph: Any, node: Any) -> Any:
    """Return a node's id in its process, from that of its graph where the trace has both apart."""
    both = isinstance(graph, int) and isinstance(node, int) and 0 <= node < 1 << _GRAPH_BITS
    if both and 0 <= graph < 1 << 30:
        return graph << _GRAPH_BITS | node
    return node


def is_node(text: str) -> bool:
    """Return whether a key of a file is the id of a graph's node: a number of 64 bits."""
    return text.isdecimal() and len(text) <= MOST_DIGITS


def side_file_of(trace: FilePath, rank: Any) -> tuple[FilePath | None, str]:
    """Return the newest side file that PyTorch wrote for a trace, and a note on those that cannot be opened."""
    pattern = SIDE_FILES.format(rank=rank if isinstance(rank, int) else 0)
    return newest_beside(trace.absolute().parent.parent, pattern)


def paths_in(side_file: FilePath) -> dict[int, Path]:
    """Read the path of each node by its id. Raises NotAReport for a file that PyTorch did not write."""
    try:
        nodes = _SIDE_FILE.decode(content_of(side_file, LARGEST_BYTES, within=side_file.parent))
    except (OSError, ValueError, RecursionError) as error:
        raise NotAReport(
            f"{side_file} is not a file of graph annotations: {error}. Move it away, or write it again."
        ) from error
    paths = {}
    for node, of_node in nodes.items():
        module = next((note.module for note in reversed(of_node) if note.module), None)
        name = next((note.name for note in reversed(of_node) if note.name), None)
        phase = next((note.phase for note in reversed(of_node) if note.phase), None)
        if is_node(node) and (path := module_path(module, name, phase)):
            paths[int(node)] = path
    return paths


def with_annotated_graphs(
    trace: Trace,
    file: FilePath,
    work: Int64s,
    node: Int64s,
    path: Int64s,
    paths: list[Path],
) -> Trace:
    """Return a trace with where PyTorch says that graphs' nodes were made: in it, or in a file beside it.

    `work` is of CUDA graphs, `node` its node, and `path` its place in `paths`, -1 where it is not annotated.
    """
    side_file, note = (None, "") if paths else side_file_of(file, trace.provenance.run.get("rank"))
    if note:
        trace = replace(trace, notes=(*trace.notes, note))
    if side_file:
        path_of_node = paths_in(side_file)
        paths = list(dict.fromkeys(path_of_node.values()))
        position = {annotated: number for number, annotated in enumerate(paths)}
        path_of_row = [path_of_node.get(number, ()) for number in node.tolist()]
        path = np.array([position.get(annotated, -1) for annotated in path_of_row], np.int64)
    if not paths:
        return trace
    is_annotated = path >= 0
    return with_captures_at(trace, work[is_annotated], path[is_annotated], paths, THREAD_NAME)


def with_captures_at(
    trace: Trace, rows: Int64s, path_of_row: Int64s, paths: Sequence[Path], thread_name: str
) -> Trace:
    """Return the trace with where the nodes of some work were made, and the ranges around that.

    `path_of_row` are positions in `paths`. The ranges are on a thread of their own, of that name, and end before
    everything else begins.
    """
    events = (trace.work.start_ns, trace.launches.start_ns, trace.ranges.start_ns)
    before_ns = min(int(start.min()) for start in events if len(start))
    order = sorted(range(len(paths)), key=paths.__getitem__)
    moment = np.empty(len(paths), np.int64)
    moment[order] = before_ns - 2 * len(paths) + 2 * np.arange(len(paths))
    of_work = np.full(len(trace.work), -1, np.int32)
    of_work[rows] = path_of_row
    names = list[str]()
    starts = list[int]()
    ends = list[int]()
    open_rows: list[int] = []
    for position in order:
        path = paths[position]
        at_ns = int(moment[position])
        open_names = (names[row] for row in open_rows)
        shared = len([*takewhile(lambda pair: pair[0] == pair[1], zip(path, open_names, strict=False))])
        added = path[shared:]
        open_rows[shared:] = range(len(names), len(names) + len(added))
        names += added
        starts += [at_ns] * len(added)
        ends += [at_ns] * len(added)
        for row in open_rows:
            ends[row] = at_ns + 1
    opened = len(names)
    thread = len(trace.threads)
    numbered = Names(trace.names)
    around = push_pop_ranges(
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        np.full(opened, thread, np.int32),
        np.array([numbered(name) for name in names], np.int32),
        domain=np.zeros(opened, np.int32),
        seq=np.full(opened, -1, np.int64),
    )
    captures = Captures(of_work, moment, np.full(len(paths), thread, np.int32))
    if (recorded := trace.captures) is not None:  # what the report itself has of other graphs
        captures = Captures(
            np.where(of_work >= 0, of_work + len(recorded.at_ns), recorded.of_work).astype(np.int32),
            np.append(recorded.at_ns, captures.at_ns),
            np.append(recorded.thread, captures.thread),
        )
    return replace(
        trace,
        ranges=sorted_ranges(Ranges.joined([trace.ranges, around])),
        names=numbered.all,
        threads=[*trace.threads, Thread(0, 0, thread_name)],
        captures=captures,
    )


def push_pop_ranges(
    start_ns: Int64s, end_ns: Int64s, thread: Int32s, name_id: Int32s, domain: Int32s, seq: Int64s
) -> Ranges:
    """Return push/pop ranges without a known category."""
    style = np.full(len(thread), PUSH_POP, np.uint8)
    no_category = np.zeros(len(thread), np.int8)
    return Ranges(
        start_ns, end_ns, thread, name_id, domain, seq, style, np.zeros(len(thread), np.bool_), no_category
    )
