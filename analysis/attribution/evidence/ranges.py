"""Steps that begin with ranges of a name that repeats, such as `Forward`: at the highest level where one does.

    thread   ├ Forward ┤ ├ loss ┤      ├ Forward ┤ ├ loss ┤      the highest level
               ├ layer 0 ┤               ├ layer 0 ┤             in a phase, or in a call of a model: never a step

Ranges of a level must hold most of the work: else they are parts of what a step does, as FSDP's `pre_forward` is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...support.small_numbers import medians, ordered, rows_of_each, summed
from ...trace import EVALUATION, FORWARD_CATEGORIES, NO_CATEGORY, NO_GRADIENT, Bools, Int64s
from ...vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES, without_numbers
from ..between_calls import BETWEEN_CALLS
from ..places import Attribution
from ..user_ranges import AUTOMATIC_PHASES, OWN_DOMAIN
from .arrays import Floats, sums_before
from .finding import Finding, Refused, Subject, outermost, ranges_of, wholes
from .periods import Periods, periods_at
from .repetition import LAYERS_ALONE, refusal

#: How many levels of ranges are tried, and how many names on each.
LEVELS = 6
NAMES = 12
#: Ranges begin steps if there are this many, if steps are this similar (less than where kernels alone tell them),
#: and explain this share of the work, and this of the work between the first and the last.
FEWEST = 3
LIKE_OF_RANGES = 0.7
EXPLAINED = 0.6
INSIDE = 0.9
#: The ranges of the level hold this share of that work.
HELD = 0.7
#: Ranges of a name that hold this share of all work are worth a try with --step.
NEARLY_ALL = 0.9
#: The categories of the outermost range of a call without gradient.
WHOLE_MODELS = (NO_GRADIENT, EVALUATION)
TRAINING = [PHASES.index(phase) for phase in (BACKWARD, OPTIMIZER)]


@dataclass(frozen=True, slots=True)
class _Level:
    """The outermost ranges of a level, in order, and how much of the sequence's work they hold."""

    rows: Int64s
    begin: Int64s  # position in the sequence of the first launch inside
    end: Int64s
    held: Floats  # weight inside the ranges before each piece of work, and all of it last
    weight: Floats  # the same of all work

    def hold(self, begins: Int64s, ends: Int64s) -> bool:
        """Tell whether the ranges hold most of the work from the first begin to the last end."""
        first = begins[0]
        last = ends[-1]
        held = self.held[last] - self.held[first]
        weight = self.weight[last] - self.weight[first]
        return bool(held >= HELD * weight)

    def by_name(self, attribution: Attribution) -> dict[tuple[str, bool], Int64s]:
        """Return where on this level ranges with work are, by name and whether they are calls of a model."""
        with_work = np.flatnonzero(self.end > self.begin)
        rows = self.rows[with_work]
        is_call = np.isin(attribution.ranges.category[rows], FORWARD_CATEGORIES)
        places: dict[tuple[str, bool], Int64s] = {}
        for (name_id, called), some in rows_of_each(attribution.ranges.name_id[rows], is_call):
            name = without_numbers(attribution.trace.names[name_id])
            key = name, bool(called)
            before = places.get(key, with_work[:0])
            places[key] = np.concatenate([before, with_work[some]])
        return places

    def share_of(self, places: Int64s) -> float:
        """Return the weight in some of the ranges."""
        begin = self.begin[places]
        end = self.end[places]
        shares = self.weight[end] - self.weight[begin]
        return float(shares.sum())


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
        if not candidates:
            continue
        best = max(candidates, key=lambda candidate: candidate.score)
        if refusal(best.periods) == LAYERS_ALONE and not best.is_model:
            return Refused(LAYERS_ALONE)
        is_call = best.is_forward and not _trains(subject, best.periods)
        return Finding(best.periods, best.name, is_call=is_call)
    return Refused()


def largest_range(subject: Subject) -> str:
    """Return the name of the innermost ranges that hold nearly all work, and so could be called steps; or ""."""
    suggested = ""
    for level in _levels(subject):
        places = level.by_name(subject.attribution)
        shares = {key: level.share_of(places[key]) for key in places}
        if not shares or max(shares.values()) < NEARLY_ALL:
            break
        name, is_call = max(shares, key=lambda key: shares[key])
        if is_call:  # --step takes ranges of the program alone
            break
        suggested = name
    return suggested


def _trains(subject: Subject, periods: Periods) -> bool:
    """Tell whether work of the periods is in backward or an optimizer."""
    phases = subject.phases_of(periods.begin[0], periods.end[-1])
    return bool(np.isin(phases, TRAINING).any())


