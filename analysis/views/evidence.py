"""By what the steps are known, in sentences: told where no range names them, on the first screen alone."""

from __future__ import annotations

from collections.abc import Iterator

from ..report import Report
from ..report.account import Account
from ..report.evidence import NAMED, RANGES, REPETITION, UPDATES, StepEvidence
from ..support.units import counted, ordinal, share_text, time_in_digits
from ..trace import Provenance
from . import headings

#: Sentences on steps that no range names, by their evidence; {which} are updates or ranges.
TOLD = {
    UPDATES: "{no_names}: each ends with {which} ({steps}).",
    RANGES: "{no_names}: each begins with a range {which} ({steps}).",
    REPETITION: "{no_names}: each is a repetition of the same kernels ({steps}).",
}
OF_CALLS = "{no_names}: each call of {which} counts as one ({steps})."
NO_NAMES = "No range marks the steps"
#: From this share of all work on, it is not said how much of it the steps have in common.
NEARLY_ALL = 0.95
EMPTY_NAMES = "What ran in the ranges of steps is not known, as launches were not recorded"
MICRO_BATCHES = "Each step has {} micro-batches."
NO_STEPS = "No steps are known."
ALL_RECORDED = "All figures are of the whole recorded time."
#: Where the named steps are micro-batches.
NAMED_MICRO_BATCHES = "Only every {} step has an update: these steps are micro-batches, and {} of them take {}."


def sentences(report: Report, account: Account) -> Iterator[str]:
    """Yield by what steps without names are known, what of them is a micro-batch, or why no steps are known."""
    evidence, source = account.evidence, report.provenance
    if not account.has_steps:
        yield f"{headings.worded(report.no_steps or NO_STEPS, source)} {ALL_RECORDED}"
        return
    if evidence.by in TOLD:
        yield _told(evidence, source)
    if evidence.micro_batches > 1:
        yield MICRO_BATCHES.format(evidence.micro_batches)
    if evidence.by == NAMED and evidence.updates_every > 1:
        every = evidence.updates_every
        yield NAMED_MICRO_BATCHES.format(ordinal(every), every, time_in_digits(every * account.recorded_ns))


def _told(evidence: StepEvidence, source: Provenance) -> str:
    """Return by what steps that have no names are known."""
    share = evidence.explained or 0
    common = f", alike in {share_text(share, 0)} of all work" * (share < NEARLY_ALL)
    template = headings.worded(OF_CALLS if evidence.is_call else TOLD[evidence.by], source)
    return template.format(
        no_names=EMPTY_NAMES if evidence.names_are_empty else NO_NAMES,
        which=f"`{evidence.name}`" if evidence.by == RANGES else _updates(evidence),
        steps=counted(evidence.count, "call" if evidence.is_call else "step") + common,
    )


def _updates(evidence: StepEvidence) -> str:
    """Return with which updates steps end: `an update by Optimizer.step#SGD.step`."""
    each = "an update" if evidence.every == 1 else f"every {ordinal(evidence.every)} update"
    return f"{each} by {evidence.name or 'the optimizer kernels'}"


def subject_of(account: Account) -> str:
    """Return the subject of a sentence on the time of a step: a step, a call, or each `batch`."""
    evidence = account.evidence
    if evidence.is_call:
        return "A call"
    return f"Each `{evidence.name}`" if evidence.by == RANGES else "A step"
