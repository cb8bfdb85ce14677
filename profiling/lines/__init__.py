"""Which line of the user's code makes each call: one step, the last of warm-up, is traced by line.

    steps   0      1      2 traced         3      4   …      measured
            ├──────┼──────┼──────────────┼──────┼──────
    lines                 ╎ log of lines  ╎     ▲ the same calls, of the same lines

    waiting ──► the step begins, and nothing else traces ──► tracing ──► the step ends ──────────► done
       │                                                        └─► too long, or it compiles ─► done
       └──► refused: another tracer, switched off, the first step

The steps measured later make the same calls in the same order, so the lines of one step are those of all; finding
them is the analysis's. A program computes what it computes without: no local variable is read, no frame kept, no
random number drawn, and other threads, and processes that are forked meanwhile, are not traced.

This room imports no other room of `profiling`.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable, Collection
from contextlib import suppress
from time import time_ns
from types import FrameType

from nvtx_kernels.analysis.vocabulary.lines import REASONS

from .by_monitoring import ByMonitoring
from .by_settrace import BySettrace
from .line_log import LineLog
from .user_code import working_folder

__all__ = ["SWITCH", "StepLines"]

#: An environment variable: at 0, no lines are traced.
SWITCH = "NVTX_KERNELS_LINES"
#: A step is traced for at most this long, or for this many times what the step before it took, ns.
LONGEST_NS, LONGEST_STEPS = 500_000_000, 5
#: Frames that a tracer itself may need on top of the program's deepest ones.
HEADROOM = 50
MOST_STEPS = 100_000
WAITING, TRACING, DONE = range(3)


class StepLines:
    """Traces one step by line, and notes when each step begins.

    Nothing is traced unless it `is_wanted`; `packages` names installed packages whose code is the user's too.
    `log` is that of the step, once it was traced; `reason` says why it is missing or incomplete. Files are
    called as from `folder`.
    """

    def __init__(self, *, is_wanted: bool = True, packages: Callable[[], Collection[str]] = tuple) -> None:
        self.log: LineLog | None = None
        self.reason = ""
        self.begun = array("q")  # when each step began, ns
        self.span_ns = (0, 0)
        self.folder = ""
        self._packages = packages
        self._state = WAITING
        self._tracer: BySettrace | ByMonitoring | None = None
        self._limits: tuple[int, int] | None = None  # of recursion: before, and ours
        if not is_wanted or os.environ.get(SWITCH) == "0":
            self._refuse("off")

    @property
    def is_done(self) -> bool:
        """Whether no line will be logged any more."""
        return self._state == DONE

    def step_begins(self, *, is_last_of_warm_up: bool) -> None:
        """Note that a step begins here, and trace it if it is the one, and not the first; it raises nothing."""
        if len(self.begun) < MOST_STEPS:
            self.begun.append(time_ns())
        if self._state == WAITING and is_last_of_warm_up and len(self.begun) > 1:
            try:
                self._begin(sys._getframe(1))
            except Exception:
                self._over("failed")

    def step_ends(self) -> None:
        """Stop tracing, if a step was traced."""
        if self._state == TRACING:
            self._over("")

    def _begin(self, frame: FrameType) -> None:
        kind = ByMonitoring if hasattr(sys, "monitoring") else BySettrace
        if not kind.is_free(frame) or sys.getprofile() is not None:
            self._refuse("traced")
            return
        now_ns = time_ns()
        usual_ns = now_ns - self.begun[-2]
        self.log = LineLog(frozenset(self._packages()))
        self._tracer = kind(self.log, now_ns + max(LONGEST_NS, LONGEST_STEPS * usual_ns), self._over)
        self._state, self.span_ns, self.folder = TRACING, (now_ns, now_ns), working_folder()
        _tracing.append(self)
        limit = sys.getrecursionlimit()
        self._limits = limit, limit + HEADROOM
        sys.setrecursionlimit(limit + HEADROOM)
        self._tracer.begin(frame)

    def _over(self, reason: str) -> None:
        """End tracing, for a reason if the step goes on; it raises nothing."""
        if self._state == DONE:
            return
        self._state, self.reason = DONE, REASONS.get(reason, "")
        self.span_ns = self.span_ns[0], time_ns()
        with suppress(Exception):
            if self._tracer is not None:
                self._tracer.end()
        if self._limits is not None and sys.getrecursionlimit() == self._limits[1]:
            with suppress(RecursionError):  # the program is so deep that it stays
                sys.setrecursionlimit(self._limits[0])
        with suppress(ValueError):
            _tracing.remove(self)
        self._tracer = None
        if reason in ("compiles", "failed", "forked"):
            self.log = None

    def _refuse(self, reason: str) -> None:
        self._state, self.reason = DONE, REASONS[reason]


_tracing: list[StepLines] = []


def _forget() -> None:
    """Trace nothing in a forked child."""
    for lines in [*_tracing]:
        lines._over("forked")


os.register_at_fork(after_in_child=_forget)
