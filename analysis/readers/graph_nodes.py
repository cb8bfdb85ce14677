"""The nodes of CUDA graphs in nsys's tables: which made a piece of work, and where it was created.

A kernel of a replay has the id of its node (`graphNodeId`, with `--cuda-graph-trace=node`). A node that was
cloned, as when a graph is instantiated, has two rows, of which the second points to its original (nsys
2025.3); the creation that counts is the one at the end of that chain. Ids are a process's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..trace import Captures, Int32s, Int64s
from .columns import Columns, Layout

#: The table of creations, and what is kept of it; `node` and `original` are ids, -1 if there is none.
TABLE = "CUDA_GRAPH_NODE_EVENTS"
NODES = Layout({"start": "i8", "node": "i8", "original": "i8"}, ("thread",))
NO_NODE = -1

Key = tuple[int, int]  # process and id


class Creations:
    """The creations of nodes, by process and id."""

    def __init__(self, events: Columns, process: Int32s) -> None:
        self._events = events
        column = events.numbers
        keys = list(zip(process.tolist(), column["node"].tolist(), strict=True))
        self._row: dict[Key, int] = {}
        self._original: dict[Key, Key] = {}
        for row, (key, original) in enumerate(zip(keys, column["original"].tolist(), strict=True)):
            self._row.setdefault(key, row)
            if original != NO_NODE:
                self._original[key] = (key[0], original)

    def captures(self, nodes: Sequence[tuple[Int32s, Int64s]], thread: Int32s) -> Captures:
        """Return where the nodes of all work were created, given its processes and node ids in order."""
        of_work = [self._rows(process, node) for process, node in nodes]
        column = self._events.numbers
        whole = np.concatenate(of_work) if of_work else np.empty(0, np.int32)
        return Captures(whole, column["start"], thread)

    def _rows(self, process: Int32s, node: Int64s) -> Int32s:
        rows = np.full(len(node), -1, np.int32)
        made = np.flatnonzero(node != NO_NODE)
        pairs = np.stack([process[made].astype(np.int64), node[made]], axis=1)
        distinct, back = np.unique(pairs, axis=0, return_inverse=True)
        found = np.array([self._first((p, n)) for p, n in distinct.tolist()] or [-1], np.int32)
        rows[made] = found[back.reshape(-1)]
        return rows

    def _first(self, key: Key) -> int:
        """Follow a node to its original's creation; -1 if that is unknown."""
        for _ in range(len(self._original) + 1):
            if key not in self._original:
                return self._row.get(key, -1)
            key = self._original[key]
        return -1
