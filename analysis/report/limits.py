"""What limits each phase of a step, decided here alone: the GPU, copies, communication, or a cause of idle time.

    busy ≥ 90% of the time ─► the GPU, or what fills half of its busy time
    busy < 75% of the time ─► the cause with half of the idle time, or none alone
    between                ─► no single limit

Shares are without recording where that is known. If the bounds of that disagree, nothing is decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..vocabulary import PHASES
from .account import COMMUNICATION, COPY, IDLE, KINDS, Account, Part
from .evidence import RECORDING
from .recording import GPU_BOUND_FROM, Recording

#: The share of its time for which a GPU works, below which a cause of idle time limits it, and the share of the
#: idle time that this cause has; and the share of the busy time in which only one kind of work runs.
IDLE_LIMITS_BELOW, CAUSE_FROM, FILLED_FROM = 0.75, 0.50, 0.50
LAUNCHING, UNKNOWN, LAUNCH_BOUND, UNDECIDED = "launching", "unknown", "launch-bound", "undecided"
#: Causes of idle time after the next work was launched: the CPU is not waited for.
AFTER_LAUNCH = ("between kernels", "latency", "queue", "no more work", UNKNOWN)
STEP, ALL = "step", "all work"


@dataclass(frozen=True, slots=True)
class BusyRow:
    """How long all GPUs together were busy in one phase, in the steps (`step`), or without steps in `all work`.

    Sums over the counted steps: `span_ns` is the time that has the phase, of work or of the range open while idle.
    """

    phase: str
    span_ns: float
    busy_ns: float  # of this, when any work ran
    waiting_ns: float  # of this, idle before the next work's launch had returned
    kernels: float  # launched, as elsewhere per step or in total
    gpus: int
    verdict: str


def busy_rows(
    account: Account | None, kernels: dict[str, float], recording: Recording | None, *, per_step: bool
) -> tuple[BusyRow, ...]:
    """Return a row for each phase with time, and one for the step; `kernels` counts launches by phase.

    Empty for a CPU, which waits for no launches. With `per_step` times are those of a step.
    """
    if account is None or account.on_cpu:
        return ()
    steps = len(account.counted) if per_step else 1
    rows = []
    for name, phases in _groups(account):
        parts = [(gpu.gpu, part) for gpu in account.gpus for part in gpu.parts if part.phase in phases]
        if parts:
            rows.append(_row(name, [part for _, part in parts], len({gpu for gpu, _ in parts}), recording, steps))
    launches = {**kernels, STEP: sum(kernels.values()), ALL: sum(kernels.values())}
    return tuple(
        BusyRow(
            row.phase, row.span_ns, row.busy_ns, row.waiting_ns, launches.get(row.phase, 0), row.gpus, row.verdict
        )
        for row in rows
    )


def _groups(account: Account) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each row, and the phases that it has."""
    for phase in PHASES:
        yield phase, (phase,)
    if not account.phases:
        yield (ALL if account.per == RECORDING else STEP), PHASES


def _row(name: str, parts: list[Part], gpus: int, recording: Recording | None, steps: int) -> BusyRow:
    by_kind = dict.fromkeys(KINDS, 0)
    causes: dict[str, int] = {}
    for part in parts:
        if part.kind in by_kind:
            by_kind[part.kind] += part.total_ns
        if part.kind == IDLE:
            causes[part.what] = causes.get(part.what, 0) + part.total_ns
    span_ns = sum(by_kind.values())
    busy_ns = span_ns - by_kind[IDLE]
    waiting_ns = sum(ns for cause, ns in causes.items() if cause not in AFTER_LAUNCH)
    busy_share = busy_ns / span_ns if span_ns else 1.0
    unrecorded = recording.busy_between(name, busy_share) if recording else None
    limits = {limit(share, by_kind, causes) for share in unrecorded or (busy_share,)}
    verdict = limits.pop() if len(limits) == 1 else UNDECIDED
    return BusyRow(name, span_ns / steps, busy_ns / steps, waiting_ns / steps, 0, gpus, verdict)


def limit(busy_share: float, by_kind: dict[str, int], causes: dict[str, int]) -> str:
    """Return the limit of some time of GPUs, which work for this share of it.

    `by_kind` and `causes` are their times by kind of state and by cause of idle time, ns.
    """
    busy_ns = sum(ns for kind, ns in by_kind.items() if kind != IDLE)
    if busy_share >= GPU_BOUND_FROM:
        fill_ns, filled = max(
            (by_kind.get(COPY, 0), "copy-bound"), (by_kind.get(COMMUNICATION, 0), "communication-bound")
        )
        return filled if busy_ns and fill_ns >= FILLED_FROM * busy_ns else "GPU-bound"
    cause = max(causes, key=lambda name: causes[name], default=UNKNOWN)
    is_caused = cause != UNKNOWN and causes[cause] >= CAUSE_FROM * sum(causes.values())
    if busy_share >= IDLE_LIMITS_BELOW or not is_caused:
        return UNDECIDED
    return LAUNCH_BOUND if cause == LAUNCHING else cause
