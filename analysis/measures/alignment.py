"""Separate waiting for other ranks from transferring: the n-th collective of a kind and group on each rank is one.

A collective transfers once its last rank has started. Until then those that came before wait: from each rank's
start to the last rank's start, if all are on one clock. Of ranks with clocks of their own the one that needed
least time waited least; what others needed more is their waiting. SendRecv kernels pair with one peer after
another, so their waiting cannot be separated from transferring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..support.small_numbers import counted, distinct
from ..trace import Bools, Columns, Int64s
from .collectives import COLLECTIVES, OTHER, SEND_RECV

UNKNOWN = -1
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


@dataclass(frozen=True, slots=True)
class Aligned:
    """By kernel how long it waited, ns, or UNKNOWN, and whether its rank was the last; by collective why not.

    `held_ns` is, of those that were last, how long the first of the others waited for them.
    """

    waiting_ns: Int64s
    last: Bools
    held_ns: Int64s
    undecided: tuple[tuple[str, str], ...]


def not_aligned(parts: Parts) -> Aligned:
    """Leave all undecided, for reports of different runs."""
    kinds = np.unique(parts.collective).tolist()
    undecided = tuple((COLLECTIVES[kind], OTHER_RUNS) for kind in kinds)
    none = np.zeros(len(parts), np.int64)
    return Aligned(none + UNKNOWN, none > 0, none, undecided)


def align(parts: Parts, *, one_clock: bool = True) -> Aligned:
    """Align the collectives of all ranks."""
    waiting, last = np.full(len(parts), UNKNOWN, np.int64), np.zeros(len(parts), np.bool_)
    held = np.zeros(len(parts), np.int64)
    undecided: dict[tuple[str, str], None] = {}
    count = len(np.unique(parts.rank))
    for rows in _kinds(parts):
        table = _by_rank(parts, rows)
        reason = _reason(parts, rows, table, count)
        if table is None or reason:
            undecided[COLLECTIVES[parts.collective[rows[0]]], reason] = None
            continue
        start, end = parts.start_ns[table], parts.end_ns[table]
        if one_clock and not (start.max(0) < end.min(0)).all():
            undecided[COLLECTIVES[parts.collective[rows[0]]], APART] = None
            continue
        waited = start.max(0) - start if one_clock else (end - start) - (end - start).min(0)
        waiting[table] = waited
        ends = table[waited.argmin(0), np.arange(table.shape[1])]
        last[ends], held[ends] = True, waited.max(0)
    return Aligned(waiting, last, held, tuple(undecided))


def _kinds(parts: Parts) -> Iterator[Int64s]:
    """Yield the rows of each collective and group, in the order of their start."""
    order = np.lexsort((parts.start_ns, parts.group, parts.collective))
    kind, group = parts.collective[order], parts.group[order]
    changes = np.flatnonzero((kind[1:] != kind[:-1]) | (group[1:] != group[:-1])) + 1
    yield from (rows for rows in np.split(order, changes) if len(rows))


def _by_rank(parts: Parts, rows: Int64s) -> Int64s | None:
    """Return the rows with a row per rank, int64 (ranks, collectives); None if ranks have different numbers."""
    ranks, counts = counted(parts.rank[rows])
    if counts.min() < counts.max():
        return None
    return rows[np.argsort(parts.rank[rows], kind="stable")].reshape(len(ranks), -1)


def _reason(parts: Parts, rows: Int64s, table: Int64s | None, ranks: int) -> str:
    """Return why these cannot be aligned; empty if they can."""
    collective = COLLECTIVES[parts.collective[rows[0]]]
    if collective in (SEND_RECV, OTHER):
        return MIXED if collective == SEND_RECV else UNNAMED
    present, expected = len(distinct(parts.rank[rows])), int(parts.ranks[rows].max())
    if present < 2 or present < expected:
        return ONE_RANK if present < 2 else SOME_RANKS
    if present > expected > 0:
        return SAME_NAME
    if not expected and ranks > 2:
        return NO_GROUP
    return UNEVEN if table is None else ""
