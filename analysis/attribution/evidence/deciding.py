"""Which evidence tells the steps of a report: the most trusted kind on which its processes agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ...report.evidence import APART, RANGES, REPETITION, UPDATES, StepEvidence
from ...support.small_numbers import grouped, summed
from ...trace import Int64s, Work
from ..places import Attribution
from ..step_decisions import Windows
from .finding import Finding, Refused, Subject
from .micro_batches import micro_batches
from .ranges import by_ranges, largest_range
from .repetition import NOTHING, by_repetition
from .sequence import sequence_of
from .updates import by_updates
from .windows import windows_of

Finder: TypeAlias = Callable[[Subject], Finding | Refused]
FINDERS: Mapping[str, Finder] = {UPDATES: by_updates, RANGES: by_ranges, REPETITION: by_repetition}
#: A process with less than this share of the GPU time of the one that has most decides nothing: it is no rank.
LEAST_OF_MAIN = 0.1
#: As few as no report with a step has.
FEWEST_KERNELS = 6

FEW = "there are fewer than six kernels"
ONLY_NAMES = "no range is called a step, and --steps-by named excludes other evidence"
NOT_ASKED = "the sequence of kernels was not asked, which --steps-by repetition does"
DISAGREE = "its processes have different numbers of steps ({})"


def evidence_of(attribution: Attribution, kinds: Collection[str]) -> tuple[StepEvidence, dict[int, Windows]]:
    """Return by which of these kinds of evidence steps are known, and their windows by process; {} if by none."""
    if not kinds:
        return StepEvidence(refused=ONLY_NAMES), {}
    subjects = _subjects(attribution)
    if not subjects:
        return StepEvidence(refused=FEW), {}
    reasons: dict[str, None] = {}
    for kind in kinds:
        answers = [FINDERS[kind](subject) for subject in subjects]
        findings = [answer for answer in answers if isinstance(answer, Finding)]
        if isinstance(answers[0], Refused):
            reasons[answers[0].reason] = None
        if len(findings) < len(subjects):
            continue
        agreed = _agreed(subjects, findings)
        if agreed:
            windows = {
                subject.process: windows_of(subject, finding)
                for subject, finding in zip(subjects, agreed, strict=True)
            }
            return _told(kind, subjects[0], agreed[0]), windows
        counts = sorted({len(finding.periods) for finding in findings})
        reasons[DISAGREE.format(" and ".join(map(str, counts)))] = None
    if REPETITION not in kinds:
        reasons[NOT_ASKED] = None
    tried = ", and ".join(filter(None, reasons)) or NOTHING
    return StepEvidence(refused=tried, suggested=largest_range(subjects[0])), {}


def _told(kind: str, subject: Subject, finding: Finding) -> StepEvidence:
    """Return the evidence of the process that does most of the work."""
    periods = finding.periods
    return StepEvidence(
        kind,
        finding.name,
        finding.every,
        len(periods),
        periods.explained,
        periods.same,
        finding.is_call,
        micro_batches(subject, periods),
    )


def _agreed(subjects: list[Subject], findings: list[Finding]) -> list[Finding]:
    """Return the findings of processes with equally many steps; [] if they differ by more than one.

    Of one step more than the others have, the first or the last is left out: what begins further from theirs.
    """
    counts = [len(finding.periods) for finding in findings]
    fewest = min(counts)
    if max(counts) > fewest + APART:
        return []
    shortest = counts.index(fewest)
    first_ns = _begins_ns(subjects[shortest], findings[shortest])[0]
    agreed = []
    for subject, finding in zip(subjects, findings, strict=True):
        periods = finding.periods
        if len(periods) > fewest:
            nearest = int(np.abs(_begins_ns(subject, finding)[:2] - first_ns).argmin())
            periods = periods.take(np.arange(nearest, nearest + fewest))
        agreed.append(replace(finding, periods=periods))
    return agreed


def _begins_ns(subject: Subject, finding: Finding) -> Int64s:
    """Return when the steps of a process begin, ns."""
    return subject.sequence.start_ns[finding.periods.begin]


def _subjects(attribution: Attribution) -> list[Subject]:
    """Return the processes that do much of the work, the one with the most first, each on its busiest GPU.

    Work in the program's own warm-up is left out.
    """
    trace = attribution.trace
    rows = np.flatnonzero(~attribution.left_out()[attribution.node])
    process = trace.work.process[rows]
    sums_ns = summed(process, trace.work.duration_ns[rows], len(trace.processes))
    least_ns = max(1, LEAST_OF_MAIN * sums_ns.max(initial=0))
    subjects = []
    for number in np.argsort(-sums_ns, kind="stable").tolist():
        if sums_ns[number] < least_ns:
            break
        on_gpu = _on_busiest_gpu(trace.work, rows[process == number])
        sequence = sequence_of(trace, on_gpu)
        if len(sequence) >= FEWEST_KERNELS:
            subjects.append(Subject(attribution, number, sequence))
    return subjects


def _on_busiest_gpu(work: Work, rows: Int64s) -> Int64s:
    """Return the work among some rows of the GPU that works the longest in them."""
    devices, gpu = grouped(work.device_id[rows])
    busy_ns = summed(gpu, work.duration_ns[rows], len(devices))
    busiest: Int64s = rows[gpu == busy_ns.argmax()]
    return busiest
