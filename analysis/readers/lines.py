"""Which line of the program made each call, by the mark of a step that was traced by line, or by Python stacks."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..support.layers import Layers
from ..support.small_numbers import (
    each_row,
    grouped_rows,
    looked_up,
    positions_between,
    rows_of_each,
    sorted_by,
    summed,
)
from ..trace import Bools, Frames, Int32s, Int64s, Launches, Line, Lines, Source, Spots
from .columns import Interner
from .marks import MOST_LINES, LinesMark
from .stack_frames import FUNCTION_CALL, kind_of

#: Of a row: the thread, the moment, where the thread was, and of what it was in the backward (-1 for nothing).
COLUMNS = 4
NOWHERE = -1
_FRAME = re.compile(r"(.+)\((\d{1,9})\): (.+)", re.DOTALL)
#: Beyond any clock in nanoseconds.
FAR_NS = 1 << 62


def marked_lines(
    mark: LinesMark, at_ns: int, thread_number: Callable[[int], int | None], launches: Launches
) -> tuple[Lines | None, list[str]]:
    """Return the lines of a mark that the report has at a moment, and notes on what cannot be read.

    `thread_number` numbers the system's threads as the report does, None for those that it lacks.
    """
    try:
        thread_id, when_ns, stack, forward = _unpacked(mark.data)
        for column in (stack, forward):
            if ((column < NOWHERE) | (column >= len(mark.stacks))).any():
                raise ValueError("they name stacks that it lacks")
        lines = [Line(*frame) for frame in mark.frames]
        stacks = [tuple(map(lines.__getitem__, places)) for places in mark.stacks]
    except (ValueError, IndexError) as error:
        return None, [f"The lines of code in the report cannot be read and are left out: {error}."]
    sources: Interner[Source] = Interner()
    pairs, pair = np.unique(np.stack([stack, forward]), axis=1, return_inverse=True)
    numbers = []
    for stack_number, forward_number in pairs.T.tolist():
        source = _source(stacks, stack_number, forward_number)
        numbers.append(NOWHERE if source is None else sources(source))
    of_pair = np.array(numbers or [NOWHERE], np.int32)
    log = _Log(np.cumsum(when_ns) + at_ns, of_pair[pair.ravel()], thread_id)
    begin_ns, end_ns = (max(-FAR_NS, min(FAR_NS, moment + at_ns)) for moment in mark.span)
    span_ns = begin_ns, end_ns
    of_launch, before_launch = log.of_calls(launches, span_ns, thread_number)
    begun_ns = np.array(mark.begun, np.int64) + at_ns
    return Lines(tuple(sources), of_launch, before_launch, begun_ns, span_ns, mark.reason), []


def _unpacked(data: str) -> Int64s:
    """Return the columns of a mark's data, int64 (4, rows); raises ValueError for damaged ones."""
    unpacking = zlib.decompressobj()
    row_bytes = COLUMNS * 8
    raw = b""
    is_complete = True
    if data:
        try:
            packed = base64.b64decode(data, validate=True)
            raw = unpacking.decompress(packed, MOST_LINES * row_bytes)
        except (ValueError, zlib.error) as error:
            raise ValueError("their data is damaged") from error
        is_complete = unpacking.eof and not unpacking.unconsumed_tail
    if not is_complete or len(raw) % row_bytes:
        raise ValueError("their data is damaged")
    return np.frombuffer(raw, "<i8").reshape(COLUMNS, -1).astype(np.int64)


def _source(stacks: list[tuple[Line, ...]], stack: int, forward: int) -> Source | None:
    here = stacks[stack] if stack != NOWHERE else ()
    of_forward = stacks[forward] if forward != NOWHERE else ()
    if of_forward:
        return Source(of_forward, here[0] if here else None)
    if here:
        return Source(here)
    return None


