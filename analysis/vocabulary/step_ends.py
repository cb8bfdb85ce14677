"""Which optimizer's updates end steps, and how many steps are warm-up: the same while recording and afterwards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

#: What optimizers are called together that update while a backward runs.
IN_BACKWARD = "backward in which optimizers update"
#: How the sentences on a block begin in which no step ended.
NO_STEP = "No step boundary was found"


def may_go_on(
    name: str, updates: Mapping[str, Sequence[int]], optimizers: Sequence[str], inside: Collection[str]
) -> bool:
    """Return whether another optimizer, yet to update (again), may turn out to end a step that this one has ended.

    `updates`, `optimizers` and `inside` are as in `ending_optimizer`.
    """
    moments = updates[name]
    if optimizers:
        later = optimizers[optimizers.index(name) + 1 :] if name in optimizers else ()
        updated = {*updates, *inside}
        return len(moments) == 1 and any(other not in updated for other in later)
    if len(moments) < 2:
        return False
    return any(len(other) == 1 and other[0] > moments[-2] for other in updates.values())


def ending_optimizer(
    updates: Mapping[str, Sequence[int]], optimizers: Sequence[str], in_backward: Collection[str]
) -> str:
    """Return the optimizer whose updates end steps, empty if none updated.

    That is the last one of `optimizers` that updated; where none was given, of those that updated at least twice
    (or else of all) the one whose first update came last. `updates` are moments by optimizer, in order of the
    first ones; those `in_backward` are `IN_BACKWARD` there.
    """
    names = [IN_BACKWARD if name in in_backward and name not in updates else name for name in optimizers]
    given_and_updated = [name for name in names if name in updates]
    repeated = [name for name, moments in updates.items() if len(moments) > 1]
    return (given_and_updated or repeated or [*updates])[-1] if updates else ""


def warm_up_steps(
    requested: int, updates: Mapping[str, Sequence[int]], ends: Sequence[int], fewest: int = 0
) -> int:
    """Return how many steps are warm-up, given how many were asked for and when steps ended, sorted.

    It lasts at least until every optimizer that updates more than once has updated once. Of fewer steps than
    `fewest`, one is warm-up.
    """
    if len(ends) < fewest:
        requested = min(requested, 1)
    last = ends[-1] if len(ends) else 0
    first_updates = [moments[0] for moments in updates.values() if len(moments) > 1 and moments[0] <= last]
    if not requested or not first_updates:
        return requested
    return max(requested, sum(end < max(first_updates) for end in ends) + 1)


def no_step_text(unused: Sequence[str], *, from_first_call: bool, is_recording: bool = False) -> str:
    """Return the sentences on a block in which no step ended, given the optimizers that never updated.

    The one step is the whole block, or where nothing trains, what follows the first call of a model. Whether its
    calls are similar, so that each is a step, only the analysis knows, not who is recording.
    """
    calls = " and ".join(f"{name}.step()" for name in unused)
    were = "were" if len(unused) > 1 else "was"
    reason = f"{calls} {were} never called" if calls else "no optimizer updated, and step() was never called"
    block = "All from the first call of a model on" if from_first_call else "The whole run"
    calls_too = ", or each call if they are similar" if from_first_call and is_recording else ""
    return (
        f"{NO_STEP}: {reason}. {block} counts as one step{calls_too}; call step() of "
        "nvtx_kernels.profile after each iteration."
    )
