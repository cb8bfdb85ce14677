"""Communication by module: of every range, collective and GPU the time, its hidden and exposed parts, and bytes.

Times are given to kernels as `exchanges` says, so rows sum to the communication of `overlap`, GPU by GPU, and
their hidden parts to its hidden part.

Waiting for other ranks is separated from transferring: the n-th collective of a kind and group on each rank is
one. It transfers once its last rank has started. Until then those that came before wait: from each rank's start to
the last rank's start, if all are on one clock. Of ranks with clocks of their own the one that needed least time
waited least; what others needed more is their waiting. Where no report says which ranks a collective joins, the
n-th ones of all ranks are one if they end together. SendRecv kernels pair with one peer after another, so their
waiting cannot be separated from transferring.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..support.small_numbers import counted, each_row, grouped_rows, rows_of_each
from ..trace import Bools, Columns, Int64s, Path
from .exchanges import COLLECTIVES, OTHER, SEND_RECV, Exchanges, listed_ranks

UNKNOWN = -1
#: Kernels of one collective end within this time on all ranks, ns, besides what clocks drift in the time since the
#: last one; and for which share of them that must hold.
TOGETHER_NS, MOST_DRIFT, MOSTLY_TOGETHER = 200_000, 1e-4, 0.98
ONE_RANK = "only one of its ranks is here"
UNNAMED = "its kernels' names do not say what they exchange"
MIXED = "a SendRecv kernel waits and transfers at once"
SOME_RANKS = "not all of its ranks are here"
SAME_NAME = "several groups of ranks have one name"
NO_GROUP = "the report does not say which ranks it joins"
OTHER_RUNS = "the reports are not of one run's ranks"
UNEVEN = "its ranks have different numbers of them"
APART = "what would be one collective runs at different times on its ranks"


@dataclass(frozen=True, slots=True)
class Parts(Columns):
    """Columns by kernel that communicates: its rank, collective, group (-1 where unknown), its ranks, and time."""

    rank: Int64s
    collective: Int64s
    group: Int64s
    ranks: Int64s
    start_ns: Int64s
    end_ns: Int64s


def parts_of(exchanges: Exchanges, world_size: int = 0) -> Parts:
    """Return what aligning needs of kernels; a group whose ranks are not listed may be all of `world_size`."""
    kernels = exchanges.kernels
    is_unnamed = np.array([not name for name in exchanges.groups] or [True])[kernels.group]
    group = np.where(is_unnamed, -1, kernels.group)
    listed = np.array([listed_ranks(name) for name in exchanges.groups] or [0])[kernels.group]
    ranks = np.maximum(kernels.ranks, np.where(listed > 0, listed, world_size))
    return Parts(kernels.gpu, kernels.collective, group, ranks, kernels.start_ns, kernels.end_ns)


@dataclass(frozen=True, slots=True)
class Aligned:
    """By kernel how long it waited, ns, or UNKNOWN, and whether its rank was the last; by collective why not.

    `held_ns` is, of those that were last, how long the first of the others waited for them.
    """

    waiting_ns: Int64s
    last: Bools
    held_ns: Int64s
    undecided: tuple[tuple[str, str], ...]


def align(parts: Parts, *, one_clock: bool = True, one_run: bool = True) -> Aligned:
    """Align the collectives of all ranks; those of different runs are left undecided."""
    waiting = np.full(len(parts), UNKNOWN, np.int64)
    last = np.zeros(len(parts), np.bool_)
    held = np.zeros(len(parts), np.int64)
    undecided: dict[tuple[str, str], None] = {}
    ranks_here = len(np.unique(parts.rank))
    for (kind, _), rows in rows_of_each(parts.collective, parts.group):
        rows = rows[np.lexsort((parts.start_ns[rows], parts.rank[rows]))]  # one rank after another
        collective = COLLECTIVES[kind]
        expected = int(parts.ranks[rows].max())
        ranks, counts = counted(parts.rank[rows])
        is_even = counts.min() == counts.max()
        reason = _reason(collective, len(ranks), expected, ranks_here, is_even) if one_run else OTHER_RUNS
        if reason == NO_GROUP and is_even and len(ranks) == ranks_here and not one_clock:
            reason = "" if _end_together(parts.end_ns[rows].reshape(len(ranks), -1)) else NO_GROUP
        if not reason:
            table = rows.reshape(len(ranks), -1)
            start = parts.start_ns[table]
            end = parts.end_ns[table]
            reason = APART if one_clock and not (start.max(0) < end.min(0)).all() else ""
        if reason:
            undecided[collective, reason] = None
            continue
        waited = start.max(0) - start if one_clock else (end - start) - (end - start).min(0)
        waiting[table] = waited
        ends = table[waited.argmin(0), np.arange(table.shape[1])]
        last[ends] = True
        held[ends] = waited.max(0)
    return Aligned(waiting, last, held, tuple(undecided))


def _end_together(end_ns: Int64s) -> bool:
    """Return whether the n-th kernels of all ranks end at one moment, so that they are one collective's.

    `end_ns` is (ranks, kernels). Each rank has a clock of its own, so the times from one end to the next are
    compared: those of one collective were seen to differ by 120 µs at most, those of different ones mostly by
    more than a millisecond (reports/h200/several_gpus.md).
    """
    since_last_ns = np.diff(end_ns, axis=1)
    apart_ns = np.ptp(since_last_ns, axis=0)
    near = apart_ns <= TOGETHER_NS + MOST_DRIFT * since_last_ns.max(0)
    return bool(len(near) and near.mean() >= MOSTLY_TOGETHER)


def _reason(collective: str, present: int, expected: int, ranks_here: int, is_even: bool) -> str:
    """Return the reason that the collective cannot be aligned, or "" if it can."""
    if collective in (SEND_RECV, OTHER):
        return MIXED if collective == SEND_RECV else UNNAMED
    if present < 2 or present < expected:
        return ONE_RANK if present < 2 else SOME_RANKS
    if present > expected > 0:
        return SAME_NAME
    if not expected and ranks_here > 2:
        return NO_GROUP
    return "" if is_even else UNEVEN


@dataclass(frozen=True, slots=True)
class Sums:
    """Times, ns, and bytes of some kernels that communicate.

    `total_ns` sums their durations, `time_ns` what they are given of the union, `hidden_ns` its part while compute
    ran. `waiting_ns` is of `aligned_ns`, the durations of those whose waiting is known. `message_bytes` and
    `bus_bytes` are of `sized_ns`, the transferring of those whose size is known.
    """

    count: int = 0
    total_ns: int = 0
    time_ns: int = 0
    hidden_ns: int = 0
    aligned_ns: int = 0
    waiting_ns: int = 0
    message_bytes: int = 0
    bus_bytes: float = 0.0
    sized_ns: int = 0

    @property
    def exposed_ns(self) -> int:
        """What no compute hides."""
        return self.time_ns - self.hidden_ns

    @property
    def bus_bytes_per_s(self) -> float | None:
        """The bus bandwidth, bytes per second; None where sizes are unknown."""
        return self.bus_bytes / (self.sized_ns / 1e9) if self.bus_bytes and self.sized_ns else None


@dataclass(frozen=True, slots=True)
class CommunicationRow:
    """One range, phase, collective and GPU; `root_or_peer` is the rank that all its kernels name, or None."""

    path: Path
    phase: str
    collective: str
    gpu: str
    sums: Sums
    root_or_peer: int | None


@dataclass(frozen=True, slots=True)
class LastRow:
    """How often a GPU was the last of all ranks in a collective, and how long the first waited for it then, ns."""

    collective: str
    gpu: str
    count: int
    exchanges: int
    held_ns: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """One measured step on one GPU; a GPU's steps count from 0."""

    step: int
    gpu: str
    sums: Sums