class _Log:
    """What threads were at from which moment on."""

    def __init__(self, at_ns: Int64s, source: Int32s, thread_id: Int64s) -> None:
        self._at_ns = at_ns
        self._source = source
        self._thread_id = thread_id

    def of_calls(
        self, launches: Launches, span_ns: tuple[int, int], thread_number: Callable[[int], int | None]
    ) -> tuple[Int32s, Int32s]:
        """Return where each call in the span was made, and where the program was the longest since the one before.

        That can be of another of the threads: while autograd's works, the one that called it waits. The program is
        where the call's thread is, if that is at a line; else where the thread of the call before is.

            main      backward() ·················│ make the next batch ├ call       since the last call: main's
            autograd         ├ call ┤  ├ last call ┤

        Before the first call, the program was where it stayed longest at the step's begin or behind its last call.
        """
        of_launch, before_launch = np.full((2, len(launches)), NOWHERE, np.int32)
        begin_ns, end_ns = span_ns
        logged: dict[int, int] = {}
        for thread_id in np.unique(self._thread_id).tolist():
            number = thread_number(thread_id)
            if number is not None:
                logged[number] = thread_id
        in_span = (launches.start_ns >= begin_ns) & (launches.start_ns < end_ns)
        rows = np.flatnonzero(in_span & np.isin(launches.thread, [*logged]))
        rows = sorted_by(rows, launches.start_ns)
        if not len(rows):
            return of_launch, before_launch
        # Behind the last call, the first one follows.
        around = np.append(rows, rows[0])
        thread = launches.thread[around]
        until_ns = np.append(launches.start_ns[rows], end_ns)
        ended_ns = np.maximum.accumulate(np.append(begin_ns, launches.end_ns[rows]))
        since_ns = np.minimum(ended_ns, until_ns)
        where = np.full(len(around), NOWHERE, np.int32)
        stays_ns = np.zeros(len(around), np.int64)
        for number, thread_id in logged.items():
            of_thread = np.flatnonzero(self._thread_id == thread_id)
            at_ns = self._at_ns[of_thread]
            source = self._source[of_thread]
            calls_here = thread == number
            calls = around[calls_here]
            of_launch[calls] = _at(at_ns, source, launches.start_ns[calls])
            is_after_call_here = np.roll(thread, 1) == number
            near = np.flatnonzero(calls_here | is_after_call_here)
            longest, longest_ns = _longest(at_ns, source, since_ns[near], until_ns[near])
            has_priority = calls_here[near] | (where[near] == NOWHERE)
            is_taken = (longest != NOWHERE) & has_priority
            where[near[is_taken]] = longest[is_taken]
            stays_ns[near[is_taken]] = longest_ns[is_taken]
        if stays_ns[-1] > stays_ns[0]:
            where[0] = where[-1]
        before_launch[rows] = where[:-1]
        return of_launch, before_launch


def _at(at_ns: Int64s, source: Int32s, moments_ns: Int64s) -> Int32s:
    """Return where a thread was at each moment."""
    row = np.searchsorted(at_ns, moments_ns, "right") - 1
    return looked_up(source, row, NOWHERE)


def _longest(at_ns: Int64s, source: Int32s, since_ns: Int64s, until_ns: Int64s) -> tuple[Int32s, Int64s]:
    """Return where a thread was the longest in each interval, all its stays there together, and for how long.

    The intervals follow one another; a thread was nowhere before its first moment.
    """
    first = np.searchsorted(at_ns, since_ns, "right") - 1
    behind = np.maximum(np.searchsorted(at_ns, until_ns, "left"), first + 1)
    interval, moment = positions_between(first, behind)
    begin_ns = np.maximum(looked_up(at_ns, moment, -FAR_NS), since_ns[interval])
    end_ns = np.minimum(np.append(at_ns, FAR_NS)[moment + 1], until_ns[interval])
    (number, place), group = grouped_rows(interval, looked_up(source, moment, NOWHERE))
    stays_ns = summed(group, np.maximum(end_ns - begin_ns, 0), len(number))
    order = np.lexsort((-stays_ns, number))
    best = order[np.r_[True, np.diff(number[order]) > 0]] if len(order) else order
    return place[best].astype(np.int32), stays_ns[best]


@dataclass(frozen=True, slots=True)
class NumberedOperators:
    """Operators of a trace with stacks: their times, autograd's numbers, and which are nodes of autograd."""

    spots: Spots
    sequence: Int64s
    is_node: Bools


