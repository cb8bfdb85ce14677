"""The GPU's work of some steps alone: how long each piece of it lasts, and whether it is still there.

A change of what the GPU does is another `GpuTime` of the same work. A `Timeline` is one with a host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..trace import Bools, Int8s

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Columns of the GPU's work: its phase (a position in PHASES), its duration, ns, and whether it is kept."""

    work_phase: Int8s
    duration_ns: Floats
    kept: Bools

    def without(self, work: Bools) -> Self:
        """Return the same without some work."""
        return replace(self, kept=self.kept & ~work)

    def without_part(self, work: Bools) -> Self:
        """Return the same without a part of the program that all of some work is of."""
        return self.without(work)

    def lasting(self, duration_ns: Floats) -> Self:
        """Return the same with other durations of the work, ns."""
        return replace(self, duration_ns=duration_ns)

    @property
    def left_ns(self) -> float:
        """How long the work that is kept takes, one piece after another, ns."""
        return float(self.duration_ns[self.kept].sum())
