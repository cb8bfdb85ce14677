"""Which ranges of a report are the user's, not a library's and not those of single operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ..errors import UsageError
from ..moments import NEVER
from ..support.small_numbers import distinct, each_row, grouped, rows_of_each, sorted_by
from ..trace import (
    MODEL_FORWARD,
    NO_CATEGORY,
    PUSH_POP,
    TIMELINE,
    Bools,
    Int8s,
    Int32s,
    Int64s,
    Ranges,
    Trace,
    sorted_ranges,
)
from ..vocabulary import (
    BACKWARD,
    BACKWARD_OPERATORS,
    ENGINE_OPERATOR,
    FORWARD,
    LIBRARY_RANGES,
    OPTIMIZER,
    OPTIMIZER_STEP,
    PHASES,
    RECOMPUTE,
    PhaseNames,
    is_library_domain,
    is_operator,
    is_step,
    is_warm_up,
    phase_matcher,
    some_of,
    step_matcher,
)

#: The domain of this project's annotation, and the phases for which it opens ranges itself.
OWN_DOMAIN = "nvtx-kernels"
AUTOMATIC_PHASES = (FORWARD, BACKWARD, OPTIMIZER)


@dataclass(frozen=True, slots=True)
class NameFacts:
    """What each name of a trace means, by name id: computed once per distinct name."""

    operator: Bools
    backward_operator: Bools
    warm_up: Bools
    step: Bools
    measured: Bools  # what is counted as a step: `step`, or what the user calls so
    phase: Int8s  # of the work in it: position in PHASES, -1: says none
    part: Bools  # says a phase, but is only a part of it, such as a loss

    @property
    def opens_phase(self) -> Bools:
        """Mark the names that are a phase as a whole."""
        opens: Bools = (self.phase >= 0) & ~self.part
        return opens

    @property
    def turns(self) -> Bools:
        """Mark the names with which something else begins: a phase, a step, or warm-up."""
        return self.opens_phase | self.step | self.measured | self.warm_up

    @property
    def backward_phase(self) -> Bools:
        """Mark the names that open the backward phase."""
        backward: Bools = self.opens_phase & (self.phase == PHASES.index(BACKWARD))
        return backward


def name_facts(trace: Trace, step: str, phase_names: PhaseNames) -> NameFacts:
    """Return the meaning of each name; names used only by kernels cost nothing.

    `step` and `phase_names` are what the user calls a step and the phases, if not by their usual names; raises
    UsageError if no range has that name.
    """
    count = len(trace.names)
    names = {name_id: trace.names[name_id] for name_id in distinct(trace.ranges.name_id).tolist()}
    nodes = {name.removeprefix(ENGINE_OPERATOR) for name in trace.names if name.startswith(ENGINE_OPERATOR)}
    operator, backward, warm_up, steps, part = (np.zeros(count, np.bool_) for _ in range(5))
    measured = np.zeros(count, np.bool_) if step else steps
    facts = NameFacts(operator, backward, warm_up, steps, measured, np.full(count, -1, np.int8), part)
    phase_of = phase_matcher(phase_names)
    for name_id, name in names.items():
        operator[name_id] = is_operator(name)
        backward[name_id] = name in nodes or bool(BACKWARD_OPERATORS.match(name))
        warm_up[name_id] = is_warm_up(name)
        steps[name_id] = is_step(name)
        phase, part[name_id] = phase_of(name)
        facts.phase[name_id] = PHASES.index(phase) if phase else -1
    for called in (*([step] if step else []), *(called for _, called in phase_names)):
        is_called = step_matcher(called)
        ids = [name_id for name_id, name in names.items() if is_called(name)]
        if not ids:
            raise UsageError(f"No range is called {called!r}. Ranges: {some_of(names.values())}.")
        if called == step:
            measured[ids] = True
    return facts


def with_names(trace: Trace, facts: NameFacts, names: Sequence[str]) -> tuple[Trace, NameFacts]:
    """Return both with these names, if they lack them; the new ones mean nothing."""
    new = [name for name in names if name not in trace.names]
    longer = {
        field.name: np.append(column := getattr(facts, field.name), np.zeros(len(new), column.dtype))
        for field in fields(facts)
    }
    longer["phase"][len(trace.names) :] = -1
    return replace(trace, names=[*trace.names, *new]), replace(facts, **longer)


def nested_ranges(trace: Trace, domains: Sequence[str]) -> Bools:
    """Mark the ranges that can be parents: push/pop ranges of no library's domain.

    `domains` restricts them to these domains (the default domain is called `default`).

    Raises UsageError for a domain that the report does not have.
    """
    ranges = trace.ranges
    nested: Bools = (ranges.style == PUSH_POP) & (ranges.category != TIMELINE)
    if domains:
        names = [domain.name or ("default" if domain.domain_id == 0 else "") for domain in trace.domains]
        lowered = [name.lower() for name in names]
        for name in domains:
            if name.lower() not in lowered:
                available = ", ".join(sorted({name for name in names if name})) or "none"
                raise UsageError(f"The report has no NVTX domain {name!r}. Its domains: {available}.")
        chosen = np.isin(lowered, [name.lower() for name in domains])
    else:
        chosen = ~_of_libraries(trace)
    return nested & chosen[ranges.domain]


def with_phases_once(trace: Trace, facts: NameFacts, ranges: Ranges) -> Ranges:
    """Return the ranges such that a phase that the program opened, and annotation too, is one instance.

    Both begin and end at almost the same moments, and may cross: the program's range lasts from the outer
    begin to the outer end. Where it has several during one of annotation's, each lasts until the next.
    """
    is_phase = of_titles(facts.opens_phase, ranges)
    phase = named_phases(facts, ranges)
    annotations = np.array([domain.name == OWN_DOMAIN for domain in trace.domains], np.bool_)
    is_automatic = np.array([name in AUTOMATIC_PHASES for name in trace.names], np.bool_)
    is_pytorchs = np.array([name.startswith(OPTIMIZER_STEP) for name in trace.names], np.bool_)
    is_annotated = annotations[ranges.domain]
    ours = is_phase & is_annotated & is_automatic[ranges.name_id]
    theirs = is_phase & ~is_annotated & ~is_pytorchs[ranges.name_id]
    if not ours.any() or not theirs.any():
        return ranges
    start_ns = ranges.start_ns.copy()
    end_ns = ranges.end_ns.copy()
    dropped = np.zeros(len(ranges), np.bool_)
    group = ranges.thread.astype(np.int64) * len(PHASES) + phase
    # Where the program's phases begin, by thread: none lasts into the next.
    programs = dict(_rows_by(group, theirs))
    of_threads = _rows_by(ranges.thread, theirs)
    starts_ns = {thread: np.append(np.sort(ranges.start_ns[rows]), NEVER) for thread, rows in of_threads}
    for number, annotated in _rows_by(group, ours):
        if number not in programs:
            continue
        program = programs[number]
        program = sorted_by(program, ranges.start_ns)
        reach_ns = np.maximum.accumulate(ranges.end_ns[program])
        is_outermost = np.append(True, ranges.start_ns[program][1:] >= reach_ns[:-1])
        program = program[is_outermost]
        first = np.searchsorted(end_ns[program], ranges.start_ns[annotated], "right")
        last = np.searchsorted(ranges.start_ns[program], ranges.end_ns[annotated], "left") - 1
        dropped[annotated[first <= last]] = True
        firsts = program[first % len(program)]
        lasts = program[last]
        for row, first_row, last_row in each_row(annotated, firsts, lasts):
            if dropped[row]:
                start_ns[first_row] = min(start_ns[first_row], ranges.start_ns[row])
                next_ns = starts_ns[number // len(PHASES)]
                until_ns = next_ns[np.searchsorted(next_ns, end_ns[last_row])]
                joint_end_ns = min(ranges.end_ns[row], until_ns)
                end_ns[last_row] = max(end_ns[last_row], joint_end_ns)
        between = dropped[annotated] & (last > first)
        for begin, end in each_row(first[between], last[between]):
            inside = program[begin:end]
            following = program[begin + 1 : end + 1]
            end_ns[inside] = np.maximum(end_ns[inside], start_ns[following])
    return sorted_ranges(replace(ranges, start_ns=start_ns, end_ns=end_ns).take(~dropped))


def _rows_by(key: Int64s | Int32s, some: Bools) -> Iterator[tuple[int, Int64s]]:
    """Yield the distinct keys of some rows, each with their positions in order."""
    rows = np.flatnonzero(some)
    return ((number, rows[places]) for (number,), places in rows_of_each(key[rows]))


def _of_libraries(trace: Trace) -> Bools:
    """Mark the domains of libraries: by their names, or of unnamed ones by those of all their ranges."""
    is_unnamed = np.array([not domain.name and domain.domain_id != 0 for domain in trace.domains], np.bool_)
    of_libraries = np.array([is_library_domain(domain.name) for domain in trace.domains], np.bool_)
    of_libraries[is_unnamed] = True
    unnamed = np.flatnonzero(is_unnamed[trace.ranges.domain])
    names, number = grouped(trace.ranges.name_id[unnamed])
    is_users = np.array([not LIBRARY_RANGES.match(trace.names[name]) for name in names.tolist()], np.bool_)
    of_libraries[trace.ranges.domain[unnamed[is_users[number]]]] = False
    return of_libraries


def operator_ranges(facts: NameFacts, ranges: Ranges) -> Bools:
    """Mark the ranges that are PyTorch's own: by their names, or by the number it gave them."""
    return facts.operator[ranges.name_id] | (ranges.seq >= 0)


def of_titles(flags: Bools, ranges: Ranges) -> Bools:
    """Look up by each range's name what it opens; a part of the model opens nothing, whatever its name."""
    titled: Bools = flags[ranges.name_id] & (ranges.category == NO_CATEGORY)
    return titled


def named_phases(facts: NameFacts, ranges: Ranges) -> Int8s:
    """Return the phase of each range's work by its name, a position in PHASES, or -1: int8 (ranges,)."""
    return np.where(ranges.category == NO_CATEGORY, facts.phase[ranges.name_id], np.int8(-1))


def computed_again(trace: Trace, ranges: Ranges) -> Bools:
    """Mark the ranges in which annotation says that backward computes forward again: none of the program's own."""
    is_named = np.array([name == RECOMPUTE for name in trace.names], np.bool_)
    is_again: Bools = is_named[ranges.name_id] & (ranges.category == MODEL_FORWARD)
    return is_again
