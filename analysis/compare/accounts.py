"""Two accounts of a step, state by state: the differences add up to that of the step's time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

from ..report.account import IDLE, Account, Cause, State
from .change import Change, by_size
from .sides import Steps


@dataclass(frozen=True, slots=True)
class StateChange(Change):
    """What a step, or all that was recorded, has more or less of in B: its key is the state.

    `cause` says where most of some idle time is, on the side that has more of it.
    """

    key: State
    cause: Cause | None = None


def in_order(steps: Steps, accounts: tuple[Account, Account]) -> list[StateChange]:
    """Return the difference of both accounts by state, the largest first.

    The times are means of a GPU in the steps that count, as `rank` shows them, and add up to the step time.
    """
    sums_a, sums_b = map(states_ns, accounts)
    causes = [_causes(account) for account in accounts]
    changes = []
    for state in sums_a | sums_b:
        a_ns = float(sums_a.get(state, 0))
        b_ns = float(sums_b.get(state, 0))
        verdict, spreads_ns = steps.of_states([state])
        cause = causes[b_ns > a_ns].get(state)
        changes.append(StateChange(state, a_ns, b_ns, 1, 1, *spreads_ns, verdict, cause=cause))
    return by_size(changes)


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
