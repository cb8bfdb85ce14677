"""Log lines by sys.settrace: of the calling thread alone, with line events in frames of the user's code alone.

    sys.settrace ─► called ─► a library's frame: nothing more of it
                          └─► the user's frame: f_trace ─► line, line, … return

A frame is not held on to: what its local variables refer to must end when it would have ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import time_ns
from types import FrameType
from typing import Any

from .line_log import MOST_ROWS, Context, LineLog, frames_above, of_the_user
from .user_code import COMPILER, USER

Trace = Callable[[FrameType, str, Any], Any]


class BySettrace:
    """Logs lines from `begin` until `end`, or until it ends itself, and passes the reason to `over`."""

    def __init__(
        self,
        log: LineLog,
        until_ns: int,
        over: Callable[[str], None],
    ) -> None:
        self._log = log
        self._until_ns = until_ns
        self._over = over
        self._global: Trace = self._called
        self._traces: set[Trace] = set()

    @staticmethod
    def is_free(frame: FrameType) -> bool:
        """Return whether this thread has no other tracer."""
        return sys.gettrace() is None and all(outer.f_trace is None for outer in frames_above(frame))

    def begin(self, frame: FrameType) -> None:
        """Begin to log, below this frame and in it."""
        frames = of_the_user(self._log, frames_above(frame))
        for user_frame, context in zip(frames, self._log.enter(frames), strict=True):
            user_frame.f_trace = self._trace_of(context)
        self._log.note((time_ns(), self._log.current))
        sys.settrace(self._global)

    def end(self) -> None:
        """Stop; what others have set meanwhile stays. From another thread, that is at the next line."""
        self._leave()
        self._until_ns = 0

    def _stop(self, reason: str) -> None:
        """Tell that tracing is over, on the thread that is traced."""
        self._over(reason)
        self._leave()

    def _leave(self) -> None:
        """Trace the calling thread no more."""
        if sys.gettrace() is self._global:
            sys.settrace(None)
        for frame in frames_above(sys._getframe()):
            if frame.f_trace in self._traces:
                frame.f_trace = None

    def _called(self, frame: FrameType, event: str, argument: Any) -> Trace | None:  # noqa: ARG002
        try:
            kind = self._log.kind(frame.f_code)
            if kind == USER:
                return self._trace_of(self._log.context(self._log.current, frame.f_code))
            if kind == COMPILER:
                self._stop("compiles")
            elif time_ns() > self._until_ns:
                self._stop("late")
        except Exception:
            self._stop("failed")
        return None

    def _trace_of(self, context: Context) -> Trace:
        """Return the function that traces frames of a context."""
        if context.trace is not None:
            trace_of_context: Trace = context.trace
            return trace_of_context
        log = self._log
        rows = self._log.rows
        note = self._log.note
        nodes = context.nodes

        def trace(frame: FrameType, event: str, argument: Any) -> Trace | None:  # noqa: ARG001
            try:
                if event == "line":
                    line = frame.f_lineno
                    node = nodes[line] if line in nodes else context.node(line)
                elif event == "return":  # a generator goes on in another context
                    frame.f_trace = None
                    node = context.caller
                else:
                    return trace
                log.current, now = node, time_ns()
                note((now, node))
                if now > self._until_ns or len(rows) >= 2 * MOST_ROWS:
                    self._stop("late")
                    return None
            except Exception:
                self._stop("failed")
                return None
            return None if event == "return" else trace

        context.trace = trace
        self._traces.add(trace)
        return trace
