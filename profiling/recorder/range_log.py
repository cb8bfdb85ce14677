"""Keep the ranges and marks of a program, our own and others'.

Times are `time.time_ns`, the clock of torch.profiler's events. A thread's log says what began or ended when, in 16
bytes each; ranges are made of it after measuring. Each NVTX domain has its own stack; whatever is still open at
the end is closed then, so that every range written has both its ends.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from nvtx_kernels.analysis.vocabulary import is_step

from ..annotate import DOMAIN, range_stack
from ..annotate.others import DEFAULT_DOMAIN
from ..annotate.range_stack import Label
from ..annotate.regions import Part
from ..machine import MARK as RUN_MARK

OUR_DOMAIN_ID = 1
STEP, OPTIMIZER = "step", "optimizer"
NEVER_NS = 1 << 63
# How the category of a module's range begins; a module may have any name, `step` too.
OF_A_MODULE = "model/"
# Ranges that annotation draws, and that say nothing of the program.
PICTURES = ("timeline",)

Payload = int | float | None
_now = time.time_ns
_local = range_stack.local


class Event(NamedTuple):
    """A range, whose `end_ns` is None while it is open, or a mark; times in ns on the clock of `time.time_ns`."""

    start_ns: int
    end_ns: int | None
    thread: int
    name: str
    domain: str = DOMAIN
    category: str = ""
    interrupts: tuple[Label, ...] = ()
    is_mark: bool = False


class _Kind(NamedTuple):
    """What ranges of one kind say."""

    name: str
    domain: str
    category: str
    interrupts: tuple[Label, ...] = ()


@dataclass(slots=True, eq=False)
class Pass:
    """A run of autograd's engine, by the thread that began it while a part ran; `end_ns` is None while it goes on.

    The ranges of one that `is_hooked` are in the log.
    """

    start_ns: int
    end_ns: int | None
    thread: int
    running: Part | None
    is_hooked: bool


class _Log:
    """A thread's pairs of what (a kind, or −1 − the domain in which one ended) and when; marks; what is open."""

    __slots__ = ("marks", "note", "open", "pairs", "passes", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_native_id()
        self.pairs = array("q")
        self.note = self.pairs.extend  # of both at once, so that Ctrl-C cannot part them
        self.marks: list[tuple[int, str]] = []
        self.passes: list[Pass] = []
        self.open: dict[str, list[tuple[int, _Kind]]] = {}


class _OfThread(threading.local):
    def __init__(self, logs: list[_Log]) -> None:
        self.log = _Log()
        self.note = self.log.note
        self.dropped: Counter[str] = Counter()  # the ranges that are open and were dropped, by domain
        logs.append(self.log)


class RangeLog:
    """Listens to `annotate` and to the program's own NVTX ranges.

    Once it `is_full`, it counts what it drops, unless recording `is_over` as wanted. `on_step` is called before a
    range that is a step begins on the recording thread, `after_block` once after its outermost record_function
    block. `steps` counts the ranges `step` taken. `sees` says whether the profiler sees the calling thread.
    `says_run` is true once the program wrote a mark of how it is set.
    """

    def __init__(self, sees: Callable[[], bool] = lambda: False) -> None:
        self._sees = sees
        self.dropped = self.steps = 0
        self.is_full = False
        self.is_over = False
        self.says_run = False
        self.on_step: Callable[[], None] | None = None
        self.after_block: Callable[[], None] | None = None
        self.domains = {DEFAULT_DOMAIN: 0, DOMAIN: OUR_DOMAIN_ID}
        self._ident = threading.get_ident()
        self._logs: list[_Log] = []
        self._of_thread = _OfThread(self._logs)
        # By annotation's label, or by the attributes of a range of the program's own.
        self._numbers: dict[Any, int] = {}
        self._kinds: list[_Kind] = []
        self._steps: set[int] = set()
        # By thread and in the order of their starts: that, and the latest end until then.
        self._optimizers: dict[int, list[tuple[int, int]]] = {}

    def push(self, name: str, payload: Payload = None, domain: str = DOMAIN) -> None:  # noqa: ARG002
        """Open a range on the calling thread."""
        key: Any = _local.thread.ranges[-1].label if domain is DOMAIN else (name, domain)
        number = self._numbers.get(key)
        if number is None:
            of_label = (key.category, key.interrupts) if domain is DOMAIN else ("",)
            number = self._new_kind(key, _Kind(name, domain, *of_label))
        if number in self._steps and self.on_step is not None and threading.get_ident() == self._ident:
            self.on_step()
        if self.is_full:
            self.dropped += not self.is_over
            self._of_thread.dropped[domain] += 1
            return
        self._of_thread.note((number, _now()))

    def pop(self, domain: str = DOMAIN) -> None:
        """Close the calling thread's innermost range; one opened before recording began is unknown."""
        now = _now()
        number = OUR_DOMAIN_ID if domain is DOMAIN else self.domains.get(domain)
        if self.is_full and self._of_thread.dropped[domain]:  # it is the end of one that was dropped
            self._of_thread.dropped[domain] -= 1
        elif number is not None:
            self._of_thread.note((-1 - number, now))

    def mark(self, message: str) -> None:
        """Note a moment on the calling thread."""
        self.says_run |= message.startswith(RUN_MARK)
        if self.is_full:
            self.dropped += not self.is_over
            return
        self.note_mark(_now(), message)

    def note_mark(self, at_ns: int, message: str) -> None:
        """Note a moment that may have been earlier."""
        self._of_thread.log.marks.append((at_ns, message))

    def sees_nodes(self) -> bool:
        """Return whether the ranges of a backward need no hooks: it is seen, or wanted no more."""
        return self.is_full or self._sees()

    def pass_begins(self, running: Part | None, *, is_hooked: bool) -> Pass:
        """Note that a backward begins on the calling thread."""
        log = self._of_thread.log
        begun = Pass(_now(), None, log.thread, running, is_hooked)
        if not self.is_full:
            log.passes.append(begun)
        return begun

    def pass_ends(self, begun: Pass) -> None:
        """Note that it ends."""
        begun.end_ns = _now()

    def block_began(self, name: str) -> None:
        """Handle the start of a record_function block, which the profiler's events have."""
        if self.on_step is not None and threading.get_ident() == self._ident and _is_step(name):
            self.on_step()

    def block_ended(self, *, is_outermost: bool) -> None:
        """Handle the end of a record_function block."""
        if is_outermost and self.after_block is not None and threading.get_ident() == self._ident:
            after, self.after_block = self.after_block, None
            after()

    def _new_kind(self, key: Label | tuple[str, str], kind: _Kind) -> int:
        self.domains.setdefault(kind.domain, len(self.domains))
        self._kinds.append(kind)
        self._numbers[key] = number = len(self._kinds) - 1
        may_be_step = kind.category not in PICTURES and not kind.category.startswith(OF_A_MODULE)
        if is_step(kind.name) and may_be_step:
            self._steps.add(number)
        return number

    def tells_optimizer(self, thread: int, start_ns: int, end_ns: int) -> bool:
        """Return whether a range `optimizer` of those taken last, or still open, was open at some time."""
        spans = self._optimizers.get(thread, [])
        place = bisect_right(spans, (end_ns, NEVER_NS))
        return place > 0 and spans[place - 1][1] >= start_ns

    def take(self, close_ns: int | None = None) -> list[Event]:
        """Return the ended ranges and the marks, and drop them; with `close_ns`, end the open ranges then."""
        events: list[Event] = []
        for log in list(self._logs):
            events += self._taken(log, close_ns)
        of_training = [event for event in events if _is_of_training(event)]
        self.steps += sum(event.name == STEP for event in of_training)
        of_training += [event for event in self._still_open() if _is_of_training(event)]
        of_optimizers = [event for event in of_training if event.name == OPTIMIZER]
        of_optimizers.sort(key=lambda event: event.start_ns)
        self._optimizers = {}
        for event in of_optimizers:
            spans = self._optimizers.setdefault(event.thread, [])
            end_ns = NEVER_NS if event.end_ns is None else event.end_ns
            latest_ns = spans[-1][1] if spans else 0
            spans.append((event.start_ns, max(end_ns, latest_ns)))
        return events

    def _still_open(self) -> Iterator[Event]:
        for log in self._logs:
            for ranges in log.open.values():
                for start_ns, kind in ranges:
                    yield Event(start_ns, None, log.thread, *kind)

    def take_passes(self) -> list[Pass]:
        """Return the backwards so far, and drop those that have ended."""
        taken: list[Pass] = []
        for log in list(self._logs):
            passes = [*log.passes]
            taken += passes
            go_on = [begun for begun in passes if begun.end_ns is None]
            log.passes[:] = go_on + log.passes[len(passes) :]
        return sorted(taken, key=lambda begun: begun.start_ns)

    def _taken(self, log: _Log, close_ns: int | None) -> list[Event]:
        domains = {number: name for name, number in self.domains.items()}
        pairs = log.pairs[: len(log.pairs) // 2 * 2]
        numbers = pairs[::2]
        times = pairs[1::2]
        events = []
        for number, at_ns in zip(numbers, times, strict=True):
            if number >= 0:
                kind = self._kinds[number]
                log.open.setdefault(kind.domain, []).append((at_ns, kind))
            elif stack := log.open.get(domains[-1 - number]):
                start_ns, kind = stack.pop()
                events.append(Event(start_ns, at_ns, log.thread, *kind))
        del log.pairs[: len(pairs)]
        marks, log.marks[:] = [*log.marks], ()
        events += [Event(at_ns, None, log.thread, text, is_mark=True) for at_ns, text in marks]
        if close_ns is None:
            return events
        for stack in log.open.values():
            while stack:
                start_ns, kind = stack.pop()
                end_ns = max(start_ns, close_ns)
                events.append(Event(start_ns, end_ns, log.thread, *kind))
        return events


_is_step = lru_cache(maxsize=4096)(is_step)


def _is_of_training(event: Event) -> bool:
    return not event.is_mark and not event.category.startswith(OF_A_MODULE)
