"""Which line of the user's code a thread reached when, with the lines that called it.

    time       100    130        180        200
    node         0      2          3          1
    stack   train:5  model:31  model:32  train:6         node 2 is line 31 of model.py, called from node 0
                     train:5   train:5

A *node* is a line with the few that called it; a *context* is a function as it was called from one node, and
numbers the nodes of its lines. Both are made once, so noting a line takes a look into a dictionary and 16 bytes.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .user_code import USER, kind_of

#: No line of the user's code is running.
NOWHERE = -1
#: So many frames of a stack are kept, from the inside.
MOST_FRAMES = 6
#: Comprehensions, which are functions of their own until Python 3.11.
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
#: Rows of a log; what comes later is not noted.
MOST_ROWS = 200_000


class Line(NamedTuple):
    """A line of a program."""

    file: str
    line: int
    function: str


def function_of(code: CodeType) -> str:
    """Return the name of a function; of a comprehension, that of the function around it."""
    if code.co_name not in COMPREHENSIONS:
        return code.co_name
    around = [name for name in code.co_qualname.split(".") if name not in (*COMPREHENSIONS, "<locals>")]
    return around[-1] if around else "<module>"


class Context:
    """A function as it is called from a node; `trace` is a tracer's, for frames of it."""

    __slots__ = ("_log", "caller", "code", "nodes", "trace")

    def __init__(self, log: LineLog, caller: int, code: CodeType) -> None:
        self._log = log
        self.caller = caller
        self.code = code
        self.nodes: dict[int | None, int] = {}
        self.trace: Any = None

    def node(self, line: int | None) -> int:
        """Return the node of a line; that of the caller for code without a line."""
        node = self.nodes.get(line)
        if node is None:
            node = self._log.new_node(self.caller, self.code, line) if line else self.caller
            self.nodes[line] = node
        return node


class LineLog:
    """The log of one thread. `current` is the node that runs, `context` what a function is where it is called."""

    def __init__(self, packages: Collection[str] = ()) -> None:
        self.thread = threading.get_native_id()
        self.ident = threading.get_ident()
        self.current = NOWHERE
        self.stacks: list[tuple[Line, ...]] = []  # of each node, innermost first
        self.rows = array("q")  # pairs of a time and a node
        self.note: Callable[[tuple[int, int]], None] = self.rows.extend
        self._packages = packages
        self._kinds: dict[str, int] = {}
        self._stacks: dict[tuple[Line, ...], int] = {}
        # By the id of a code object, which its context keeps alive: comparing code objects compares their code.
        self._contexts: dict[tuple[int, int], Context] = {}

    def kind(self, code: CodeType) -> int:
        """Return whose code this is, one of `user_code`."""
        name = code.co_filename
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = kind_of(name, self._packages)
        return kind

    def context(self, caller: int, code: CodeType) -> Context:
        """Return the context of a function that is called from a node."""
        key = (caller, id(code))
        context = self._contexts.get(key)
        if context is None:
            context = self._contexts[key] = Context(self, caller, code)
        return context

    @property
    def codes(self) -> list[CodeType]:
        """The functions that were called."""
        return [context.code for context in self._contexts.values()]

    def new_node(self, caller: int, code: CodeType, line: int) -> int:
        """Return the node of a line that a node calls: that of the same lines, however deep a recursion is."""
        callers = self.stacks[caller][: MOST_FRAMES - 1] if caller != NOWHERE else ()
        stack = (Line(code.co_filename, line, function_of(code)), *callers)
        node = self._stacks.setdefault(stack, len(self.stacks))
        if node == len(self.stacks):
            self.stacks.append(stack)
        return node

    def enter(self, frames: list[FrameType]) -> list[Context]:
        """Make the innermost line of frames that run, outermost first, the current one; return their contexts."""
        contexts = []
        for frame in frames:
            context = self.context(self.current, frame.f_code)
            self.current = context.node(frame.f_lineno)
            contexts.append(context)
        return contexts


def frames_above(frame: FrameType | None) -> list[FrameType]:
    """Return a frame and those that called it, outermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def of_the_user(log: LineLog, frames: list[FrameType]) -> list[FrameType]:
    """Return the frames of the user's code."""
    return [frame for frame in frames if log.kind(frame.f_code) == USER]
