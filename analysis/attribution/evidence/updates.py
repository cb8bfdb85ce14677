"""Steps that end with updates of an optimizer: by the ranges around them, else by the optimizer's kernels.

forward backward  update | forward backward  update | …      every one, or every 2nd of a GAN's two optimizers

forward backward  A | forward backward  A B | …              every A: B is there beside an A, and tells nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...support.small_numbers import ordered, positions_between, rows_of_each
from ...trace import Int64s
from ...vocabulary import OPTIMIZER, PHASES, without_numbers
from ..places import Attribution
from ..user_ranges import of_titles
from .arrays import middle
from .finding import Finding, Refused, Subject, outermost, ranges_of
from .periods import Periods, periods_at
from .sequence import Sequence

#: Between updates steps may differ more than where repetition alone tells them, and so may what surrounds them.
LIKE_OF_UPDATES = 0.5
INSIDE = 0.4
#: Of two steps there is one comparison: its least similarity.
SAME_OF_TWO = 0.9
#: The most updates of a step: a GAN has 2, or 1 of the generator for several of the discriminator.
MOST_UPDATES = 4
#: The first step may lack this share of its kernels: it began before the recording.
LACKS = 0.15
#: Bursts of an optimizer's kernels are apart by this many kernels, or a multiple, up to this share of all.
LEAST_APART = 8
FACTOR = 4
MOST_APART = 0.3

DIFFER = "the work between its {} updates differs"
ONE_UPDATE = "it has one update"


@dataclass(frozen=True, slots=True)
class _Updates:
    """Updates of one name, or of all: positions in the sequence behind each."""

    behind: Int64s
    name: str
    sequence: Sequence
    is_named: bool


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Steps that end with every n-th of some updates."""

    updates: _Updates
    every: int
    periods: Periods

    @property
    def score(self) -> tuple[bool, float, int, int, float]:
        """Names come before kernels, then similar steps, few updates a step, and many steps."""
        periods = self.periods
        return self.updates.is_named, _alike(periods), -self.every, len(periods), periods.explained


def by_updates(subject: Subject) -> Finding | Refused:
    """Return the steps that end with each update, or with every second to fourth."""
    candidates: list[_Candidate] = []
    reason = ""
    for updates in (*_by_ranges(subject), *_by_kernels(subject.sequence)):
        some = list(_candidates(updates))
        if not some and updates.is_named and len(updates.behind) > 1:
            reason = DIFFER.format(len(updates.behind))
        candidates += some
    if not candidates:
        return Refused(reason)
    best = max(candidates, key=lambda candidate: candidate.score)
    if len(best.periods) == 2 and best.periods.same < SAME_OF_TWO:
        return Refused(ONE_UPDATE)
    return Finding(best.periods, best.updates.name, best.every)


def update_ranges(attribution: Attribution, process: int) -> Int64s:
    """Return the outermost ranges that open the phase optimizer, in order."""
    facts = attribution.facts
    opens = facts.opens_phase & (facts.phase == PHASES.index(OPTIMIZER))
    rows = ranges_of(attribution, process, of_titles(opens, attribution.ranges))
    return rows[outermost(attribution, rows)]


def updates_every(attribution: Attribution, steps: Int64s) -> int:
    """Return n if just every n-th of a program's named steps has an update in it, up to the last; 0 if not."""
    ranges = attribution.ranges
    process = attribution.trace.process_of_thread()[ranges.thread[steps]]
    steps = steps[process == process[0]]
    updates = update_ranges(attribution, int(process[0]))
    ended_ns = np.sort(ranges.end_ns[updates])
    edges_ns = np.append(ranges.start_ns[steps], ranges.end_ns[steps[-1]])
    count = np.diff(np.searchsorted(ended_ns, edges_ns))
    updated = np.flatnonzero(count)
    if len(updated) < 2 or updated[-1] != len(steps) - 1:
        return 0
    distances = np.diff(updated)
    every = int(distances[0])
    is_rhythm = every > updated[0] and (distances == every).all()
    if is_rhythm and every > 1:
        return every
    return 0


