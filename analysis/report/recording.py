"""What recording cost, as data: a step with and without it, and how busy the GPU is without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The smallest share of its recorded time that a step was seen to take without recording, rounded down.
LEAST_FACTOR = 0.3
#: The smallest share of its timed time that a step was seen to take alone, rounded down.
LEAST_OF_TIMED = 0.6
#: The share of a span for which a GPU works, from which it sets the pace.
GPU_BOUND_FROM = 0.90
NO_MARK = "How long a step takes without recording is not known."


@dataclass(frozen=True, slots=True)
class PhaseAlone:
    """A phase without recording: its GPU span, ns, and the share of it that a GPU works."""

    span_ns: float
    busy_share: float


@dataclass(frozen=True, slots=True)
class Recording:
    """A step while recorded, and without recording as far as that was measured beside it, ns.

    `reason` says why the step without recording is not told, empty where it is `trusted`. `low` and `high` are the
    bounds of the timed steps, `timed_ns`, and `steps` their number, 0 for a time given by hand. `pauses_ns` is how
    long the GPU was idle outside of all phases for more than 1 ms at a time, in a recorded step. `host_ns` is the
    time of each phase on the host, of a step in which it waited for no queue. `where` the steps were timed: before
    a capture of nsys or after a recording, empty for a time given by hand. A profiler that `is_detached` had left
    the GPU's driver when steps were timed.
    """

    step_ns: float
    busy_ns: float | None
    unrecorded_step_ns: float | None = None
    unrecorded_low_ns: float | None = None
    unrecorded_high_ns: float | None = None
    clock: str = ""
    steps: int = 0
    phases: Mapping[str, PhaseAlone] = field(default_factory=dict)
    trusted: bool = False
    reason: str = NO_MARK
    pauses_ns: float | None = None
    host_ns: Mapping[str, float] = field(default_factory=dict)
    timed_ns: tuple[float, ...] = ()
    where: str = ""
    is_detached: bool = False

    @property
    def alone_ns(self) -> float | None:
        """How long a step takes without recording, at most if that `is_upper_limit`; None unless it is trusted."""
        return self.unrecorded_step_ns if self.trusted else None

    @property
    def alone_busy_share(self) -> float | None:
        """For which share of that step a GPU works, or at least; None where either is not known."""
        return min(1.0, self.busy_ns / self.alone_ns) if self.alone_ns and self.busy_ns is not None else None

    @property
    def varies(self) -> bool:
        """Whether the timed steps differ so much that the step's time is given as a range."""
        if not self.unrecorded_step_ns or self.unrecorded_high_ns is None or self.unrecorded_low_ns is None:
            return False
        return self.unrecorded_high_ns - self.unrecorded_low_ns > 0.2 * self.unrecorded_step_ns

    @property
    def is_upper_limit(self) -> bool:
        """Whether the step without recording takes at most the time shown, and may take less."""
        return self.alone_busy_share is not None and self.is_limit(self.alone_busy_share)

    def is_limit(self, busy_share: float) -> bool:
        """Return whether a timed span is an upper limit, if a GPU works for this share of it.

        nsys slows launches before its capture begins too, and PyTorch's profiler after it has ended, unless it was
        detached. On an H200 (unrecorded.md and host_times.md in reports/h200), steps in which a GPU works for 90%
        or more were timed within 2% of the program alone, one within 4%, as the GPU sets their pace; others at
        0.87 to 1.60 times its time. So a time is exact if the GPU sets the pace, else a limit. On a CPU no
        profiler listens any more.
        """
        is_slowed = bool(self.where) and self.clock == "gpu" and not self.is_detached
        return is_slowed and busy_share < GPU_BOUND_FROM

    @property
    def least_ns(self) -> float | None:
        """The least that the step without recording may take; None where it is not known."""
        return self.alone_ns * LEAST_OF_TIMED if self.alone_ns and self.is_upper_limit else self.alone_ns

    def busy_share(self, phase: str, recorded_share: float) -> float:
        """Return the most that a GPU may be busy in a phase (or the `step`) without recording.

        `recorded_share` is its share while recorded, which recording only makes smaller.
        """
        between = self.busy_between(phase, recorded_share)
        return between[1] if between else _most_busy(recorded_share)

    def busy_between(self, phase: str, recorded_share: float) -> tuple[float, float] | None:
        """Return the least and the most a GPU is busy in a phase (or the `step`) unrecorded; None if unknown."""
        if not self.alone_ns:
            return None
        if phase == "step" and self.busy_ns is not None:
            longest_ns = self.unrecorded_high_ns or self.alone_ns
            shortest_ns = self.unrecorded_low_ns or self.alone_ns
            least = min(1.0, self.busy_ns / longest_ns)
            most = min(1.0, self.busy_ns / shortest_ns)
        elif phase in self.phases and not self.varies:
            least = most = self.phases[phase].busy_share
        else:
            return recorded_share, _most_busy(recorded_share)
        is_limit = self.is_upper_limit if phase == "step" else self.is_limit(least)
        return least, min(1.0, most / LEAST_OF_TIMED) if is_limit else most


def _most_busy(recorded_share: float) -> float:
    """Return the most that a GPU may be busy without recording, given its share while recorded."""
    return min(1.0, recorded_share / LEAST_FACTOR)


def as_json(recording: Recording | None) -> dict[str, Any] | None:
    """Return `report.recording` of JSON; docs/json.md describes it."""
    if recording is None:
        return None
    return {
        "step_ns": recording.step_ns,
        "unrecorded_step_ns": recording.unrecorded_step_ns,
        "unrecorded_low_ns": recording.unrecorded_low_ns,
        "unrecorded_high_ns": recording.unrecorded_high_ns,
        "clock": recording.clock,
        "steps": recording.steps,
        "phases": {
            name: {"span_ns": phase.span_ns, "busy_share": phase.busy_share}
            for name, phase in recording.phases.items()
        },
        "trusted": recording.trusted,
        "reason": recording.reason,
        "factors": None,
        "pauses_ns": recording.pauses_ns,
        "is_upper_limit": recording.is_upper_limit,
    }
