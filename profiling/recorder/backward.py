"""The backward ranges of a session, made after it of autograd's nodes that the profiler saw: none has a hook.

A node names the thread that made it and its number there, and annotation keeps which part ran from which number
on (`annotate/places.py`). Going through the nodes in the order in which they ran gives the ranges that
`annotate/regions.py` opens where hooks see them: of a part and those around it, from its first node in a row
to the node of another part, or to the end of the pass, on the thread that runs the nodes. A node begins with what
the engine does before it, as a tensor's own hooks. Leaves have no number: they are in the range open before them.

    node      a     b     c     (leaf)  d
    part      mlp   mlp   norm          None
    ranges    layer 0 [ mlp [ a  b ] norm [ c  leaf ] ]  d
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np
from nvtx_kernels.analysis.trace import Thread

from ..annotate.places import Columns, Within, part_in
from ..annotate.regions import Part
from .range_log import Event, Pass
from .seen import SEQUENCE_BITS, Blocks

#: `autograd::engine::evaluate_function: MmBackward0` encloses the node that has the sequence number.
ENGINE = "autograd::engine::"
# What the engine puts above several outputs; it has a number, and is of no part.
ROOT = "torch::autograd::GraphRoot"


class Node(NamedTuple):
    """What the engine did for a node on a thread, and who made the node; times in ns.

    `number` is -1 for a leaf, a root, and a node that the engine passed over; `block`, where the node is among the
    session's blocks, only for a leaf.
    """

    start_ns: int
    end_ns: int
    thread: int
    maker: int
    number: int
    block: int = -1


def nodes_of(texts: Sequence[str], threads: Sequence[Thread], blocks: Blocks) -> list[Node]:
    """Return the nodes among a session's blocks, but none that another calls."""
    engine_names = [place for place, text in enumerate(texts) if text.startswith(ENGINE)]
    root_names = [place for place, text in enumerate(texts) if text == ROOT]
    of_engine = np.isin(blocks.name_id, engine_names)
    is_node = (blocks.forward > 0) & ~of_engine
    rows = np.flatnonzero(of_engine | is_node)
    order = np.lexsort((is_node[rows], -blocks.end_ns[rows], blocks.start_ns[rows], blocks.thread[rows]))
    rows = rows[order]
    has_part = (blocks.sequence >= 0) & ~np.isin(blocks.name_id, root_names)
    in_thread = blocks.sequence & ((1 << SEQUENCE_BITS) - 1)
    numbers = np.where(has_part, in_thread, -1)
    columns = (
        blocks.start_ns,
        blocks.end_ns,
        blocks.thread,
        of_engine,
        blocks.forward,
        numbers,
        np.arange(len(blocks)),
    )
    nodes: list[Node] = []
    waits = False  # for the node of the engine's last event
    of_rows = (column[rows].tolist() for column in columns)
    for start_ns, end_ns, thread, is_engine, maker, number, block in zip(*of_rows, strict=True):
        tid = threads[thread].thread_id
        if is_engine:
            nodes.append(Node(start_ns, end_ns, tid, 0, -1))
        elif waits and nodes[-1].thread == tid and end_ns <= nodes[-1].end_ns:
            nodes[-1] = nodes[-1]._replace(maker=maker, number=number, block=block)
        waits = is_engine
    return nodes


class _Range(NamedTuple):
    part: Part
    start_ns: int


class _Run:
    """What a pass has open on one thread, and when its last node there ended."""

    __slots__ = ("opened", "until_ns")

    def __init__(self) -> None:
        self.opened: list[_Range] = []
        self.until_ns = 0


