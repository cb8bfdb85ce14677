"""Ranks of one job in several files: they take the same evidence for their steps, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..report import Report
from ..report.evidence import APART, FOUND, HOW, NONE, StepEvidence
from ..support.units import count_text
from .parallel import Ranked

#: Reads the reports of some paths, with steps by these kinds of evidence.
Read = Callable[[Sequence[Path], tuple[str, ...]], list[Ranked[Report]]]

DIFFER = "The reports do not have the same steps ({}), so figures are totals."


def kinds_for_all(evidence: Sequence[StepEvidence]) -> tuple[str, ...]:
    """Return the kinds of evidence that all ranks of a job should take: the weakest that one of them needed.

    All kinds if they agree, if a range names the steps of one, or if one has none; no kind if they took the same
    and have different numbers of steps.
    """
    kinds = {each.by for each in evidence}
    if not kinds <= set(FOUND) or _agree(evidence):
        return FOUND
    if len(kinds) > 1:
        return (max(kinds, key=FOUND.index),)
    return ()


def same_evidence(
    paths: Sequence[Path], ranked: list[Ranked[Report]], read: Read
) -> tuple[list[Ranked[Report]], str]:
    """Return the reports of ranks, read again where these know their steps in different ways, and a note on it.

    The note says which steps each has where they cannot agree; then no report has any.
    """
    kinds = kinds_for_all(_evidence(ranked))
    if kinds == FOUND:
        return ranked, ""
    again = read(paths, kinds) if kinds else ranked
    if kinds and _agree(_evidence(again)):
        return again, ""
    differing = (f"{count_text(each.count)} {HOW[each.by]}" for each in _evidence(ranked) if each.by != NONE)
    return read(paths, ()), DIFFER.format("; ".join(dict.fromkeys(differing)))


def _evidence(ranked: Sequence[Ranked[Report]]) -> list[StepEvidence]:
    reports = [entry.report for entry in ranked if entry.report is not None]
    return [report.account.evidence for report in reports if report.account is not None]


def _agree(evidence: Sequence[StepEvidence]) -> bool:
    """Tell whether steps are known in the same way, and equally many but for one at an edge."""
    counts = [each.count for each in evidence]
    return len({(each.by, each.name, each.every) for each in evidence}) <= 1 and max(counts) - min(counts) <= APART
