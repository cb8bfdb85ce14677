"""What each kind of evidence gives: periods and what begins or ends them, or the reason why not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...trace import FORWARD_CATEGORIES, Bools, Int8s, Int64s
from ..places import Attribution
from ..user_ranges import of_titles
from .arrays import reach_before
from .periods import Periods
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Subject:
    """A process that does much of a report's work, whose steps are looked for: a position in Trace.processes."""

    attribution: Attribution
    process: int
    sequence: Sequence

    def phases_of(self, first: int, last: int) -> Int8s:
        """Return the phase of each piece of work between two positions of the sequence: int8 (last - first,)."""
        return self.attribution.phase[self.sequence.row[first:last]]


@dataclass(frozen=True, slots=True)
class Finding:
    """The periods of one process that are its steps, and the name of what ends or begins them."""

    periods: Periods
    name: str = ""
    every: int = 1  # of what has this name are one step
    is_call: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no finding, as the end of a sentence; empty where there is nothing to say."""

    reason: str = ""


def ranges_of(attribution: Attribution, process: int, some: Bools) -> Int64s:
    """Return the positions of some ranges of a process that are shown and in no warm-up, in order of start."""
    ranges = attribution.ranges
    home = attribution.home
    chosen = some & (home >= 0) & ~attribution.left_out()[home]
    chosen &= attribution.trace.process_of_thread()[ranges.thread] == process
    rows = np.flatnonzero(chosen)
    order = np.argsort(ranges.start_ns[rows], kind="stable")
    return rows[order]


def wholes(attribution: Attribution) -> Bools:
    """Mark the ranges that are a phase or a call of a model: what lies in one is a part of it, as layers are."""
    ranges = attribution.ranges
    opens: Bools = of_titles(attribution.facts.opens_phase, ranges)
    return opens | np.isin(ranges.category, FORWARD_CATEGORIES)


def outermost(attribution: Attribution, rows: Int64s) -> Bools:
    """Mark the ranges, in order of start, that begin after all those before have ended: bool (rows,)."""
    start_ns = attribution.ranges.start_ns[rows]
    end_ns = attribution.ranges.end_ns[rows]
    begins_new: Bools = start_ns >= reach_before(end_ns, start_ns[:1])
    return begins_new
