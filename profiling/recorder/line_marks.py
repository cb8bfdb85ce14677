"""The mark of a step's lines in a report.

One mark in our domain, `MARK` followed by a JSON object:

    nvtx-kernels lines: {"version": 1, "frames": [["train.py", 65, "forward"], ["train.py", 20, "train"]],
                         "stacks": [[1], [0, 1]], "begun": [-91000000, …], "span": [-52000000, -31000000],
                         "data": "eJx…"}

`stacks` are positions in `frames`, innermost first. `data` is base64 of zlib of little-endian int64: the columns
of `COLUMNS`, one after the other, the times as differences. A row says that from `at_ns` on a thread was at
`stack`; if `forward` is not -1, it was in the backward of an operator that was called at that stack. `begun` are
the moments at which steps began, `span` that of the traced one; all times count from the mark's own. `reason` says
why there are no lines, or not of the whole step.

Threads of autograd run no Python. Their rows are made of autograd's nodes, which the profiler saw: a node has the
number of the operator that made it, and the thread that called backward is at that call meanwhile.

    main thread   12: loss = model(x)   13: loss.backward() ─────────────
    autograd                            │ node of :31 │ node of :30 │
"""

from __future__ import annotations

import base64
import sys
import threading
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from nvtx_kernels.analysis.trace import Int64s
from nvtx_kernels.analysis.vocabulary.lines import REASONS

from ..harmless import Ignoring, json_text
from ..lines import StepLines
from ..lines.line_log import MOST_ROWS, NOWHERE, Line, LineLog
from .backward import nodes_of
from .range_log import Event
from .seen import SEQUENCE_BITS, Seen

MARK = "nvtx-kernels lines: "
VERSION = 1
COLUMNS = ("thread", "at_ns", "stack", "forward")
_INSTALLED = ("site-packages", "dist-packages")
# What happens on a thread, in the order in which it does at one moment.
_ENDS, _BEGINS, _MOVES = range(3)
#: Of a file that is neither below the working folder nor installed: this many parts of its path are kept.
LAST_PARTS = 2


class Row(NamedTuple):
    """From a moment on, a thread is at a stack; in the backward of what was called at `forward`, if not -1."""

    thread: int
    at_ns: int
    stack: int
    forward: int


class _Node(NamedTuple):
    """What autograd did for a node on a thread, and at which stack its operator was called; -1 if unknown."""

    thread: int
    start_ns: int
    end_ns: int
    forward: int


def saw(seen: Seen, lines: StepLines) -> bool:
    """Return whether a session saw anything of the traced step."""
    calls_in_step = _in_step(seen.trace.launches.start_ns + seen.base_ns, lines)
    blocks_in_step = _in_step(seen.blocks.start_ns, lines)
    return bool(calls_in_step.any() or blocks_in_step.any())


def _in_step(start_ns: Int64s, lines: StepLines) -> NDArray[np.bool_]:
    """Mark what began in the traced step."""
    first_ns, last_ns = lines.span_ns
    return (start_ns >= first_ns) & (start_ns < last_ns)


def mark_of(lines: StepLines, seen: Seen | None) -> list[Event]:
    """Return the mark of the traced step, given the session that saw it; none where there is nothing to tell.

    A report can do without: what goes wrong here is a reason why there are no lines.
    """
    if lines.log is None and not lines.reason:
        return []
    at_ns = time.time_ns()
    try:
        text = text_of(lines, seen, at_ns)
    except Exception:
        facts = {"version": VERSION, "reason": REASONS["unwritten"]}
        text = MARK + json_text(facts)
    thread = threading.get_native_id()
    return [Event(at_ns, None, thread, text, is_mark=True)]


def text_of(lines: StepLines, seen: Seen | None, at_ns: int) -> str:
    """Return the mark of lines that were traced, sent at a moment, given the session that saw the step."""
    facts: dict[str, object] = {"version": VERSION}
    if lines.reason:
        facts["reason"] = lines.reason
    if lines.log is not None:
        stacks = _Stacks(lines.log)
        rows = [*_rows(lines, stacks, seen)][:MOST_ROWS]
        facts["frames"] = stacks.frames(lines.folder)
        facts["stacks"] = stacks.positions()
        facts["begun"] = [begun - at_ns for begun in lines.begun]
        facts["span"] = [moment - at_ns for moment in lines.span_ns]
        facts["data"] = _data_of(rows, at_ns)
    return MARK + json_text(facts)


def _data_of(rows: Sequence[Row], at_ns: int) -> str:
    """Return the columns of rows as text, in a mark sent at a moment."""
    no_rows = np.empty((0, len(COLUMNS)))
    table = np.array(rows or no_rows, np.int64).T.copy()
    times = table[1]
    table[1] = np.diff(times, prepend=at_ns)
    compressed = zlib.compress(table.astype("<i8").tobytes())
    return base64.b64encode(compressed).decode()


class _Stacks:
    """The stacks of a log, one a node and an empty one, and their lines."""

    def __init__(self, log: LineLog) -> None:
        self._stacks = [*log.stacks, ()]

    def of(self, node: int) -> int:
        """Return the stack of a node."""
        return node if node != NOWHERE else len(self._stacks) - 1

    def _lines(self) -> dict[Line, int]:
        lines = dict.fromkeys(chain.from_iterable(self._stacks))
        return {line: place for place, line in enumerate(lines)}

    def frames(self, folder: str) -> list[tuple[str, int, str]]:
        """Return the lines, with files as they are called from a folder."""
        lines = self._lines()
        cells = _cells()
        names = {line.file: cells.get(line.file) or short_name(line.file, folder) for line in lines}
        return [(names[line.file], line.line, line.function) for line in lines]

    def positions(self) -> list[list[int]]:
        """Return each stack as positions of its lines."""
        place = self._lines()
        return [[*map(place.__getitem__, stack)] for stack in self._stacks]


