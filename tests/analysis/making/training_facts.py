"""Synthetic recordings of training: a list of events becomes the rows that our annotation would write of them.

F(m) forward with gradient, N(m) a call without in training mode, E(m) the same in eval mode, B(o, …) backward in
which these optimizers update, U(o) an update, X(o) one that a GradScaler skips, P a call of `p.step()`, R(o) the
replay of a graph with an update, W(…) and S(…) the program's own range `warmup` or `step` around events.
Each event but P, W and S launches a kernel, whose name says which event it is of.
"""

import json
from dataclasses import dataclass

from tests.analysis.making.building import MAIN, Launch, Range, Work, process_of

DOMAIN, MARK = 9, 34
NAMES = (
    "model/forward",
    "model/backward",
    "phase",
    "model/no gradient",
    "model/evaluation",
    "gradient",
    "timeline",
)
CATEGORIES = {name: number for number, name in enumerate(NAMES, 1)}


@dataclass(frozen=True)
class Event:
    """One thing that a program does; `of` is a model, or an optimizer."""

    kind: str
    of: str = ""
    inside: tuple = ()


def F(model="m"):
    return Event("F", model)


def N(model="m"):
    return Event("N", model)


def E(model="m"):
    return Event("E", model)


def B(*optimizers):
    return Event("B", "", optimizers)


def U(optimizer="a"):
    return Event("U", optimizer)


def R(optimizer="a"):
    return Event("R", optimizer)


def X(optimizer="a"):
    return Event("X", optimizer)


def W(*events):
    return Event("W", "warmup", events)


def S(*events):
    return Event("S", "step", events)


def flat(events):
    """Yield the events that are no ranges of the program, in order, each with the kinds of those around it."""
    for event in events:
        if event.kind in OWN:
            yield from ((inner, event.kind + around) for inner, around in flat(event.inside))
        else:
            yield event, ""


P = Event("P")
OWN = ("W", "S")
CALLS = {"F": "model/forward", "N": "model/no gradient", "E": "model/evaluation"}


class Recorded:
    """Rows of a program's events; each kernel lasts longer than the one before, so that sums tell them apart."""

    def __init__(self, main=MAIN, start=1_000):
        self.main, self.now, self.correlation = main, start, 0
        named = [Range(name, 0, None, main, DOMAIN, 33, number) for name, number in CATEGORIES.items()]
        self.ranges = [Range("nvtx-kernels", 0, None, main, DOMAIN, 75), *named]
        self.launches, self.work = [], []

    def mark(self, event, **content):
        message = "nvtx-kernels training: " + json.dumps({"event": event, **content})
        self.ranges.append(Range(message, self.now, None, self.main, DOMAIN, MARK))
        self.now += 1

    def kernel(self, name, thread=None):
        self.correlation += 1
        self.launches.append(Launch(self.correlation, self.now, self.now + 2, thread or self.main))
        lasts = 10 * self.correlation
        self.work.append(
            Work(self.correlation, self.now + 3, self.now + 3 + lasts, name, process=process_of(self.main))
        )
        self.now += 5

    def range(self, name, category, body):
        start = self.now
        self.now += 1
        body()
        self.now += 1
        self.ranges.append(Range(name, start, self.now, self.main, DOMAIN, category=CATEGORIES[category]))
        self.now += 1

    def update(self, optimizer, name):
        self.range("optimizer", "phase", lambda: self.kernel(name))
        self.mark("update", optimizer=optimizer)

    def do(self, number, event):
        if event.kind in OWN:
            start = self.now
            self.now += 1
            for inner in event.inside:
                self.do(number, inner)
                number += len([*flat([inner])])
            self.ranges.append(Range(event.of, start, self.now, self.main))
            self.now += 1
            return
        name = f"{event.kind}{number}"
        if event.kind in CALLS:
            self.range(event.of, CALLS[event.kind], lambda: self.kernel(name))
        elif event.kind == "B":
            self.range("backward", "phase", lambda: self.backward(event, name))
        elif event.kind in ("U", "X"):
            self.update(event.of, name)
        elif event.kind == "R":
            self.kernel(name)
            self.mark("update", optimizer=event.of)
        else:
            self.mark("step")
        self.now += 10

    def backward(self, event, name):
        self.kernel(name)
        for optimizer in event.inside:
            self.update(optimizer, name)

    def block(self, events, given=(), warmup=1, error=""):
        """Record a block of `nk.profile`, and return its rows."""
        self.mark("begin", optimizers=[*given], warmup=warmup)
        number = 0
        for event in events:
            self.do(number, event)
            number += len([*flat([event])])
        self.mark("end", error=error)
        return self.rows

    @property
    def rows(self):
        return {"ranges": self.ranges, "launches": self.launches, "work": self.work}
