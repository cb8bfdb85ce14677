"""Communication by module: of every range, collective and GPU the time, its hidden and exposed parts, and bytes.

Times are given to kernels as `exchanges` says, so rows sum to the communication of `overlap`, GPU by GPU, and
their hidden parts to its hidden part.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trace import Int64s, Path
from .alignment import Aligned, Parts, align, not_aligned
from .collectives import COLLECTIVES, listed_ranks
from .exchanges import Exchanges, Kernels


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
    """Rows by exposed time, longest first; sums by GPU and step; who was last; and of which waiting is unknown.

    `of_those_here` says that waiting is known of collectives whose number of ranks no report says.
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
    group = np.where(np.array([not name for name in held.groups] or [True])[kernels.group], -1, kernels.group)
    listed = np.array([listed_ranks(name) for name in held.groups] or [0])[kernels.group]
    ranks = np.maximum(kernels.ranks, np.where(listed > 0, listed, world_size))
    parts = Parts(kernels.gpu, kernels.collective, group, ranks, kernels.start_ns, kernels.end_ns)
    aligned = align(parts, one_clock=one_clock) if one_run else not_aligned(parts)
    chosen = np.flatnonzero(kernels.matching)
    stepped = np.flatnonzero(kernels.matching & (kernels.step >= 0))
    by_step = _sums(kernels, aligned, (kernels.step, kernels.gpu), stepped)
    return Communication(
        rows=_rows(held, aligned),
        gpus={held.gpus[gpu]: sums for (gpu,), sums in _sums(kernels, aligned, (kernels.gpu,), chosen).items()},
        steps=tuple(StepRow(step, held.gpus[gpu], sums) for (step, gpu), sums in by_step.items()),
        last=_last(held, aligned),
        undecided=aligned.undecided,
        of_those_here=bool(((aligned.waiting_ns >= 0) & (ranks == 0)).any()),
    )


def _sums(
    kernels: Kernels, aligned: Aligned, keys: tuple[Int64s, ...], rows: Int64s
) -> dict[tuple[int, ...], Sums]:
    """Add up the kernels at these rows that agree in all keys; in the order of the keys."""
    if not len(rows):
        return {}
    rows = rows[np.lexsort([key[rows] for key in keys[::-1]])]
    table = np.stack([key[rows] for key in keys])
    first = np.concatenate([[0], np.flatnonzero((table[:, 1:] != table[:, :-1]).any(0)) + 1])
    added = [np.add.reduceat(column[rows], first).tolist() for column in _to_add(kernels, aligned)]
    return {
        tuple(key): Sums(*values)
        for key, values in zip(table[:, first].T.tolist(), zip(*added, strict=True), strict=True)
    }


def _to_add(kernels: Kernels, aligned: Aligned) -> tuple[NDArray[Any], ...]:
    """Return a column for each field of Sums."""
    duration, is_aligned = kernels.end_ns - kernels.start_ns, aligned.waiting_ns >= 0
    waiting = np.where(is_aligned, aligned.waiting_ns, 0)
    sized = ~np.isnan(kernels.bus_bytes)
    return (
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


def _rows(held: Exchanges, aligned: Aligned) -> tuple[CommunicationRow, ...]:
    kernels = held.kernels
    chosen, keys = np.flatnonzero(kernels.matching), (kernels.place, kernels.collective, kernels.gpu)
    named: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for *key, rank in zip(*(column[chosen].tolist() for column in (*keys, kernels.root_or_peer)), strict=True):
        named[tuple(key)].add(rank)
    rows = (
        CommunicationRow(
            *held.places[place],
            COLLECTIVES[collective],
            held.gpus[gpu],
            of_row,
            _one(named[place, collective, gpu]),
        )
        for (place, collective, gpu), of_row in _sums(kernels, aligned, keys, chosen).items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.sums.exposed_ns, -row.sums.time_ns, row.path, row.gpu)))


def _one(ranks: set[int]) -> int | None:
    """Return the one known rank; None where there are several, or one is unknown."""
    return next(iter(ranks)) if len(ranks) == 1 and min(ranks) >= 0 else None


def _last(exchanged: Exchanges, aligned: Aligned) -> tuple[LastRow, ...]:
    """Return who was last in the aligned collectives; those of equal starts count for the first of them."""
    kernels, ends = exchanged.kernels, np.flatnonzero(aligned.last & exchanged.kernels.matching)
    rows = []
    for kind in np.unique(kernels.collective[ends]).tolist():
        of_kind = ends[kernels.collective[ends] == kind]
        for gpu in np.unique(kernels.gpu[of_kind]).tolist():
            of_gpu = of_kind[kernels.gpu[of_kind] == gpu]
            held = int(aligned.held_ns[of_gpu].sum())
            rows.append(LastRow(COLLECTIVES[kind], exchanged.gpus[gpu], len(of_gpu), len(of_kind), held))
    return tuple(sorted(rows, key=lambda row: -row.held_ns))
