"""Room for our own frames on Python's stack: a recursive model runs as deep with annotation as without.

A call of a module has two more frames while ranges are received. Few calls in one another have room for these;
from DEEP on, Python's limit is raised by as many frames as are ours, until these calls end. So a recursion without
end is the same RecursionError.
"""

from __future__ import annotations

import sys
import threading

#: Calls of modules in one another whose frames the limit has room for; models have about ten.
DEEP = 20
#: Frames that each call of a module adds, and that we need for a moment above the innermost one.
FRAMES, SPARE = 2, 16

_lock = threading.Lock()
#: The limit as it was last set here; how many frames of it are ours, and how many of these are to be given back.
_limit = _ours = _owed = 0


def make_room(calls: int) -> int:
    """Raise Python's limit for the `calls`-th call of a module in one another; return by how many frames."""
    global _limit, _ours
    frames = FRAMES if calls > DEEP + 1 else FRAMES * calls + SPARE
    with _lock:
        _forget_if_changed()
        _ours += frames
        _limit = sys.getrecursionlimit() + frames
        sys.setrecursionlimit(_limit)
    return frames


def give_back(frames: int) -> None:
    """Lower the limit again, unless the program has set one of its own meanwhile."""
    global _limit, _ours, _owed
    with _lock:
        _forget_if_changed()
        _owed = min(_owed + frames, _ours)
        try:
            sys.setrecursionlimit(_limit - _owed)
        except RecursionError:  # that is less than where we are: a call around this one does it
            return
        _limit, _ours, _owed = _limit - _owed, _ours - _owed, 0


def _forget_if_changed() -> None:
    """Forget what was added where the program has set a limit of its own, which stays."""
    global _limit, _ours, _owed
    if sys.getrecursionlimit() != _limit:
        _limit, _ours, _owed = sys.getrecursionlimit(), 0, 0
