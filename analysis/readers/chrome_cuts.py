"""Where a text of a trace's events can be cut in two: between two events, by brackets outside of strings.

Short, because only the text whose end is no event's needs it; it knows JSON's brackets, and nothing of traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..trace import Bools


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a piece of the array can end: after its last whole event, or before the bracket that closes it."""

    end: int
    is_last: bool


_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_DEPTH = np.zeros(256, np.int8)
_DEPTH[list(b"[{")], _DEPTH[list(b"]}")] = 1, -1
_MARKS = _DEPTH != 0
_MARKS[_QUOTE] = True


def cut_of(text: bytes) -> Cut:
    """Find where to cut a text that begins between two events, by brackets outside of strings."""
    data = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(_MARKS[data])
    mark = data[at]
    quote = mark == _QUOTE
    if b"\\" in text:
        quote &= ~_escaped(data)[at]
    inside_string = np.cumsum(quote) % 2 == 1
    step = np.where(inside_string, 0, _DEPTH[mark])
    depth = np.cumsum(step)
    if (closes := np.flatnonzero(depth < 0)).size:
        return Cut(int(at[closes[0]]), True)
    ends = np.flatnonzero((depth == 0) & (step < 0))
    return Cut(int(at[ends[-1]]) + 1 if ends.size else 0, False)


def _escaped(data: np.ndarray[Any, np.dtype[np.uint8]]) -> Bools:
    """Mark the characters after an odd number of backslashes."""
    escaped = np.zeros(len(data) + 1, np.bool_)
    slashes = np.flatnonzero(data == _BACKSLASH)
    first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    length = np.diff(np.append(first, len(slashes)))
    escaped[(slashes[first] + length)[length % 2 == 1]] = True
    return escaped[:-1]
