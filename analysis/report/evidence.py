"""How the steps of a report are known, as data: by names, or by what the program does; or why not."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

#: The kinds of evidence, in the order of trust: ranges that name steps, updates of an optimizer, ranges of another
#: name that repeat, and the repetition of the kernels themselves.
NAMED, UPDATES, RANGES, REPETITION, NONE = "named", "updates", "ranges", "repetition", "none"
FOUND = (UPDATES, RANGES, REPETITION)
#: The kinds that a rule for a build trusts where nothing is said.
TRUSTED = (UPDATES, RANGES)
#: Ranks of one job that were recorded from different moments on may differ by this many steps.
APART = 1
#: What figures are per, unless ranges of another name are the unit.
STEP, UPDATE, RECORDING = "step", "update", "recording"


#: How steps are known, in a sentence.
HOW = {
    NAMED: "by their names",
    UPDATES: "by updates",
    RANGES: "by ranges of another name",
    REPETITION: "by the repetition of the kernels",
}
REFUSED = "No steps are known: {}."
# The remedy if steps are needed but missing; another may follow.
TO_HAVE_STEPS = "Push a range named 'step' around each step, or use --step NAME for ranges with another name"


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """By what steps are known (`by`, one of the kinds above), and how well.

    `name` is that of the updates or ranges that end or begin steps, empty for an optimizer's kernels. A step has
    every n-th of them. `explained` is the share of all work that the steps have in common with a typical one,
    `same` their similarity; both None of named steps. Of named steps, an update may come with `updates_every`
    n-th only; 0 if not.
    """

    by: str = NONE
    name: str = ""
    every: int = 1
    count: int = 0  # steps that were found, of one process
    explained: float | None = None
    same: float | None = None
    is_call: bool = False  # of a model, in a program that does not train
    micro_batches: int = 1  # in each step
    updates_every: int = 0
    names_are_empty: bool = False  # whether ranges name steps, but no launch in them was recorded
    refused: str = ""  # why there are no steps: what was tried
    suggested: str = ""  # a range's name that --step would take

    @property
    def unit(self) -> str:
        """What tables are per: a step, or a range's name where ranges are the unit."""
        return self.name if self.by == RANGES and self.name else STEP

    @property
    def per(self) -> str:
        """What figures are per: a step, an update, a range's name, or all that was recorded."""
        if self.by == NONE:
            return RECORDING
        if self.by == RANGES:
            return self.unit
        return UPDATE if self.by == UPDATES and self.every == 1 else STEP


#: Of steps without further evidence, and where nothing was asked.
BY_NAMES, NOT_ASKED = StepEvidence(NAMED), StepEvidence()


def refusal_of(evidence: StepEvidence) -> str:
    """Return sentences on why steps are not known and what would help; empty where nothing was tried."""
    if not evidence.refused:
        return ""
    reason = REFUSED.format(evidence.refused)
    if evidence.suggested:
        return f"{reason} If `{evidence.suggested}` is a step, add --step {quote(evidence.suggested)}."
    return f"{reason} {TO_HAVE_STEPS}."