def _rows(lines: StepLines, stacks: _Stacks, seen: Seen | None) -> Iterator[Row]:
    """Yield the rows of each thread, in the order of time."""
    log = lines.log
    assert log is not None
    times = log.rows[::2].tolist()
    nodes = log.rows[1::2].tolist()
    logged = []
    for at_ns, place in zip(times, nodes, strict=False):
        row = Row(log.thread, at_ns, stacks.of(place), -1)
        logged.append(row)
    by_thread: dict[int, list[_Node]] = {log.thread: []}
    backward = _backward(lines, logged, seen) if seen is not None else ()
    for node in backward:
        by_thread.setdefault(node.thread, []).append(node)
    for thread, of_thread in by_thread.items():
        yield from _merged(thread, logged, of_thread, is_main=thread == log.thread)


def _merged(
    thread: int,
    logged: Sequence[Row],
    nodes: Sequence[_Node],
    *,
    is_main: bool,
) -> Iterator[Row]:
    """Yield the rows of a thread: what the main one logged, and in which node of autograd it was meanwhile.

    Python that runs in a node of the main thread, as in a function of the user's, is at its own line.
    """
    events: list[tuple[int, int, _Node | Row]] = []
    events += [(node.start_ns, _BEGINS, node) for node in nodes]
    events += [(node.end_ns, _ENDS, node) for node in nodes]
    events += [(row.at_ns, _MOVES, row) for row in logged]
    events.sort(key=lambda event: event[:2])
    stack = -1
    running: list[tuple[_Node, int]] = []  # each with the stack at which it began
    for at_ns, kind, event in events:
        if isinstance(event, Row):
            stack = event.stack
            if not is_main:
                continue
        elif kind == _BEGINS:
            running.append((event, stack))
        else:
            running = [(node, begun_at) for node, begun_at in running if node is not event]
        forward = -1
        if running:
            innermost, begun_at = running[-1]
            forward = innermost.forward if begun_at == stack else -1
        yield Row(thread, at_ns, stack, forward)


def _backward(lines: StepLines, logged: Sequence[Row], seen: Seen) -> Iterator[_Node]:
    """Yield the autograd nodes that the session saw in the step, with the stack of each node's operator.

    Of several operators with a node's number on the traced thread, the last one made it. A leaf follows the node
    that computed its gradient, and has its line.
    """
    blocks = seen.blocks
    log = lines.log
    assert log is not None
    tids = np.array([thread.thread_id for thread in seen.trace.threads] or [0], np.int64)
    in_step = _in_step(blocks.start_ns, lines)
    in_thread = blocks.sequence & ((1 << SEQUENCE_BITS) - 1)
    on_thread = tids[blocks.thread] == log.thread
    makers = np.flatnonzero(in_step & (blocks.forward == 0) & (blocks.sequence >= 0) & on_thread)
    makers = makers[np.argsort(blocks.start_ns[makers], kind="stable")]
    times = [row.at_ns for row in logged]
    called_at: dict[int, int] = {}
    for maker in makers.tolist():
        place = bisect_right(times, int(blocks.start_ns[maker])) - 1
        if place >= 0:
            called_at[int(in_thread[maker])] = logged[place].stack
    # Without flows, nodes do not tell whose numbers they have: 0.
    counted_in = (blocks.sequence >> SEQUENCE_BITS) - 1
    is_counted = np.isin(counted_in, (log.thread, 0))
    first_ns, last_ns = lines.span_ns
    last_of: dict[int, int] = {}  # by thread
    for node in nodes_of(seen.trace.names, seen.trace.threads, blocks):
        if not first_ns <= node.start_ns < last_ns:
            continue
        if node.block >= 0 and is_counted[node.block]:
            last_of[node.thread] = called_at.get(node.number, -1)
        yield _Node(node.thread, node.start_ns, node.end_ns, last_of.get(node.thread, -1))


def short_name(file: str, folder: str) -> str:
    """Return how a file is called from a folder: no more of the machine's paths than tells it from others.

    >>> short_name("/home/me/project/models/net.py", "/home/me/project")
    'models/net.py'
    >>> short_name("/opt/lib/python3.12/site-packages/timm/layers/mlp.py", "/home/me")
    'timm/layers/mlp.py'
    """
    path = file.replace("\\", "/")
    here = folder.replace("\\", "/").rstrip("/") + "/"
    parts = path.split("/")
    for name in _INSTALLED:
        if name in parts:
            after = len(parts) - parts[::-1].index(name)
            return "/".join(parts[after:])
    if path.startswith(here):
        return path.removeprefix(here)
    is_absolute = parts[0] in ("", *_DRIVES)
    return "/".join(parts[-LAST_PARTS:]) if is_absolute else path.removeprefix("./")


_DRIVES = tuple(f"{letter}:" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _cells() -> dict[str, str]:
    """Return notebooks' names for the files of their cells, by those of code objects."""
    with Ignoring():
        shell = sys.modules["IPython"].get_ipython()
        numbers = shell.compile._filename_map
        return {file: f"cell {number}" for file, number in numbers.items()}
    return {}
