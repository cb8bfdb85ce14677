"""Join what sessions saw, and the log of ranges, to one trace, in the file of a report.

This runs after measuring, or in a pause between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvtx_kernels.analysis.container import MARKS, POSITIONS
from nvtx_kernels.analysis.support.small_numbers import distinct
from nvtx_kernels.analysis.trace import CATEGORIES, NO_CATEGORY, PUSH_POP, Columns, Int64s, Ranges, Spots, Trace
from nvtx_kernels.analysis.vocabulary import without_suffixes

from ..annotate.others import OPTIMIZER_BLOCKS, original_name
from .backward import ENGINE
from .range_log import Event, RangeLog
from .seen import Seen
from .session import LAST
from .trace_file import TraceFile, writable

#: The parts of a session's trace that are joined: those before others that lead to them.
PARTS = ("launches", "work", "copies", "messages", "waits", "memory")
#: Numbers positions of a session as those of the report.
Numbering = Callable[[NDArray[Any]], NDArray[Any]]


class Joining:
    """Appends to a report what sessions and the log have; times become ns since `origin_ns`.

    Blocks of `torch.profiler.record_function` are ranges; with `operators` every operator is one too, with the
    sequence number that links backward to forward. `has_events` says whether calls recorded events.
    """

    def __init__(self, file: TraceFile, origin_ns: int, *, operators: bool = False) -> None:
        self.has_events = False
        self._file = file
        self._origin_ns = origin_ns
        self._operators = operators
        self._blocks: dict[tuple[int, int], int] = {}

    @property
    def works(self) -> int:
        """How many kernels, copies and memsets are written so far; on a CPU, how many operators."""
        return self._file.count("work")

    def add(self, seen: Seen, log: RangeLog) -> None:
        """Append a session, whose ranges were the last taken from the log."""
        part = seen.trace
        texts = [writable(original_name(text)) for text in part.names]
        thread_ids = [thread.thread_id for thread in part.threads]
        for thread in part.threads:
            self._file.name_thread(thread.thread_id, thread.name)
        first_launch = self._file.count("launches")
        first_work = self._file.count("work")
        numberings: dict[str | int, Numbering] = {
            "names": lambda positions: _numbered(positions, texts, self._file.name_number),
            "threads": lambda positions: _numbered(positions, thread_ids, self._file.thread_number),
            "processes": np.zeros_like,
            "launches": lambda positions: np.where(positions < 0, positions, positions + first_launch),
            "work": lambda positions: positions + first_work,
        }
        for name in PARTS:
            table = getattr(part, name)
            if table is not None:
                columns = self._joined(name, table, seen.base_ns - self._origin_ns, numberings)
                self._file.append(name, columns)
        if part.calls is not None:
            number = _numbered(part.calls.of_launch, part.calls.names, self._file.call_number)
            self._file.append("calls_of_launch", {"value": number.astype(np.uint16)})
        self._add_graph_nodes(part, first_work)
        self.has_events |= part.has_events
        self._add_blocks(seen, texts, numberings["threads"], log)

    def _add_graph_nodes(self, part: Trace, first_work: int) -> None:
        """Append the graph's node of each piece of work, once a session has any; -1 for those before."""
        written = self._file.count("graph_node")
        if part.graph_node is None and not written:
            return
        before = np.full(first_work - written, -1, np.int64)
        nodes = np.full(len(part.work), -1, np.int64) if part.graph_node is None else part.graph_node
        self._file.append("graph_node", {"value": np.concatenate([before, nodes])})

    def _joined(
        self, name: str, table: Columns, shift_ns: int, numberings: dict[str | int, Numbering]
    ) -> dict[str, NDArray[Any]]:
        """Return a session's table as a part of the report's, with its times and positions."""
        leads_to = POSITIONS.get(name, {})
        columns = {}
        for column, values in table.columns().items():
            numbering = numberings.get(leads_to.get(column, ""))
            if column.endswith("_ns"):
                columns[column] = values + shift_ns
            elif numbering is not None:
                columns[column] = numbering(values).astype(values.dtype)
            else:
                columns[column] = values
        if name == "memory":  # addresses, which say how a process is laid out, become numbers
            places = zip(columns["device_id"].tolist(), columns["block"].tolist(), strict=True)
            numbers = [self._blocks.setdefault(place, len(self._blocks)) for place in places]
            columns["block"] = np.array(numbers, np.int64)
        return columns

    def _add_blocks(self, seen: Seen, texts: Sequence[str], threads: Numbering, log: RangeLog) -> None:
        """Append blocks, but none that only repeats a range `optimizer` of ours, and operators if asked for."""
        blocks = seen.blocks
        is_last = np.isin(blocks.name_id, _begins(texts, LAST))
        is_range = (~blocks.is_operator | self._operators) & ~is_last
        is_optimizer = np.isin(blocks.name_id, _begins(texts, OPTIMIZER_BLOCKS)) & ~blocks.is_operator
        for row in np.flatnonzero(is_optimizer):
            thread_id = seen.trace.threads[int(blocks.thread[row])].thread_id
            start_ns = int(blocks.start_ns[row])
            end_ns = int(blocks.end_ns[row])
            is_range[row] &= not log.tells_optimizer(thread_id, start_ns, end_ns)
        blocks = blocks.take(np.flatnonzero(is_range))
        bare = [without_suffixes(text) for text in texts]
        sequence_of_name = np.array([*(sequence for _, sequence in bare), -1], np.int64)[blocks.name_id]
        is_engine = np.isin(blocks.name_id, _begins(texts, ENGINE))
        sequence = np.where(is_engine, -1, blocks.sequence)
        self._add_ranges(
            blocks.start_ns,
            blocks.end_ns,
            thread=threads(blocks.thread),
            name_id=_numbered(blocks.name_id, [name for name, _ in bare], self._file.name_number),
            domain=np.full(len(blocks), self._file.domain_number(0, "") if len(blocks) else 0),
            seq=np.where(sequence_of_name >= 0, sequence_of_name, sequence),
            category=np.full(len(blocks), NO_CATEGORY),
        )

    def add_events(self, events: Iterable[Event], log: RangeLog) -> None:
        """Append the ranges and marks of a log."""
        file = self._file
        marks: list[Event] = []
        ranges: list[Event] = []
        for event in events:
            (marks if event.end_ns is None else ranges).append(event)
        file.append(
            MARKS,
            {
                "at_ns": np.array([event.start_ns - self._origin_ns for event in marks], np.int64),
                "thread": np.array([file.thread_number(event.thread) for event in marks], np.int32),
                "text": [writable(event.name) for event in marks],
            },
        )
        bare = {name: without_suffixes(writable(name)) for name in {event.name for event in ranges}}
        names = [bare[event.name] for event in ranges]
        self._add_ranges(
            np.array([event.start_ns for event in ranges], np.int64),
            np.array([event.end_ns for event in ranges], np.int64),
            thread=np.array([file.thread_number(event.thread) for event in ranges], np.int32),
            name_id=np.array([file.name_number(name) for name, _ in names], np.int32),
            domain=np.array([file.domain_number(log.domains[event.domain], event.domain) for event in ranges]),
            seq=np.array([sequence for _, sequence in names], np.int64),
            category=np.array([CATEGORIES.get(event.category, NO_CATEGORY) for event in ranges]),
        )

    def _add_ranges(
        self,
        start_ns: Int64s,
        end_ns: Int64s,
        *,
        thread: NDArray[Any],
        name_id: NDArray[Any],
        domain: NDArray[Any],
        seq: Int64s,
        category: NDArray[Any],
    ) -> None:
        ranges = Ranges(
            start_ns - self._origin_ns,
            end_ns - self._origin_ns,
            thread.astype(np.int32),
            name_id.astype(np.int32),
            domain.astype(np.int32),
            seq,
            style=np.full(len(start_ns), PUSH_POP, np.uint8),
            open_ended=np.zeros(len(start_ns), np.bool_),
            category=category.astype(np.int8),
        )
        self._file.append("ranges", ranges.columns())

    def add_pause(self, start_ns: int, end_ns: int, thread_id: int) -> None:
        """Append that the recorder kept a thread waiting."""
        start = np.array([start_ns - self._origin_ns])
        end = np.array([end_ns - self._origin_ns])
        thread = np.array([self._file.thread_number(thread_id)], np.int32)
        self._file.append("pauses", Spots(start, end, thread).columns())


def _numbered(positions: NDArray[Any], values: Sequence[Any], number_of: Callable[[Any], int]) -> Int64s:
    """Return positions in `values` as the report numbers these; those that do not occur get no number."""
    numbers: Int64s = np.zeros(len(values) + 1, np.int64)
    for position in distinct(positions).tolist():
        numbers[position] = number_of(values[position])
    numbered: Int64s = numbers[positions]
    return numbered


def _begins(names: Sequence[str], beginnings: str | tuple[str, ...]) -> list[int]:
    return [number for number, name in enumerate(names) if name.startswith(beginnings)]


def spans_of(events: Iterable[Event]) -> Spots:
    """Return the ranges among some events, which have ended; their threads are the system's ids."""
    rows = [(event.start_ns, event.end_ns, event.thread) for event in events if event.end_ns is not None]
    return Spots(*np.array(rows, np.int64).reshape(-1, 3).T)
