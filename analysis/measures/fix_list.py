"""What to change first, as data: one document for screens, the page, JSON, notebooks and agents.

kind        the figure of a change                            words
replay      the step less the replayed step after it          saves, up to
gpu_time    the GPU's work that would go away or be shorter   at most
cpu         the time of the operators concerned               about
ranks       what ranks of a job wait and transfer in vain     saves, up to
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..report.account import LineTime
from ..report.evidence import STEP
from ..trace import Int64s, Path

#: What figures are computed of: the host's calls and the GPU's work, the GPU's work alone, a CPU's operators, or
#: the ranks of a job.
REPLAY, GPU_TIME, CPU, RANKS = "replay", "gpu_time", "cpu", "ranks"
#: The replay with the host's times by phase must give the step without recording so nearly.
NEAREST_STEP = 0.08
#: Less of what figures are a share of is not shown.
LEAST_SHARE = 0.02
#: What may save less than that, or less than steps vary, is shown if the middle of its range is this share.
LIKELY_SHARE = 0.05
#: Two changes save the same time if both together save less than this multiple of the larger's saving, and the
#: smaller adds less than this share of its own saving.
SAME_TIME, ADDS = 1.1, 0.25


def is_same_time(one_ns: float, other_ns: float, both_ns: float) -> bool:
    """Return whether two changes save the same time, given what each saves alone, and both together, ns."""
    smaller_ns, larger_ns = sorted((one_ns, other_ns))
    return both_ns < min(SAME_TIME * larger_ns, larger_ns + ADDS * smaller_ns)


@dataclass(frozen=True, slots=True)
class Fix:
    """One change, and the time that it alone takes from `step_ns`: at most, and at the least of its range, ns.

    `sentence` has the cause and the remedy, `short` both in the few words of a row.
    `step_ns` is what figures are a share of, as in `Fixes`; `then_ns` what is left of it after this change and
    those before it, None for a CPU and for ranks. `up_to` says that the change can save less, whatever recording
    cost, `about` that it can save less or more, and `uncertain` that it may save too little to matter.
    `measured` is how many changes of this rule were measured, and which percentages of the figure they saved, from
    least to most. `evidence` has `kernels_ns`, `floor_ns` and `calls` of the work concerned, per step.
    """

    rule: str
    sentence: str
    short: str
    where: tuple[Path, ...]
    count: float
    alone_ns: float
    alone_low_ns: float
    then_ns: float | None
    step_ns: float
    up_to: bool
    about: bool = False
    uncertain: bool = False
    measured: tuple[int, int, int] | None = None
    same_as: tuple[str, ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)
    #: The innermost range with most of the time concerned, as `with_most` finds it.
    most: Path = ()
    #: The lines of the program that make the work concerned, over the judged steps; empty if unknown.
    lines: tuple[LineTime, ...] = ()
    #: What the run asked for that the change undoes: `full fp32`; "" if nothing.
    undoes: str = ""
    #: Where what is concerned is by the phase before it: `code after backward`; "" if unknown.
    near: str = ""
    #: The work concerned, as positions in that of the report, for a page; empty for a CPU.
    work: Int64s = field(default_factory=lambda: np.empty(0, np.int64), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Silent:
    """A change that takes too little from a step to be shown: how screens call it, at most and at least, ns."""

    rule: str
    called: str
    alone_ns: float
    alone_low_ns: float


@dataclass(frozen=True, slots=True)
class Fixes:
    """All changes that matter, by the middle of what they save; and what stayed silent, or was not judged.

    `kind` is of REPLAY, GPU_TIME, CPU and RANKS; `reason` says why nothing was replayed, in a sentence without its
    end,
    and `remedy` what to record for a replay, if anything helps. `step_ns` is what figures are a share of: a step;
    with GPU_TIME the GPU's work of a step, or `per` recording, of all that was recorded. It is the step without
    recording where `is_unrecorded`, or an upper limit of it.

    Of a replay: `factors` are the lowest and the highest share of the recorded host time that was replayed;
    `spread_ns` is how far the mean of the recorded steps may be off; `fits` is false where no factor gives the
    unrecorded step. `host_times_error` is by which share of that step the replay misses it with the host's times
    by phase, None without such times; where it is too large, they are not used.
    """

    fixes: tuple[Fix, ...] = ()
    silent: tuple[Silent, ...] = ()
    unjudged: tuple[str, ...] = ()
    kind: str = REPLAY
    reason: str = ""
    remedy: str = ""
    per: str = STEP
    step_ns: float = 0
    is_unrecorded: bool = False
    is_upper_limit: bool = False
    recorded_step_ns: float = 0
    fits: bool = True
    steps: int = 0
    spread_ns: float = 0
    factors: tuple[float, float] | None = None
    replay_error: float | None = None
    host_times_error: float | None = None

    @property
    def host_times_used(self) -> bool:
        """Whether the figures are of the host's times by phase."""
        return self.host_times_error is not None and abs(self.host_times_error) <= NEAREST_STEP
