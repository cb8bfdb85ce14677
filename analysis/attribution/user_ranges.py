"""Which ranges of a report are the user's, not a library's and not those of single operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from ..support.small_numbers import distinct
from ..trace import NO_CATEGORY, PUSH_POP, TIMELINE, Bools, Int8s, Ranges, Trace
from ..vocabulary import (
    BACKWARD,
    BACKWARD_OPERATORS,
    ENGINE_OPERATOR,
    LIBRARY_RANGES,
    PHASES,
    PhaseNames,
    is_library_domain,
    is_operator,
    is_step,
    is_warm_up,
    phase_matcher,
    some_of,
    step_matcher,
)


@dataclass(frozen=True, slots=True)
class NameFacts:
    """What each name of a trace means, by name id: computed once per distinct name."""

    operator: Bools
    backward_operator: Bools
    warm_up: Bools
    step: Bools
    measured: Bools  # what is counted as a step: `step`, or what the user calls so
    phase: np.ndarray[tuple[int], np.dtype[np.int8]]  # of the work in it: position in PHASES, -1: says none
    part: Bools  # says a phase, but is only a part of it, such as a loss

    @property
    def opens_phase(self) -> Bools:
        """Mark the names that are a phase as a whole."""
        opens: Bools = (self.phase >= 0) & ~self.part
        return opens

    @property
    def backward_phase(self) -> Bools:
        """Mark the names that open the backward phase."""
        backward: Bools = self.opens_phase & (self.phase == PHASES.index(BACKWARD))
        return backward


def name_facts(trace: Trace, step: str, phase_names: PhaseNames) -> NameFacts:
    """Return what each name means; names used only by kernels cost nothing.

    `step` and `phase_names` are what the user calls a step and the phases, if not by their usual names; raises
    UsageError if no range has that name.
    """
    count = len(trace.names)
    used = np.zeros(count, np.bool_)
    used[trace.ranges.name_id] = True
    engine = [name for name in trace.names if name.startswith(ENGINE_OPERATOR)]
    nodes = {name.removeprefix(ENGINE_OPERATOR) for name in engine}
    operator, backward, warm_up, steps, part = (np.zeros(count, np.bool_) for _ in range(5))
    measured = np.zeros(count, np.bool_) if step else steps
    facts = NameFacts(operator, backward, warm_up, steps, measured, np.full(count, -1, np.int8), part)
    phase_of = phase_matcher(phase_names)
    for name_id in np.flatnonzero(used):
        name = trace.names[name_id]
        facts.operator[name_id] = is_operator(name)
        facts.backward_operator[name_id] = name in nodes or bool(BACKWARD_OPERATORS.match(name))
        facts.warm_up[name_id], facts.step[name_id] = is_warm_up(name), is_step(name)
        phase, facts.part[name_id] = phase_of(name)
        facts.phase[name_id] = PHASES.index(phase) if phase else -1
    names = {name_id: trace.names[name_id] for name_id in np.flatnonzero(used).tolist()}
    if step:
        is_measured = step_matcher(step)
        measured[[name_id for name_id, name in names.items() if is_measured(name)]] = True
        _require_some(measured.tolist(), step, names.values())
    for _, called in phase_names:
        _require_some(map(step_matcher(called), names.values()), called, names.values())
    return facts


def _require_some(matches: Iterable[bool], called: str, names: Iterable[str]) -> None:
    if not any(matches):
        raise UsageError(f"No range is called {called!r}. Ranges: {some_of(names)}.")


def nested_ranges(trace: Trace, domains: Sequence[str]) -> Bools:
    """Mark the ranges that can be parents: push/pop ranges of no library's domain.

    `domains` restricts them to these domains (the default domain is called `default`).

    Raises UsageError for a domain that the report does not have.
    """
    ranges = trace.ranges
    nested = (ranges.style == PUSH_POP) & (ranges.category != TIMELINE)
    chosen: Bools = nested & of_domains(_domains(trace, domains), ranges)
    return chosen


def _domains(trace: Trace, requested: Sequence[str]) -> Bools:
    names = [domain.name or ("default" if domain.domain_id == 0 else "") for domain in trace.domains]
    if not requested:
        return np.array([not _is_library(trace, number) for number in range(len(names))], np.bool_)
    lowered = [name.lower() for name in names]
    for name in requested:
        if name.lower() not in lowered:
            available = ", ".join(sorted({name for name in names if name})) or "none"
            raise UsageError(f"The report has no NVTX domain {name!r}. Its domains: {available}.")
    return np.isin(lowered, [name.lower() for name in requested])


def _is_library(trace: Trace, number: int) -> bool:
    domain = trace.domains[number]
    if domain.name or domain.domain_id == 0:
        return is_library_domain(domain.name)
    name_ids = distinct(trace.ranges.name_id[trace.ranges.domain == number])
    return all(LIBRARY_RANGES.match(trace.names[name_id]) for name_id in name_ids)


def of_domains(flags: Bools, ranges: Ranges) -> Bools:
    """Look a flag up by each range's domain."""
    return flags[ranges.domain] if len(ranges) else np.zeros(0, np.bool_)


def operator_ranges(facts: NameFacts, ranges: Ranges) -> Bools:
    """Mark the ranges that are PyTorch's own: by their names, or by the number it gave them."""
    return of_names(facts.operator, ranges) | (ranges.seq >= 0)


def of_names(flags: Bools, ranges: Ranges) -> Bools:
    """Look a flag up by each range's name."""
    return flags[ranges.name_id] if len(ranges) else np.zeros(0, np.bool_)


def of_titles(flags: Bools, ranges: Ranges) -> Bools:
    """Look up by each range's name what it opens; a part of the model opens nothing, whatever its name."""
    titled: Bools = of_names(flags, ranges) & (ranges.category == NO_CATEGORY)
    return titled


def named_phases(facts: NameFacts, ranges: Ranges) -> Int8s:
    """Return the phase of each range's work by its name, a position in PHASES, or -1: int8 (ranges,)."""
    if not len(ranges):
        return np.empty(0, np.int8)
    return np.where(ranges.category == NO_CATEGORY, facts.phase[ranges.name_id], np.int8(-1))


def named(trace: Trace, name: str) -> Bools:
    """Mark the name ids of one name."""
    return np.array([trace_name == name for trace_name in trace.names], np.bool_)
