"""Where a piece of work was launched: by its correlation id, or by its CUDA graph node's creation.

Correlation ids repeat between processes. A kernel of a replay has the id of its node (`graphNodeId`, with
`--cuda-graph-trace=node`). A cloned node, such as those of an instantiated graph, has two rows; the second
points to its original (nsys 2025.3). The creation at the end of that chain counts. Ids of nodes repeat between
processes too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..support.small_numbers import each_row, grouped_rows
from ..support.threads import in_pieces
from ..trace import Captures, Int32s, Int64s
from .columns import Columns

_ID_BITS = 44
# A table by id, faster than a search, may have this many entries for each id.
_TABLE_PER_KEY = 8

#: Stands for the id of no node.
NO_NODE = -1

Key = tuple[int, int]  # process and id


@dataclass(frozen=True, slots=True)
class RowsById:
    """Rows of a table by a process, or a thread, and an id of its own: sorted keys, and the row of each."""

    keys: Int64s
    rows: Int32s

    @classmethod
    def of(cls, process: Int32s, id_: Int64s, *order: NDArray[Any]) -> RowsById:
        """Index the rows; of several with one key, the first by the columns of `order`, then in the table."""
        key = _key(process, id_)
        if len(key) and key[0] >= 0 and (key[1:] > key[:-1]).all():  # as nsys writes launches of one process
            return cls(key, np.arange(len(key), dtype=np.int32))
        rows = np.argsort(key, kind="stable")
        ordered = key[rows]
        if (ordered[1:] == ordered[:-1]).any():
            rows = np.lexsort((*order[::-1], key))
            rows = rows[np.r_[True, key[rows][1:] != key[rows][:-1]]]
            ordered = key[rows]
        has_id = ordered >= 0
        return cls(ordered[has_id], rows[has_id].astype(np.int32))

    def find(self, process: Int32s, id_: Int64s) -> Int32s:
        """Return the row of each pair; -1 for unknown pairs."""
        if not len(self.keys):
            return np.full(len(process), -1, np.int32)
        first = int(self.keys[0])
        last = int(self.keys[-1])
        if last - first < _TABLE_PER_KEY * min(len(self.keys), len(process)):
            table = np.full(last - first + 2, -1, np.int32)  # the last entry is for ids that are not there
            table[self.keys - first] = self.rows

            def look_up(process: Int32s, id_: Int64s) -> Int32s:
                position = _key(process, id_) - first
                rows: Int32s = table[np.where((position >= 0) & (position < len(table)), position, len(table) - 1)]
                return rows
        else:

            def look_up(process: Int32s, id_: Int64s) -> Int32s:
                key = _key(process, id_)
                position = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
                return np.where(self.keys[position] == key, self.rows[position], np.int32(-1))

        return in_pieces(look_up, process, id_)


def _key(process: Int32s, id_: Int64s) -> Int64s:
    """Pack the pair; an id outside any that CUDA gives out (32 bits) has no key."""
    possible = (id_ >= 0) & (id_ < 1 << _ID_BITS)
    if possible.all():
        return process.astype(np.int64) << _ID_BITS | id_
    return np.where(possible, process.astype(np.int64) << _ID_BITS | np.where(possible, id_, 0), -1)


def captures_of(created: Columns, process: Int32s, thread: Int32s, work_process: Int32s, node: Int64s) -> Captures:
    """Return where the nodes were created that made some work, by the process of the work and the node's id.

    `process` and `thread` are of the creations of CUDA graphs' nodes.
    """
    ids = created.numbers["node"].tolist()
    originals = created.numbers["original"].tolist()
    row_of: dict[Key, int] = {}
    original_of: dict[Key, Key] = {}
    for row, (number, node_id, original) in enumerate(zip(process.tolist(), ids, originals, strict=True)):
        row_of.setdefault((number, node_id), row)
        if original != NO_NODE:
            original_of[number, node_id] = number, original

    def creation(key: Key) -> int:
        """Follow a node to its original's; -1 where the chain leads to a node of unknown creation."""
        for _ in range(len(original_of) + 1):
            if key not in original_of:
                return row_of.get(key, -1)
            key = original_of[key]
        return -1

    of_work = np.full(len(node), -1, np.int32)
    of_graph = np.flatnonzero(node != NO_NODE)
    keys, back = grouped_rows(work_process[of_graph], node[of_graph])
    pairs = each_row(*keys)
    of_work[of_graph] = np.array([creation(pair) for pair in pairs] or [-1], np.int32)[back]
    return Captures(of_work, created.numbers["start"], thread)