@dataclass(frozen=True, slots=True)
class Communication:
    """Rows by exposed time, longest first; sums by GPU and step; the last ranks; and rows with unknown waiting.

    `of_those_here`: waiting is among the ranks present, as no report has the number of ranks of some collectives.
    """

    rows: tuple[CommunicationRow, ...]
    gpus: dict[str, Sums]
    steps: tuple[StepRow, ...]
    last: tuple[LastRow, ...]
    undecided: tuple[tuple[str, str], ...]
    of_those_here: bool


def communicated(
    held: Exchanges, *, one_clock: bool = True, one_run: bool = True, world_size: int = 0
) -> Communication:
    """Align the ranks' collectives if they are of one run, and add up those that were asked for.

    Several reports are not on one clock. A group whose ranks are not listed may be the whole job, of `world_size`.
    """
    kernels = held.kernels
    parts = parts_of(held, world_size)
    aligned = align(parts, one_clock=one_clock, one_run=one_run)

    duration = parts.end_ns - parts.start_ns
    is_aligned = aligned.waiting_ns >= 0
    sized = kernels.bus_bytes >= 0
    waiting = np.where(is_aligned, aligned.waiting_ns, 0)
    columns: tuple[NDArray[Any], ...] = (  # one for each field of Sums
        np.ones(len(kernels), np.int64),
        duration,
        kernels.time_ns,
        kernels.hidden_ns,
        np.where(is_aligned, duration, 0),
        waiting,
        np.maximum(kernels.message_bytes, 0),
        np.where(sized, kernels.bus_bytes, 0.0),
        np.where(sized, duration - waiting, 0),
    )

    def sums(rows: Int64s, *keys: Int64s) -> dict[tuple[int, ...], Sums]:
        """Add up the kernels at these rows that agree in all keys; in the order of the keys."""
        distinct_keys, group = grouped_rows(*(key[rows] for key in keys))
        rows = rows[np.argsort(group, kind="stable")]
        first = np.searchsorted(np.sort(group), np.unique(group))
        figures = zip(*(np.add.reduceat(column[rows], first).tolist() for column in columns), strict=True)
        each_key = each_row(*distinct_keys)
        return {key: Sums(*values) for key, values in zip(each_key, figures, strict=True)}

    chosen = np.flatnonzero(kernels.matching)
    stepped = chosen[kernels.step[chosen] >= 0]
    named: dict[tuple[int, ...], set[int]] = defaultdict(set)
    keys = kernels.place, kernels.collective, kernels.gpu
    for *key, rank in zip(*(column[chosen].tolist() for column in (*keys, kernels.root_or_peer)), strict=True):
        named[tuple(key)].add(rank)
    rows = [
        CommunicationRow(
            *held.places[key[0]],
            COLLECTIVES[key[1]],
            held.gpus[key[2]],
            of_row,
            max(named[key]) if len(named[key]) == 1 and min(named[key]) >= 0 else None,
        )
        for key, of_row in sums(chosen, *keys).items()
    ]
    # Who was last in the aligned collectives; those of equal starts count for the first of them.
    ends = np.flatnonzero(aligned.last & kernels.matching)
    last = []
    for (kind, gpu), of_gpu in rows_of_each(kernels.collective[ends], kernels.gpu[ends]):
        of_kind = int((kernels.collective[ends] == kind).sum())
        held_ns = int(aligned.held_ns[ends[of_gpu]].sum())
        last.append(LastRow(COLLECTIVES[kind], held.gpus[gpu], len(of_gpu), of_kind, held_ns))
    by_step = sums(stepped, kernels.step, kernels.gpu).items()
    return Communication(
        rows=tuple(sorted(rows, key=lambda row: (-row.sums.exposed_ns, -row.sums.time_ns, row.path, row.gpu))),
        gpus={held.gpus[gpu]: of_gpu for (gpu,), of_gpu in sums(chosen, kernels.gpu).items()},
        steps=tuple(StepRow(step, held.gpus[gpu], of_step) for (step, gpu), of_step in by_step),
        last=tuple(sorted(last, key=lambda row: -row.held_ns)),
        undecided=aligned.undecided,
        of_those_here=bool(((aligned.waiting_ns >= 0) & (parts.ranks == 0)).any()),
    )
