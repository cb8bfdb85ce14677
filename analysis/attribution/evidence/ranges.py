"""Steps that begin with ranges of a name that repeats, such as `Forward`: at the highest level where one does.

    thread   ├ Forward ┤ ├ loss ┤      ├ Forward ┤ ├ loss ┤      the highest level
               ├ layer 0 ┤               ├ layer 0 ┤             a lower one, which is not looked at then

Ranges of a level must hold most of the work: else they are parts of what a step does, as FSDP's `pre_forward` is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...support.small_numbers import grouped_rows, medians, ordered, summed
from ...trace import EVALUATION, FORWARD_CATEGORIES, NO_CATEGORY, NO_GRADIENT, Bools, Int64s
from ...vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES
from ..between_calls import BETWEEN_CALLS
from ..places import Attribution
from ..user_ranges import AUTOMATIC_PHASES, OWN_DOMAIN
from .finding import Finding, Refused, Subject, outermost, ranges_of, titled
from .periods import Periods, periods_at
from .repetition import LAYERS_ALONE, refusal
from .sequence import Floats

#: Ranges are tried on so many levels, and so many names on each.
LEVELS, NAMES = 6, 12
#: Ranges begin steps if there are so many, if steps are so much alike (less than where kernels alone tell them),
#: and explain this share of the work, and this of the work between the first and the last.
FEWEST, LIKE_OF_RANGES, EXPLAINED, INSIDE = 3, 0.7, 0.6, 0.9
#: The ranges of the level hold this share of that work.
HELD = 0.7
#: Ranges of a name that hold this share of all work are worth a try with --step.
NEARLY_ALL = 0.9
#: The categories of the outermost range of a call without gradient.
WHOLE_MODELS = (NO_GRADIENT, EVALUATION)


@dataclass(frozen=True, slots=True)
class _Level:
    """The outermost ranges of a level, in order, and how much of the sequence's work they hold."""

    rows: Int64s
    begin: Int64s  # position in the sequence of the first launch inside
    end: Int64s
    held: Floats  # weight inside the ranges before each piece of work, and all of it last
    weight: Floats  # the same of all work

    def hold(self, first: int, last: int) -> bool:
        """Tell whether the ranges hold most of the work between two positions."""
        return bool(self.held[last] - self.held[first] >= HELD * (self.weight[last] - self.weight[first]))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Steps that begin with each range of a name."""

    periods: Periods
    name: str
    is_forward: bool
    is_model: bool  # a call of a whole model that annotation knows: never a layer
    pause_ns: float  # the host's usual one before a range

    @property
    def score(self) -> tuple[float, bool, float]:
        """The forward, or the range after the longest pause, begins a step."""
        return round(self.periods.explained, 1), self.is_forward, self.pause_ns


def by_ranges(subject: Subject) -> Finding | Refused:
    """Return the steps that begin with each range of the highest level at which names repeat."""
    for level in _levels(subject):
        candidates = list(_candidates(subject, level))
        if candidates:
            best = max(candidates, key=lambda candidate: candidate.score)
            if refusal(best.periods) == LAYERS_ALONE and not best.is_model:
                return Refused(LAYERS_ALONE)
            is_call = best.is_forward and not _trains(subject, best.periods)
            return Finding(best.periods, best.name, is_call=is_call)
    return Refused()


def largest_range(subject: Subject) -> str:
    """Return the name of the innermost ranges that hold nearly all work, and so could be called steps; or ""."""
    attribution, suggested = subject.attribution, ""
    for level in _levels(subject):
        held: dict[str, float] = {}
        shares = level.weight[level.end] - level.weight[level.begin]
        for name_id, share in zip(attribution.ranges.name_id[level.rows].tolist(), shares.tolist(), strict=True):
            name = titled(attribution.trace.names[name_id])
            held[name] = held.get(name, 0.0) + share
        largest = max(held, key=lambda name: held[name])
        if held[largest] < NEARLY_ALL:
            break
        suggested = largest
    return suggested


def _trains(subject: Subject, periods: Periods) -> bool:
    """Tell whether work of the periods is in backward or an optimizer."""
    phases = subject.phases_of(periods.begin[0], periods.end[-1])
    return bool(np.isin(phases, [PHASES.index(name) for name in (BACKWARD, OPTIMIZER)]).any())


def _levels(subject: Subject) -> Iterator[_Level]:
    """Yield the ranges of the program's main thread, level by level from the outside; none without launches."""
    attribution, sequence = subject.attribution, subject.sequence
    facts, ranges = attribution.facts, attribution.ranges
    is_part = facts.part | facts.operator | facts.measured
    is_own = ~is_part[ranges.name_id] & (ranges.category == NO_CATEGORY) & (ranges.seq < 0)
    is_own &= ~_is_automatic(attribution)
    is_call = np.isin(ranges.category, FORWARD_CATEGORIES)
    rows = ranges_of(attribution, subject.process, is_own | is_call)
    if not (len(rows) and sequence.on_host):
        return
    weight = np.append(0, np.cumsum(sequence.weight))
    duration_ns = ranges.end_ns[rows] - ranges.start_ns[rows]
    thread = int(summed(ranges.thread[rows], duration_ns, len(attribution.trace.threads)).argmax())
    rows = rows[ranges.thread[rows] == thread]
    for _ in range(LEVELS):
        is_top = outermost(attribution, rows)
        top, rows = rows[is_top], rows[~is_top]
        begin, end = (np.searchsorted(sequence.start_ns, ns[top]) for ns in (ranges.start_ns, ranges.end_ns))
        edges = np.zeros(len(sequence) + 1, np.int64)
        np.add.at(edges, begin, 1)
        np.add.at(edges, end, -1)
        of_ranges = np.where(np.cumsum(edges)[:-1] > 0, sequence.weight, 0)
        yield _Level(top, begin, end, np.append(0, np.cumsum(of_ranges)), weight)
        if not len(rows):
            return


