"""Find the launch of a piece of work: by process and correlation id, for ids repeat between processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace import Bools, Int32s, Int64s

_ID_BITS = 44


@dataclass(frozen=True, slots=True)
class LaunchKeys:
    """Sorted (process, correlation id) keys and the launch row of each; one row where several exist."""

    keys: Int64s
    rows: Int64s

    @classmethod
    def of(cls, process: Int32s, correlation: Int64s, foreign: Bools, start_ns: Int64s) -> LaunchKeys:
        """Index the launches.

        Of several rows with one key, a CUDA runtime or driver row comes before one of a `foreign` event
        class (an MPI file has class 67 rows next to the runtime's), and then the earliest.
        """
        key = _key(process, correlation)
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        if (ordered[1:] == ordered[:-1]).any():
            order = np.lexsort((start_ns, foreign, key))
            order = order[np.r_[True, key[order][1:] != key[order][:-1]]]
            ordered = key[order]
        known = ordered >= 0
        return cls(ordered[known], order[known])

    def find(self, process: Int32s, correlation: Int64s) -> Int32s:
        """Return the launch row of each piece of work; -1 if the report has none: int32 (work,)."""
        key = _key(process, correlation)
        if not len(self.keys):
            return np.full(len(key), -1, np.int32)
        at = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where(self.keys[at] == key, self.rows[at], -1).astype(np.int32)


def _key(process: Int32s, correlation: Int64s) -> Int64s:
    """Pack the pair; an id outside any that CUDA gives out (32 bits) has no key."""
    possible = (correlation >= 0) & (correlation < 1 << _ID_BITS)
    return np.where(possible, process.astype(np.int64) << _ID_BITS | np.where(possible, correlation, 0), -1)