def _by_ranges(subject: Subject) -> Iterator[_Updates]:
    """Yield the updates of each name, then those of all names together."""
    attribution = subject.attribution
    sequence = subject.sequence
    rows = update_ranges(attribution, subject.process)
    if not (len(rows) and sequence.on_host):
        return
    ranges = attribution.ranges
    first = np.searchsorted(sequence.start_ns, ranges.start_ns[rows])
    behind = np.searchsorted(sequence.start_ns, ranges.end_ns[rows])
    burst = np.cumsum(np.r_[False, first[1:] - behind[:-1] > LEAST_APART])
    by_title: dict[str, list[Int64s]] = {}
    for (name_id,), some in rows_of_each(ranges.name_id[rows]):
        title = without_numbers(attribution.trace.names[name_id])
        by_title.setdefault(title, []).append(some)
    of_title = {title: np.concatenate(parts) for title, parts in by_title.items()}
    bursts = {title: set(burst[some].tolist()) for title, some in of_title.items()}
    beside = [title for title in bursts if any(bursts[title] < others for others in bursts.values())]
    for title in beside:  # an update that has others beside it in each burst tells nothing, and weighs nothing
        some = of_title.pop(title)
        sequence = _without(sequence, first[some], behind[some])
    for title, some in of_title.items():
        yield _Updates(_after_work(behind[some]), title, sequence, is_named=True)
    if len(of_title) > 1:
        yield _Updates(_after_work(behind), "", sequence, is_named=True)


def _without(sequence: Sequence, first: Int64s, behind: Int64s) -> Sequence:
    """Return a sequence in which what lies between some positions weighs nothing."""
    weight = sequence.weight.copy()
    _, inside = positions_between(first, behind)
    weight[inside] = 0
    return replace(sequence, weight=weight)


def _by_kernels(sequence: Sequence) -> Iterator[_Updates]:
    """Yield the bursts of an optimizer's kernels, those far apart and those near each other."""
    updates = np.flatnonzero(sequence.is_update)
    place = updates + LEAST_APART * np.cumsum(sequence.is_graph)[updates]  # each graph hides many kernels
    is_last = np.ones(len(updates), np.bool_)
    apart = LEAST_APART
    bursts = 0
    while len(updates) and apart <= MOST_APART * len(sequence):
        is_last[:-1] = np.diff(place) > apart
        behind = updates[is_last] + 1
        if len(behind) != bursts:
            yield _Updates(_after_work(behind), "", sequence, is_named=False)
        bursts = len(behind)
        apart *= FACTOR


def _after_work(behind: Int64s) -> Int64s:
    """Return positions behind updates, each once, without those before all work."""
    return ordered(behind[behind > 0])


def _candidates(updates: _Updates) -> Iterator[_Candidate]:
    """Yield the steps that end with every update, every second, and so on, until such are quite similar."""
    are_alike = False
    for every in range(1, MOST_UPDATES + 1):
        if are_alike:
            return
        for first in range(every):
            ends = updates.behind[first::every]
            periods = _between(updates.sequence, ends) if len(ends) > 1 else None
            if periods is not None and periods.inside >= INSIDE:
                yield _Candidate(updates, every, periods)
                are_alike |= _alike(periods) == 1


def _between(sequence: Sequence, ends: Int64s) -> Periods | None:
    """Return the periods that end at these positions, the first may have begun before the recording."""
    usual = middle(np.diff(ends))
    begin = int(ends[0]) - usual
    begins = ends
    if begin > -LACKS * usual:
        begins = np.append(max(begin, 0), ends)
    begins = ordered(begins[begins < len(sequence)])
    return periods_at(sequence, sequence.name, begins, likeness=LIKE_OF_UPDATES)


def _alike(periods: Periods) -> float:
    """Return the similarity of steps, in tenths; work between them, such as an evaluation, does not count."""
    return round(periods.same, 1)
