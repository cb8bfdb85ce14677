"""What recording cost, as data: a step with and without it, and how busy the GPU is without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The smallest share of its recorded time that a step was seen to take without recording, rounded down.
LEAST_FACTOR = 0.3
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
    time of each phase on the host, of a step in which it waited for no queue.
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

    @property
    def varies(self) -> bool:
        """Whether the timed steps differ so much that the step's time is given as a range."""
        if not self.unrecorded_step_ns or self.unrecorded_high_ns is None or self.unrecorded_low_ns is None:
            return False
        return self.unrecorded_high_ns - self.unrecorded_low_ns > 0.2 * self.unrecorded_step_ns

    def busy_share(self, phase: str, recorded_share: float) -> float:
        """Return the most that a GPU may be busy in a phase (or the `step`) without recording.

        `recorded_share` is its share while recorded, which recording only makes smaller.
        """
        at_most = min(1.0, recorded_share / LEAST_FACTOR)
        if not self.trusted or not self.unrecorded_step_ns:
            return at_most
        if phase == "step" and self.busy_ns is not None:
            return self.busy_ns / (self.unrecorded_low_ns or self.unrecorded_step_ns)
        return self.phases[phase].busy_share if phase in self.phases and not self.varies else at_most

    def busy_between(self, phase: str, recorded_share: float) -> tuple[float, float] | None:
        """Return the least and the most a GPU is busy in a phase (or the `step`) unrecorded; None if unknown."""
        if not self.trusted or not self.unrecorded_step_ns:
            return None
        if phase == "step" and self.busy_ns is not None:
            longest_ns = self.unrecorded_high_ns or self.unrecorded_step_ns
            return min(1.0, self.busy_ns / longest_ns), min(1.0, self.busy_share(phase, recorded_share))
        if phase in self.phases and not self.varies:
            return self.phases[phase].busy_share, self.phases[phase].busy_share
        return recorded_share, self.busy_share(phase, recorded_share)


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
    }
