"""Log lines by sys.monitoring, from Python 3.12 on: a library's function costs one call and then nothing more.

    PY_START ─► a library's code: disabled where it is
            └─► the user's code: LINE, PY_RETURN and PY_YIELD of it from then on

Events come of all threads; those of others are passed over. What is set is taken back: events of code, the tool,
and what was disabled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from time import time_ns
from types import CodeType, FrameType
from typing import Any

from .line_log import MOST_ROWS, Context, LineLog, frames_above, of_the_user
from .user_code import COMPILER, USER

#: How the tool is called while it runs, and the numbers that Python leaves to tools without a kind.
NAME, NUMBERS = "nvtx-kernels lines", (4, 3)
ALL_NUMBERS = range(6)
_monitoring: Any = getattr(sys, "monitoring", None)


class ByMonitoring:
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
        self._stack: list[Context] = []
        self._heard: dict[int, CodeType] = {}
        self._tool: int | None = None
        events = _monitoring.events
        self._of_code = events.LINE | events.PY_RETURN | events.PY_YIELD
        self._of_all = events.PY_START | events.PY_RESUME | events.PY_THROW | events.PY_UNWIND
        self._callbacks = {
            events.PY_START: self._started,
            events.PY_RESUME: self._started,
            events.PY_THROW: self._thrown,
            events.LINE: self._line,
            events.PY_RETURN: self._left,
            events.PY_YIELD: self._left,
            events.PY_UNWIND: self._left,
        }

    @staticmethod
    def is_free(frame: FrameType) -> bool:  # noqa: ARG004 - as of the other tracer
        """Return whether no tool monitors, and nothing traces this thread."""
        return sys.gettrace() is None and not any(map(_monitoring.get_tool, ALL_NUMBERS))

    def begin(self, frame: FrameType) -> None:
        """Begin to log, below this frame and in it."""
        self._tool = next(number for number in NUMBERS if _monitoring.get_tool(number) is None)
        _monitoring.use_tool_id(self._tool, NAME)
        for event, callback in self._callbacks.items():
            _monitoring.register_callback(self._tool, event, callback)
        self._stack = self._log.enter(of_the_user(self._log, frames_above(frame)))
        for context in self._stack:
            self._hear(context.code)
        self._log.note((time_ns(), self._log.current))
        _monitoring.set_events(self._tool, self._of_all)

    def end(self) -> None:
        """Stop, and leave no code slower than it was."""
        tool, self._tool = self._tool, None
        if tool is None or _monitoring.get_tool(tool) != NAME:
            return
        _monitoring.set_events(tool, 0)
        for code in self._heard.values():
            _monitoring.set_local_events(tool, code, 0)
        for event in self._callbacks:
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)
        _monitoring.restart_events()

    def _hear(self, code: CodeType) -> None:
        if id(code) not in self._heard:
            self._heard[id(code)] = code
            _monitoring.set_local_events(self._tool, code, self._of_code)

    def _started(self, code: CodeType, offset: int) -> Any:  # noqa: ARG002
        try:
            kind = self._log.kind(code)
            if kind == USER:
                self._enter(code)
                return None
            if kind == COMPILER and get_ident() == self._log.ident:
                self._over("compiles")
            elif time_ns() > self._until_ns:
                self._over("late")
        except Exception:
            self._over("failed")
        return _monitoring.DISABLE

    def _thrown(self, code: CodeType, offset: int, error: BaseException) -> None:  # noqa: ARG002
        try:
            if self._log.kind(code) == USER:
                self._enter(code)
        except Exception:
            self._over("failed")

    def _enter(self, code: CodeType) -> None:
        if get_ident() == self._log.ident and self._tool is not None:
            self._hear(code)
            self._stack.append(self._log.context(self._log.current, code))

    def _line(self, code: CodeType, line: int) -> None:
        log, stack = self._log, self._stack
        if get_ident() != log.ident:
            return
        try:
            if not stack or stack[-1].code is not code:  # a frame whose begin or end was not told
                self._find(sys._getframe(1))
                stack = self._stack
            nodes = stack[-1].nodes
            node = nodes[line] if line in nodes else stack[-1].node(line)
            log.current, now = node, time_ns()
            log.note((now, node))
            if now > self._until_ns or len(log.rows) >= 2 * MOST_ROWS:
                self._over("late")
        except Exception:
            self._over("failed")

    def _left(self, code: CodeType, offset: int, value: object) -> None:  # noqa: ARG002
        log, stack = self._log, self._stack
        if get_ident() == log.ident and stack and stack[-1].code is code:
            log.current = stack.pop().caller
            log.note((time_ns(), log.current))

    def _find(self, frame: FrameType) -> None:
        """Find out anew which frames run."""
        self._log.current = -1
        self._stack = self._log.enter(of_the_user(self._log, frames_above(frame)))
