"""Two accounts of a step, state by state: the differences add up to that of the step's time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

from ..report.account import IDLE, Account, Cause, State
from .changes import Change, Comparison


@dataclass(frozen=True, slots=True)
class StateChange(Change):
    """What a step, or all that was recorded, has more or less of in B: its key is the state.

    `cause` says where most of some idle time is, on the side that has more of it.
    """

    key: State
    cause: Cause | None = None


def states(comparison: Comparison) -> list[StateChange]:
    """Return the difference of both accounts by state, the largest first; [] if they are not of the same.

    The times are means of a GPU in the steps that count, as `rank` shows them, and add up to the step time.
    """
    accounts = comparable(comparison)
    if accounts is None:
        return []
    sums = [states_ns(account) for account in accounts]
    causes = [_causes(account) for account in accounts]
    changes = []
    for state in dict.fromkeys([*sums[0], *sums[1]]):
        a_ns, b_ns = (float(side.get(state, 0)) for side in sums)
        verdict, spreads_ns = comparison.steps.of_states([state])
        cause = causes[b_ns > a_ns].get(state)
        changes.append(StateChange(state, a_ns, b_ns, 1, 1, *spreads_ns, verdict, cause=cause))
    changes.sort(key=lambda row: (-abs(row.delta_ns), -row.a_ns, row.key))
    return changes


def comparable(comparison: Comparison) -> tuple[Account, Account] | None:
    """Return both accounts, of a step or both of all that was recorded; None where one lacks its parts."""
    a, b = comparison.a.account, comparison.b.account
    if a is None or b is None or not (a.gpus and b.gpus) or a.has_steps != b.has_steps:
        return None
    return (a, b) if comparison.per_step == a.has_steps else None


def states_ns(account: Account) -> dict[State, Fraction]:
    """Return the time in each state, a mean of the GPUs of a loop and of all counted steps, ns."""
    loops = [gpu.loop for gpu in account.gpus]
    steps = sum({gpu.loop: gpu.steps for gpu in account.gpus}.values())
    sums: dict[State, Fraction] = defaultdict(Fraction)
    for gpu in account.gpus:
        for part in gpu.parts:
            sums[part.state] += Fraction(part.total_ns, loops.count(gpu.loop) * steps)
    return sums


def _causes(account: Account) -> dict[State, Cause]:
    """Return each cause of idle time, of the GPU that has most of it."""
    of_all_gpus = [cause for gpu in account.gpus for cause in gpu.causes]
    of_all_gpus.sort(key=lambda cause: cause.total_ns)
    return {(IDLE, cause.cause): cause for cause in of_all_gpus}
