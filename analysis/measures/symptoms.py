"""What a rule of `fix_rules` answers: a symptom with the change that removes it, or why it cannot judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from ..report.account import LineTime
from ..trace import Bools, Int64s, Path
from ..vocabulary import collapsed, opens_phase
from .gpu_time import GpuTime
from .timeline import Timeline

Time = TypeVar("Time", bound=GpuTime)


class GpuChange(Protocol):
    """A change of the GPU's work, with or without a host."""

    def __call__(self, time: Time, /) -> Time:
        """Return the time after the change."""
        ...


#: A change takes a timeline and returns another; changes are applied one after another.
Change: TypeAlias = GpuChange | Callable[[Timeline], Timeline]


class HostTime(NamedTuple):
    """Some of the host's time: calls, and the pauses before others; both are positions in the host's calls."""

    calls: Int64s = np.empty(0, np.int64)
    pauses: Int64s = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Found:
    """A symptom: the change, its sentence, and the work concerned; of a rule about the host, its time, too.

    `sentence` has the cause and the remedy, `short` both in the few words of a row.
    """

    change: Change
    sentence: str
    short: str
    work: Bools
    evidence: Mapping[str, float] = field(default_factory=dict)
    #: The same with more of it, and what is then said, with {} for the figure: bf16 in place of TF32.
    more: tuple[Change, str] | None = None
    #: What the change does at the least, if how much of it will help is not known; else all of it.
    least: Change | None = None
    host: HostTime | None = None
    #: Whether the changes that were measured tell how much of its figure such a change saves.
    is_like_measured: bool = True
    #: What the run asked for that the change undoes: `full fp32`; "" if nothing.
    undoes: str = ""
    #: The part of the work that the code to change launches, whose lines and ranges are named; None for all of it.
    cause: Bools | None = None
    #: The rule whose change is the first part of this one, and has no row beside it; "" if there is none.
    begins_with: str = ""
    #: The lines of the code to change, where they do not launch the work themselves; None where they do.
    lines: tuple[LineTime, ...] | None = None

    def on_gpu(self, time: GpuTime) -> GpuTime:
        """Return the GPU's time after the change of a rule that needs no host."""
        return cast(GpuChange, self.change)(time)


@dataclass(frozen=True, slots=True)
class Concerned:
    """What a symptom is of: ranges and lines with the most of its time first, and how many pieces a step has.

    `most` is the innermost range with most of the time, as `with_most` finds it.
    `near` says which phase is before most of them, as in `code after backward`; "" if none is, or it is unknown.
    """

    where: tuple[Path, ...]
    most: Path
    lines: tuple[LineTime, ...]
    count: float
    near: str = ""


#: The share of the time from which a range has most of it.
MOST = 0.6


def with_most(ns: Mapping[Path, float], of_ns: float) -> Path:
    """Return the innermost range with most of `of_ns`; `ns` has times by path. () if none has.

    The items of a list count as one (`layers.*`), and so do ranges of forward and of backward that have one name.
    """
    for together in (True, False):
        inside_ns: defaultdict[Path, float] = defaultdict(float)
        spellings: defaultdict[Path, set[Path]] = defaultdict(set)
        for path, time_ns in ns.items():
            inner = tuple(name for name in path if not (together and opens_phase(name)))
            alike = tuple(map(collapsed, inner))
            for depth in range(1, len(inner) + 1):
                inside_ns[alike[:depth]] += time_ns
                spellings[alike[:depth]].add(inner[:depth])
        holds_most = [path for path, time_ns in inside_ns.items() if time_ns >= MOST * of_ns]
        if holds_most:
            innermost = max(holds_most, key=len)
            spelt = zip(innermost, zip(*spellings[innermost], strict=True), strict=True)
            return tuple(names[0] if len({*names}) == 1 else star for star, names in spelt)
    return ()


class Unjudged(NamedTuple):
    """Why a rule cannot judge the report, in a sentence without its end."""

    reason: str