def _is_ours(attribution: Attribution) -> Bools:
    """Mark the ranges of this project's annotation."""
    is_ours = np.array([domain.name == OWN_DOMAIN for domain in attribution.trace.domains], np.bool_)
    marked: Bools = is_ours[attribution.ranges.domain]
    return marked


def _is_automatic(attribution: Attribution) -> Bools:
    """Mark the ranges of phases, and between calls, that annotation opened or the analysis added."""
    names = {*AUTOMATIC_PHASES, BETWEEN_CALLS}
    is_automatic = np.array([name in names for name in attribution.trace.names], np.bool_)
    marked: Bools = _is_ours(attribution) & is_automatic[attribution.ranges.name_id]
    return marked


def _candidates(subject: Subject, level: _Level) -> Iterator[_Candidate]:
    """Yield the steps that begin with the ranges of each name, if they are alike and hold the work."""
    attribution, sequence = subject.attribution, subject.sequence
    ranges, facts, names = attribution.ranges, attribution.facts, attribution.trace.names
    with_work = np.flatnonzero(level.end > level.begin)
    rows = level.rows[with_work]
    is_call = np.isin(ranges.category[rows], FORWARD_CATEGORIES)
    is_ours = _is_ours(attribution)[rows]
    (ids, called), number = grouped_rows(ranges.name_id[rows], is_call)
    kinds = [(titled(names[name_id]), call) for name_id, call in zip(ids.tolist(), called.tolist(), strict=True)]
    kind_of = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
    kind = np.array([kind_of[each] for each in kinds], np.int64)[number]
    held = summed(kind, level.end[with_work] - level.begin[with_work], len(kind_of))
    titles = list(kind_of)
    for chosen in np.argsort(-held, kind="stable")[:NAMES].tolist():
        of_kind = with_work[kind == chosen]
        begins = ordered(level.begin[of_kind])
        if len(begins) < FEWEST or not level.hold(int(begins[0]), int(begins[-1])):
            continue
        periods = periods_at(sequence, sequence.name, begins, likeness=LIKE_OF_RANGES)
        if periods is None or not _are_steps(periods, level):
            continue
        opens = facts.phase[ranges.name_id[level.rows[of_kind[0]]]] == PHASES.index(FORWARD)
        pause_ns = float(medians(sequence.pause_ns[periods.begin]))
        name, call = titles[chosen]
        is_model = bool((is_ours & np.isin(ranges.category[rows], WHOLE_MODELS))[kind == chosen].all())
        yield _Candidate(periods, name, bool(opens or call), is_model, pause_ns)


def _are_steps(periods: Periods, level: _Level) -> bool:
    """Tell whether periods that ranges begin are alike, and the ranges of their level hold most of the work."""
    are_alike = periods.inside >= INSIDE and periods.explained >= EXPLAINED
    return len(periods) >= FEWEST and are_alike and level.hold(int(periods.begin[0]), int(periods.end[-1]))