def _levels(subject: Subject) -> Iterator[_Level]:
    """Yield the ranges of the program's main thread, level by level from the outside; none without launches."""
    attribution = subject.attribution
    sequence = subject.sequence
    rows = ranges_of(attribution, subject.process, _are_possible(attribution))
    if not (len(rows) and sequence.on_host):
        return
    ranges = attribution.ranges
    weight = sums_before(sequence.weight)
    duration_ns = ranges.end_ns[rows] - ranges.start_ns[rows]
    of_threads_ns = summed(ranges.thread[rows], duration_ns, len(attribution.trace.threads))
    rows = rows[ranges.thread[rows] == of_threads_ns.argmax()]
    for _ in range(LEVELS):
        is_top = outermost(attribution, rows)
        top = rows[is_top]
        rows = _inside(attribution, rows[~is_top], top)
        begin = np.searchsorted(sequence.start_ns, ranges.start_ns[top])
        end = np.searchsorted(sequence.start_ns, ranges.end_ns[top])
        depth = np.zeros(len(weight), np.int64)
        np.add.at(depth, begin, 1)
        np.add.at(depth, end, -1)
        is_held = np.cumsum(depth)[:-1] > 0
        held = sums_before(sequence.weight * is_held)
        yield _Level(top, begin, end, held, weight)
        if not len(rows):
            return


def _inside(attribution: Attribution, rows: Int64s, top: Int64s) -> Int64s:
    """Return the ranges that lie in one of the outermost ones, but in no phase and in no call of a model."""
    ranges = attribution.ranges
    around = np.searchsorted(ranges.start_ns[top], ranges.start_ns[rows], "right") - 1
    is_part = wholes(attribution)[top[around]]
    return rows[~is_part]


def _are_possible(attribution: Attribution) -> Bools:
    """Mark the program's ranges that may begin steps, and calls of models: no operators, no parts of a phase.

    The phases that annotation opens, and what the analysis adds between calls, are no ranges of the program.
    """
    facts = attribution.facts
    ranges = attribution.ranges
    is_excluded = facts.part | facts.operator | facts.measured
    is_program = ~is_excluded[ranges.name_id] & (ranges.seq < 0)
    is_program &= ranges.category == NO_CATEGORY
    names = {*AUTOMATIC_PHASES, BETWEEN_CALLS}
    is_automatic = np.array([name in names for name in attribution.trace.names], np.bool_)
    is_program &= ~(_is_ours(attribution) & is_automatic[ranges.name_id])
    return is_program | np.isin(ranges.category, FORWARD_CATEGORIES)


def _is_ours(attribution: Attribution) -> Bools:
    """Mark the ranges of this project's annotation."""
    domains = attribution.trace.domains
    is_ours = np.array([domain.name == OWN_DOMAIN for domain in domains], np.bool_)
    marked: Bools = is_ours[attribution.ranges.domain]
    return marked


def _candidates(subject: Subject, level: _Level) -> Iterator[_Candidate]:
    """Yield the steps that begin with the ranges of each name, if they are similar and hold the work."""
    attribution = subject.attribution
    sequence = subject.sequence
    ranges = attribution.ranges
    facts = attribution.facts
    by_name = level.by_name(attribution)
    is_whole = _is_ours(attribution) & np.isin(ranges.category, WHOLE_MODELS)
    shares = {key: level.share_of(by_name[key]) for key in by_name}
    largest = sorted(shares, key=lambda key: -shares[key])
    for name, is_call in largest[:NAMES]:
        places = by_name[name, is_call]
        begins = ordered(level.begin[places])
        if len(begins) < FEWEST or not level.hold(begins, begins):
            continue
        rows = level.rows[places]
        is_model = bool(is_whole[rows].all())
        periods = periods_at(sequence, sequence.name, begins, likeness=LIKE_OF_RANGES)
        if periods is None or not _are_steps(periods, level, is_model=is_model):
            continue
        phase = facts.phase[ranges.name_id[rows[0]]]
        yield _Candidate(
            periods,
            name,
            is_forward=is_call or phase == PHASES.index(FORWARD),
            is_model=is_model,
            pause_ns=float(medians(sequence.pause_ns[periods.begin])),
        )


def _are_steps(periods: Periods, level: _Level, *, is_model: bool) -> bool:
    """Return whether periods that ranges begin are similar, and the ranges of their level hold most of the work.

    Of a model's calls, it does not matter how much set-up came before.
    """
    if len(periods) < FEWEST or periods.inside < INSIDE:
        return False
    is_enough = is_model or periods.explained >= EXPLAINED
    return is_enough and level.hold(periods.begin, periods.end)