class BackwardRanges:
    """Makes ranges of nodes, given the passes, the ranges `recompute`, and what threads have entered.

    What a pass has open on one thread:

        its ranges ─── a node of another part ───► the path of that part, from what both share
          │   ▲
          │   └─────── the recomputation ends, if the same outer ranges are open
          ├─────────── a recomputation begins ───► the outer ranges: those that it is in
          └─────────── the pass ends ────────────► nothing
    """

    def __init__(
        self,
        passes: Iterable[Pass],
        recomputations: Iterable[Event],
        entered: Iterable[tuple[int, Columns]],
    ) -> None:
        self._passes = [*passes]
        self._recomputations = [*recomputations]
        self._columns: dict[int, list[Columns]] = {}  # by thread, the latest first
        for thread, columns in entered:
            self._columns.setdefault(thread, []).insert(0, columns)
        self._made: list[Event] = []
        self._active: list[Pass] = []
        self._runs: dict[Pass, dict[int, _Run]] = {}
        self._inside: dict[int, list[tuple[int, _Run | None]]] = {}  # by thread: the ends of nodes, and their runs
        self._interrupted: dict[Event, tuple[_Run, int, list[_Range]]] = {}

    def __bool__(self) -> bool:
        """Whether a part of a model ran that may have nodes."""
        all_columns = chain.from_iterable(self._columns.values())
        return any(parts for _, parts in all_columns)

    def of(self, nodes: Iterable[Node]) -> list[Event]:
        """Return the ranges of these nodes."""
        self._made = []
        for _, _, kind, moment in sorted(self._moments(nodes)):
            getattr(self, kind)(moment)
        for active in [*self._active]:
            self._end_pass(active)
        return self._made

    def _moments(self, nodes: Iterable[Node]) -> Iterator[tuple[int, int, str, Any]]:
        """Yield events by time: when, a number, the method for it, and what it was."""
        order = count()
        for begun in self._passes:
            yield begun.start_ns, next(order), "_begin_pass", begun
            if begun.end_ns is not None:
                yield max(begun.start_ns, begun.end_ns), next(order), "_end_pass", begun
        for node in nodes:
            yield node.start_ns, next(order), "_reach", node
        for event in self._recomputations:
            yield event.start_ns, next(order), "_interrupt", event
            if event.end_ns is not None:
                yield max(event.start_ns, event.end_ns), next(order), "_go_on", event
        for _, parts in chain.from_iterable(self._columns.values()):
            for part in parts:
                if type(part) is Within:
                    yield part.at_ns, next(order), "_resolve", part

    def _begin_pass(self, begun: Pass) -> None:
        self._active.append(begun)
        self._runs[begun] = {}

    def _end_pass(self, ended: Pass) -> None:
        self._active.remove(ended)
        for thread, run in self._runs.pop(ended).items():
            self._close(run, 0, thread, run.until_ns)

    def _reach(self, node: Node) -> None:
        """Make the ranges that a node's pass has open on its thread the path of its part."""
        of_thread = [active for active in self._active if active.thread == node.thread]
        its_pass = next(reversed(of_thread or self._active), None)
        run = None
        if its_pass is not None and not its_pass.is_hooked:
            run = self._runs[its_pass].setdefault(node.thread, _Run())
        self._run_on(node.thread, node.start_ns)  # drops those that have ended
        self._inside.setdefault(node.thread, []).append((node.end_ns, run))
        if run is None:
            return
        run.until_ns = max(run.until_ns, node.end_ns)
        if node.number < 0:
            return
        outer = self._part_of(node)
        still_open = len(run.opened)
        to_open = []
        while True:
            last = run.opened[still_open - 1].part if still_open else None
            if last is outer:
                break
            if outer is None or (last is not None and last.depth >= outer.depth):
                still_open -= 1
                continue
            if not self._is_running(outer):
                to_open.append(outer)
            outer = outer.parent
        self._close(run, still_open, node.thread, node.start_ns)
        run.opened += [_Range(part, node.start_ns) for part in reversed(to_open)]

    def _part_of(self, node: Node) -> Part | None:
        for columns in self._columns.get(node.maker, ()):
            if columns[0] and columns[0][0] <= node.number:
                part: Part | None = part_in(columns, node.number)
                return part
        return None

    def _is_running(self, part: Part) -> bool:
        """Return whether a pass that goes on was begun inside a part."""
        for active in self._active:
            running = active.running
            while running is not None:
                if running is part:
                    return True
                running = running.parent
        return False

    def _run_on(self, thread: int, at_ns: int) -> _Run | None:
        """Return the run of the node that a thread is inside."""
        inside = self._inside.get(thread, [])
        while inside and inside[-1][0] <= at_ns:
            inside.pop()
        return inside[-1][1] if inside else None

    def _interrupt(self, recomputation: Event) -> None:
        """End what a recomputation interrupts, as `annotate.regions.Recomputation` does."""
        run = self._run_on(recomputation.thread, recomputation.start_ns)
        if run is None:
            return
        labels = [opened.part.label for opened in run.opened]
        recomputed = recomputation.interrupts[0]
        innermost = next((label for label in recomputation.interrupts if label in labels), None)
        still_open = 0
        if innermost is not None:
            still_open = labels.index(innermost) + (innermost is not recomputed)
        self._interrupted[recomputation] = run, still_open, run.opened[still_open:]
        self._close(run, still_open, recomputation.thread, recomputation.start_ns)

    def _go_on(self, recomputation: Event) -> None:
        run, still_open, interrupted = self._interrupted.pop(recomputation, (None, 0, []))
        if run is not None and len(run.opened) == still_open and recomputation.end_ns is not None:
            run.opened += [ended._replace(start_ns=recomputation.end_ns) for ended in interrupted]

    def _resolve(self, within: Within) -> None:
        run = self._run_on(within.thread, within.at_ns)
        if run is not None and run.opened:
            within.part = run.opened[-1].part

    def _close(self, run: _Run, still_open: int, thread: int, at_ns: int) -> None:
        for part, start_ns in run.opened[still_open:]:  # of ranges with equal bounds, the outer one is first
            label = part.label
            end_ns = max(start_ns, at_ns)
            self._made.append(Event(start_ns, end_ns, thread, label.name, category=label.category))
        del run.opened[still_open:]
