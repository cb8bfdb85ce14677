"""The account of a step by state, and where the idle time is."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from operator import attrgetter

from ..report.account import IDLE, Account, Cause, State


def states_ns(account: Account) -> dict[State, Fraction]:
    """Return the time in each state, a mean of the GPUs of a loop and of all counted steps, ns."""
    loops = [gpu.loop for gpu in account.gpus]
    steps = sum({gpu.loop: gpu.steps for gpu in account.gpus}.values())
    sums: dict[State, Fraction] = defaultdict(Fraction)
    for gpu in account.gpus:
        for part in gpu.parts:
            sums[part.state] += Fraction(part.total_ns, loops.count(gpu.loop) * steps)
    return sums


def cause_of(account: Account, state: State) -> Cause | None:
    """Return the cause of some idle time, of the GPU that has most of it; None of any other state."""
    causes = [cause for gpu in account.gpus for cause in gpu.causes if (IDLE, cause.cause) == state]
    return max(causes, key=attrgetter("total_ns"), default=None)
