"""Times of many threads, or processes, in one order, so that one search answers for all of them.

```
thread 0   ├ 3 ──────── 8 ┤
thread 1        ├ 5 ───────── 9 ┤
clock      0 . . 3 . . . . 8 . 10 . . . . . 15 . . . 19      each thread's times follow those of the thread before
```
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from .errors import AGAIN, TooTangled
from .support.threads import positions
from .trace import Bools, Int32s, Int64s, Spots

#: Later than any time of a report, and earlier.
NEVER = 2**62


class Clock:
    """One clock for all threads with intervals, on which each thread's times follow those of the thread before."""

    def __init__(self, spots: Spots) -> None:
        self._first = int(spots.start_ns.min()) - 1 if len(spots) else -1
        self._last = int(spots.end_ns.max()) + 1 if len(spots) else 1
        self._threads = int(spots.thread.max(initial=-1)) + 1
        self._stride = self._last - self._first + 1
        if self._stride * (self._threads + 2) >= 2**63:
            raise TooTangled(
                f"Its ranges span {self._last - self._first} ns on {self._threads} threads: the times are "
                f"damaged. {AGAIN}"
            )

    def at(self, thread: Int32s, time_ns: Int64s) -> Int64s:
        """Return times on this clock, int64 (n,); those before or after all intervals stay outside every one."""
        within = np.clip(time_ns, self._first, self._last) - self._first
        return np.minimum(thread, self._threads).astype(np.int64) * self._stride + within


class Moments:
    """Moments of threads, in the order of thread and time: `at_ns` and `thread`."""

    def __init__(self, at_ns: Int64s, thread: Int32s) -> None:
        self._clock = Clock(Spots(at_ns, at_ns, thread))
        on_clock = self._clock.at(thread, at_ns)
        order = np.argsort(on_clock, kind="stable")
        self._at = on_clock[order]
        self.at_ns = at_ns[order]
        self.thread = thread[order]

    def begun(self, thread: Int32s, time_ns: Int64s, side: Literal["left", "right"]) -> Int64s:
        """Return how many moments, of this thread and those before it, are before each time: int64 (n,)."""
        return positions(self._at, self._clock.at(thread, time_ns), side)

    def some_within(self, spots: Spots) -> Bools:
        """Return whether a moment of its thread is in each interval, ends included: bool (n,)."""
        before = self.begun(spots.thread, spots.start_ns, "left")
        within: Bools = self.begun(spots.thread, spots.end_ns, "right") > before
        return within

    def last_until(self, thread: Int32s, time_ns: Int64s) -> Int64s:
        """Return the last moment of its thread until each time, or -NEVER: int64 (n,)."""
        row = self.begun(thread, time_ns, "right")
        is_there = np.append(-1, self.thread)[row] == thread
        return np.where(is_there, np.append(-NEVER, self.at_ns)[row], -NEVER)

    def first_from(self, thread: Int32s, time_ns: Int64s) -> Int64s:
        """Return the first moment of its thread from each time on, or NEVER: int64 (n,)."""
        row = self.begun(thread, time_ns, "left")
        is_there = np.append(self.thread, -1)[row] == thread
        return np.where(is_there, np.append(self.at_ns, NEVER)[row], NEVER)
