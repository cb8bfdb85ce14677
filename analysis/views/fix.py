"""What to change first, and how much of a step is at stake: the list, its evidence, and what stayed silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ..document import Column, Document, Row, Table, headed
from ..errors import ReportError
from ..measures.fixes import ADDS, LEAST_SHARE, Fix, Fixes, Silent, fixes_beside
from ..report import Report
from ..support.units import UNITS_NS, digits_text, share_text
from ..support.units import time_in_digits as time
from ..vocabulary import PATH_SEPARATOR
from . import headings
from .registry import Subject
from .rows import label, require_measured

#: A range is shown where its ends differ by more than this share of the larger.
RANGE_FROM = 0.1
#: Rows whose step after all changes above is shown; and rows in the overview.
WITH_STEP, FIRST = 3, 3
#: What takes less than this share of the step is not even called silent.
LEAST_SILENT = 0.0005
REFUSED = "What to change first is not known: {}."
NOTHING = "Nothing to fix first: no known change saves {} or more of a step of {}."
UNSURE = (
    "What to fix first is not sure: each known change may save less than {} of a step of {}, or less than steps "
    "vary."
)
CEILINGS = "Upper limits per step, by replay of the recorded calls; they do not add up."
GIVE_STEP = "{}. Give its time to narrow these ranges, such as --unrecorded-step 68ms."
RECORDED, AT_MOST = "Unrecorded, a step is shorter", "Alone, a step may be shorter"
ONE_RANK = "Of {} ranks, the steps of one are replayed; what its collectives wait for stays as recorded."
NOT_USED = (
    "The host's times by phase are not used: with them, the replay of the unchanged step is {} {} "
    "than a step without recording."
)
EVIDENCE = "time: of the kernels and copies concerned. least: what bytes or FLOPs need."


def view(subject: Subject) -> Document:
    """Show all changes that matter, with their evidence.

    Raises ReportError where the recorded steps cannot be replayed.
    """
    require_measured(subject.report)
    found = fixes_beside(subject.partition, subject.report.recording, subject.unrecorded_step_ns)
    return shown(subject.report, found)


def shown(report: Report, found: Fixes) -> Document:
    """Show what was found in a report; raises ReportError where its steps could not be replayed."""
    if found.refused:
        raise ReportError(REFUSED.format(found.refused))
    is_shorter = "" if found.is_unrecorded else RECORDED
    is_shorter = AT_MOST if found.is_upper_limit else is_shorter
    notes = [
        *([GIVE_STEP.format(is_shorter)] if is_shorter else []),
        *(f"Not judged: {reason}." for reason in found.unjudged),
        *not_used(found),
    ]
    notes += [ONE_RANK.format(report.ranks)] if report.ranks > 1 else []
    tables = [fix_table(found, found.fixes), *([_evidence(found)] if found.fixes else [])]
    accounting = headings.accounting_per_step(report)
    filled = [table for table in tables if table.rows]
    document = headings.answer(report, filled, (*notes, *report.notes), accounting=accounting)
    return replace(document, verdict=nothing(found) if not found.fixes else "")


def nothing(found: Fixes) -> str:
    """Return the sentence for a report in which nothing matters for sure."""
    words = UNSURE if is_unsure(found) else NOTHING
    return words.format(share_text(LEAST_SHARE, 0), time(found.step_ns)) + silent(found)


def is_unsure(found: Fixes) -> bool:
    """Return whether nothing is shown, though a change may save enough to be."""
    least_ns = LEAST_SHARE * found.step_ns
    return not found.fixes and any(tried.alone_ns >= least_ns for tried in found.silent)


def not_used(found: Fixes) -> list[str]:
    """Return a sentence on host times that do not give the step, or none."""
    error = found.host_times_error
    if error is None or found.host_times_used:
        return []
    return [NOT_USED.format(share_text(abs(error)), "longer" if error > 0 else "shorter")]


def first(found: Fixes | None) -> list[Table]:
    """Return the first changes, as the overview begins; nothing where none is known."""
    return [fix_table(found, found.fixes[:FIRST])] if found and found.fixes else []


def unsure(found: Fixes | None) -> str:
    """Return what may be at stake where no change is sure, to end the first answer; else ""."""
    return f" {nothing(found)}" if found and is_unsure(found) else ""


def as_object(found: Fixes) -> dict[str, Any]:
    """Return all changes, and what their figures are based on, for programs; docs/json.md describes it."""
    basis: dict[str, Any] = {
        "replay_error": found.replay_error,
        "refused": found.refused or None,
        "step_ns": found.step_ns,
    }
    basis |= {"is_unrecorded": found.is_unrecorded, "is_upper_limit": found.is_upper_limit}
    basis |= {"factors": found.factors, "steps": found.steps}
    basis |= {"host_times_used": found.host_times_used, "host_times_error": found.host_times_error}
    basis |= {"silent": [asdict(tried) for tried in found.silent], "unjudged": list(found.unjudged)}
    fixes = [
        asdict(replace(fix, lines=())) | {"lines": [line.as_json(found.steps) for line in fix.lines]}
        for fix in found.fixes
    ]
    return {"fixes": fixes, "fix_basis": basis}


def fix_table(found: Fixes, fixes: Sequence[Fix]) -> Table:
    """Return some of the changes as a table, for people in words and for programs in numbers."""
    columns = (
        Column("change", "change", "prose", seen_by="people"),
        Column("alone", "saves alone", seen_by="people"),
        Column("then", "then a step takes", seen_by="people"),
        *(replace(column, seen_by="programs") for column in _FIGURES),
    )
    rows = []
    for number, fix in enumerate(fixes, 1):
        where = "\n".join(PATH_SEPARATOR.join(path) for path in fix.where)
        share = fix.alone_ns / fix.step_ns if fix.step_ns else None
        figures = (fix.alone_ns, fix.alone_low_ns, share, fix.then_ns, fix.step_ns, fix.count, fix.up_to)
        words = (f"{number}. {fix.sentence}{_cited(fix)}", alone(fix), _then(found, number))
        rows.append(Row((*words, fix.rule, fix.sentence, *figures, ", ".join(fix.same_as), where)))
    recorded = " without recording" if found.is_unrecorded else " while recorded"
    at_most = "at most " if found.is_upper_limit else ""
    title = f"Fix first (a step takes {at_most}{time(found.step_ns)}{recorded})"
    return Table("fixes", title, columns, tuple(rows), caption(found))


_FIGURES = (
    *headed("rule", "sentence", alone_ns="alone", alone_low_ns="at least", share="%", then_ns="then"),
    *headed("step_ns", "count", "up_to", "same_as", "where"),
)


def caption(found: Fixes) -> str:
    """Return how the figures were computed, and what was tried and saves too little to be listed."""
    return CEILINGS + silent(found)


def silent(found: Fixes) -> str:
    """Return a sentence on the changes that save too little to be shown, those of a kind together, or ""."""
    kinds: dict[str, list[Silent]] = {}
    for each in found.silent:
        if each.alone_ns >= LEAST_SILENT * found.step_ns:
            kinds.setdefault(each.called, []).append(each)
    tried = []
    for called, alike in kinds.items():
        low_ns, high_ns = min(each.alone_low_ns for each in alike), max(each.alone_ns for each in alike)
        places = f" ({len(alike)} places)" if len(alike) > 1 else ""
        tried.append(f"{called} {_between(low_ns, high_ns) or time(high_ns)}{places}")
    stake = "At stake" if is_unsure(found) else "Less at stake"
    return f" {stake}: {', '.join(tried)}." if tried else ""


def alone(fix: Fix) -> str:
    """Return the time that a change saves by itself: `20.8 ms, 30%`, `13 to 21 ms`, `up to 27 ms, 40%`."""
    bound = "up to " if fix.up_to else ""
    if between := _between(fix.alone_low_ns, fix.alone_ns):
        return f"{bound}{between}"
    return f"{bound}{time(fix.alone_ns)}, {share_text(fix.alone_ns / fix.step_ns, 0)}"


def _cited(fix: Fix) -> str:
    """Return how much of such figures measured changes saved; nothing where none was measured."""
    if fix.measured is None:
        return ""
    count, least, most = fix.measured
    share = f"{least} to {most}%" if least != most else f"{most}%"
    return f" ({count} measured: {share} of it)"


def _between(low_ns: float, high_ns: float) -> str:
    """Return a range whose ends differ much, `11 to 32 ms`; else nothing."""
    if high_ns - low_ns <= RANGE_FROM * high_ns:
        return ""
    unit = time(high_ns).split()[1]
    low, high = (digits_text(ns / UNITS_NS[unit], 2) for ns in (low_ns, high_ns))
    return f"{low} to {high} {unit}"


def _then(found: Fixes, number: int) -> str:
    """Return the step after a change and those above, or above which one that saves the same time."""
    fix, above = found.fixes[number - 1], found.fixes[: number - 1]
    before_ns = above[-1].then_ns if above else fix.step_ns
    same = [place for place, other in enumerate(above, 1) if other.rule in fix.same_as]
    if same and before_ns - fix.then_ns < ADDS * fix.alone_low_ns:
        return f"(same time as {same[0]})"
    return time(fix.then_ns) if number <= WITH_STEP else ""


def _evidence(found: Fixes) -> Table:
    """Show which work each change concerns, how much of it a step has, and the least that it could take."""
    has_lines = any(fix.lines for fix in found.fixes)
    columns = headed("rule", range="range with the most of it", ranges="ranges")
    columns += (Column("line", "line", seen_by="all" if has_lines else "programs"),)
    columns += (Column("calls", "pieces", "count"), *headed(kernels_ns="time", floor_ns="least"))
    rows = [
        Row(
            (
                fix.rule,
                label(fix.where[0][-2:]) if fix.where else "",
                len(fix.where),
                fix.lines[0].called if fix.lines else "",
                fix.evidence["calls"],
                fix.evidence["kernels_ns"],
                fix.evidence["floor_ns"] or None,
            )
        )
        for fix in found.fixes
    ]
    title = "What they concern, {unit} per step"
    return Table("evidence", title, columns, tuple(rows), EVIDENCE)
