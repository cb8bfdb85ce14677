"""How the steps of a report are known, as data: by names, or by what the program does; or why there are none."""

from __future__ import annotations

from dataclasses import dataclass

#: The kinds of evidence, in the order of trust: ranges that name steps, updates of an optimizer, ranges of another
#: name that repeat, and the repetition of the kernels themselves.
NAMED, UPDATES, RANGES, REPETITION, NONE = "named", "updates", "ranges", "repetition", "none"
FOUND = (UPDATES, RANGES, REPETITION)
#: What figures are per, unless ranges of another name are the unit.
STEP, UPDATE, RECORDING = "step", "update", "recording"


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """By what steps are known (`by`, one of the kinds above), and how well.

    `name` is that of the updates or ranges that end or begin steps, empty for an optimizer's kernels. A step has
    every so many of them. `explained` is the share of all work that the steps have in common with a typical one,
    `same` how alike they are; both None of named steps. Of named steps, an update may come with `updates_every`
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
    refused: str = ""  # why there are no steps: what was tried
    suggested: str = ""  # a range's name that --step would take

    @property
    def per(self) -> str:
        """What figures are per: a step, an update, a range's name, or all that was recorded."""
        if self.by == NONE:
            return RECORDING
        if self.by == RANGES and self.every == 1:
            return self.name
        return UPDATE if self.by == UPDATES and self.every == 1 else STEP
