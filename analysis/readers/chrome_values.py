"""The values of a trace's events, which writers spell in several ways, as whole numbers and columns of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from ..trace import Int64s
from .chrome_events import Args, Event, nanoseconds
from .columns import Interner

# A process or thread as the trace numbers it; GPUs count as processes there, and streams as threads.
Id = int | str
Place = tuple[Id, Id]

# The largest number that is taken for an id.
LARGEST = (1 << 62) - 1
#: More than any collective carries: a count beyond it is damaged.
MOST_ELEMENTS = 1 << 48

_NUMBER = re.compile(r"-?\d{1,18}")
_SIZES = msgspec.json.Decoder(tuple[int, int, int])
_UNKNOWN_SIZES = (0, 0, 0)


def times_of(events: list[Event]) -> dict[str, Int64s]:
    """Return when some events start and end, ns."""
    start = nanoseconds([event.ts for event in events])
    duration = nanoseconds([event.dur for event in events])
    return {"start": start, "end": start + duration}


def numbered(values: Sequence[Any], number: Callable[[Any], int]) -> Int64s:
    """Return the number of each value, made once of each distinct one."""
    numbers = {value: number(value) for value in dict.fromkeys(values)}
    return np.fromiter(map(numbers.__getitem__, values), np.int64, len(values))


def places_of(events: list[Event], number: Interner[Place]) -> Int64s:
    """Return the number of each event's process and thread."""
    written = [(event.pid, event.tid) for event in events]
    return numbered(written, lambda place: number((id_of(place[0]), id_of(place[1]))))


def first_known(value: Any, other: Any) -> Any:
    """Return a value, or another one where it is missing."""
    if value is None:
        return other
    return value


def external_ids(events: list[Event]) -> Int64s:
    """Return the profiler's own numbers of some events, -1 where unknown."""
    return integers([first_known(event.args.external, event.args.old_external) for event in events], -1)


def stream_of(event: Event) -> Any:
    """Return the stream of a piece of work; PyTorch 1.8 had only `stream 7` as its thread."""
    track = event.tid.removeprefix("stream ") if isinstance(event.tid, str) else event.tid
    return first_known(event.args.original_stream, first_known(event.args.stream, track))


def element_count(value: Any) -> int:
    """Return a count of elements, -1 where it is unknown or damaged."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)  # PyTorch's own annotation of CUDA graphs writes all arguments as text
    if not isinstance(value, int) or isinstance(value, bool):
        return -1
    if 0 <= value < MOST_ELEMENTS:
        return value
    return -1


def bytes_of(elements: Any, element_bytes: int) -> int:
    """Return the size of some elements, -1 where their count or type is unknown."""
    count = element_count(elements)
    if not element_bytes or count < 0:
        return -1
    return count * element_bytes


def three_sizes(text: bytes) -> tuple[int, int, int]:
    """Return the sizes of a grid or block as written, `[32, 1, 2]`; zeros where unknown."""
    try:
        sizes = _SIZES.decode(text)
    except msgspec.DecodeError:
        return _UNKNOWN_SIZES
    if max(map(abs, sizes)) <= LARGEST:
        return sizes
    return _UNKNOWN_SIZES


def block_count(grid: bytes) -> int:
    """Return how many blocks a grid has; 0 where unknown."""
    x, y, z = three_sizes(grid)
    return min(max(0, x * y * z), 2**31 - 1)


def id_of(value: Any) -> Id:
    """Return a process or thread id; one that is written as a string of digits is a number."""
    number = whole_number(value)
    if number is None:
        return str(value)
    return number


def whole_number(value: Any) -> int | None:
    """Return an integer that may be written as a string of digits or as a float; None for anything else."""
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return int(value)
        return None
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if is_whole and abs(value) <= LARGEST:
        return int(value)
    return None


def numbers_of(rows: Sequence[Args] | Sequence[Event], name: str, missing: int) -> Int64s:
    """Return one attribute of each row as whole numbers."""
    return integers(list(map(attrgetter(name), rows)), missing)


def integers(values: list[Any], missing: int) -> Int64s:
    """Return whole numbers, and another number for what is none."""
    present = [missing if value is None else value for value in values]
    try:
        array = np.array(present)
    except (ValueError, OverflowError):  # lists among them, or a number beyond any
        array = np.empty(0)
    if array.dtype == np.int64 and (np.abs(array) <= LARGEST).all():
        return array
    numbers = (whole_number(value) for value in present)
    return np.fromiter((missing if value is None else value for value in numbers), np.int64, len(present))