def stack_lines(
    frames: Frames | None, names: Sequence[str], operators: NumberedOperators, launches: Launches
) -> Lines | None:
    """Return which functions of the program made the calls of a trace with stacks; None without stacks.

    A frame has the line of its function's `def`. In a node of autograd it is that of the operator which made the
    node, unless a function of the program runs inside the node.
    """
    if frames is None:
        return None
    line_of_name = [_line_of(name) if kind_of(name, "own") == FUNCTION_CALL else None for name in names]
    is_own = np.array([line is not None for line in line_of_name] or [False])
    own_frames = frames.take(is_own[frames.name_id])
    if not len(own_frames):
        return None
    inside = _Innermost(own_frames)
    is_numbered = operators.sequence >= 0
    nodes = np.flatnonzero(operators.is_node & is_numbered)
    makers = np.flatnonzero(~operators.is_node & is_numbered)
    # Of several operators with one number, the last made the node.
    makers = sorted_by(makers, operators.spots.start_ns)
    maker_of_number = dict(each_row(operators.sequence[makers], makers))
    maker_of_node = [maker_of_number.get(number, -1) for number in operators.sequence[nodes].tolist()]
    operator_of_node = np.array([*maker_of_node, -1], np.int64)
    node_start_ns = np.append(operators.spots.start_ns[nodes], 0)
    frame_start_ns = np.append(own_frames.start_ns, 0)
    name_of_frame = np.append(own_frames.name_id, np.int32(-1))
    in_node = _Innermost(operators.spots.take(nodes))
    sources: Interner[Source] = Interner()

    def source_at(thread: Int32s, moments_ns: Int64s) -> Int32s:
        frame = inside.at(thread, moments_ns)
        node = in_node.at(thread, moments_ns)
        operator = operator_of_node[node]
        begins_before_node = frame_start_ns[frame] < node_start_ns[node]
        backward = np.flatnonzero((operator >= 0) & begins_before_node)
        made_by = operators.spots.take(operator[backward])
        forward_frame = inside.at(made_by.thread, made_by.start_ns)
        calling_frame = inside.at(made_by.thread, moments_ns[backward])
        function = name_of_frame[frame]
        calling = np.full(len(frame), -2, np.int32)
        function[backward] = name_of_frame[forward_frame]
        calling[backward] = name_of_frame[calling_frame]
        pairs, pair = np.unique(np.stack([function, calling]), axis=1, return_inverse=True)
        numbers = [_named_source(line_of_name, sources, *both) for both in pairs.T.tolist()]
        return np.array(numbers or [NOWHERE], np.int32)[pair.ravel()]

    of_launch = source_at(launches.thread, launches.start_ns)
    before_launch = source_at(launches.thread, _middle_of_pauses(launches))
    return Lines(tuple(sources), of_launch, before_launch)


def _middle_of_pauses(launches: Launches) -> Int64s:
    """Return the moment in the middle between the end of the thread's calls before and each call, ns."""
    middle_ns = launches.start_ns.copy()
    for _, rows in rows_of_each(launches.thread):
        rows = sorted_by(rows, launches.start_ns)
        ended_ns = np.maximum.accumulate(launches.end_ns[rows])[:-1]
        later = rows[1:]
        pause_ns = np.maximum(launches.start_ns[later] - ended_ns, 0)
        middle_ns[later] -= pause_ns // 2
    return middle_ns


def _named_source(lines: Sequence[Line | None], sources: Interner[Source], name: int, calling: int) -> int:
    """Return the number of the source of a function, in a backward that another one called if that is known."""
    line = lines[name] if name >= 0 else None
    if line is None:
        return NOWHERE
    called_at = lines[calling] if calling >= 0 else None
    return sources(Source((line,), called_at))


def _line_of(frame: str) -> Line | None:
    """Return the line of a frame's name, `train.py(12): main`; None for another name."""
    match = _FRAME.fullmatch(frame)
    if match:
        return Line(match[1], int(match[2]), match[3])
    return None


class _Innermost:
    """Finds the innermost of some spots at a moment on a thread."""

    def __init__(self, spots: Spots) -> None:
        self._layers = {}
        for (thread,), rows in rows_of_each(spots.thread):
            self._layers[thread] = rows, Layers(spots.start_ns[rows], spots.end_ns[rows])

    def at(self, thread: Int32s, moments_ns: Int64s) -> Int64s:
        """Return the position of the innermost spot at each moment, -1 for none."""
        innermost = np.full(len(thread), -1, np.int64)
        for (number,), rows in rows_of_each(thread):
            if number in self._layers:
                positions, layers = self._layers[number]
                innermost[rows] = looked_up(positions, layers.innermost(moments_ns[rows]), -1)
        return innermost
