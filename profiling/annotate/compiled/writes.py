"""How many bytes each part of a fused kernel writes, found while it is compiled and said in marks of a report.

One NVTX mark or more in our domain for each compiled graph, `MARK` followed by a JSON object:

    nvtx-kernels writes: {"version": 1, "phase": "forward",
                          "rows": {"layer * > self + norm": [[[], 4096], [["norm"], 2048]]}}

`rows` has by the path of a shared row, from the outermost range that the graph's code opens (`*` stands for an
index), its parts below what they share, `[]` for that range itself, and the bytes that each writes in all kernels
of the row in one call of the graph; null where a size is not known.

A report keeps only what happened inside its capture range, so the marks are sent with a call of the graph, at most
ten times a second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import range_stack
from ..counts import INDEX, INDEX_ABOVE, PATH_SEPARATOR, PATHS_PER_MARK
from ..marks import collapsed
from .names import Kernel, Names, shared

MARK = "nvtx-kernels writes: "
VERSION = 1
MOST_ROWS = 1000
_AGAIN_AFTER_S = 0.1

#: Of a shared row, the path of each part and the bytes that it writes; part of the generated code.
Parts = Sequence[tuple[Names, int]]
Row = tuple[Names, Parts | None]


class Rows:
    """What the shared rows of one graph write, while its code is generated."""

    def __init__(self) -> None:
        self._of: dict[Names, dict[Names, int] | None] = {}

    def add(self, kernel: Kernel, written: Mapping[Names, int] | None) -> None:
        """Take what the parts of one more kernel of a row write; None where that is not known."""
        if len(set(kernel.working.values())) < 2:
            return
        row = self._of.setdefault(kernel.path, dict.fromkeys(kernel.working.values(), 0))
        if row is None or written is None:
            self._of[kernel.path] = None
            return
        for part in {*kernel.working.values(), *written}:
            row[part] = row.get(part, 0) + written.get(part, 0)

    def all(self) -> Iterator[Row]:
        """Yield the rows with what their parts write; None where that is not known, or nothing."""
        for path, parts in self._of.items():
            yield path, tuple(parts.items()) if parts and any(parts.values()) else None


def by_part(kernel: Kernel, nodes: Sequence[Any], written: Iterable[tuple[Sequence[Any], int | None]]) -> Any:
    """Return the bytes that each part of a kernel writes; None where a size or who made a buffer is not known.

    A buffer is of the part whose node made it: the last one that works, of its own nodes or of what these get
    their inputs from inside the kernel.
    """
    working = {nodes[at]: path for at, path in kernel.working.items()}
    found: dict[Names, int] = {}
    for origins, size in written:
        part = _maker(origins, working, set(nodes))
        if part is None or size is None:
            return None
        found[part] = found.get(part, 0) + size
    return found


def _maker(origins: Sequence[Any], working: Mapping[Any, Names], inside: set[Any]) -> Names | None:
    further, seen = [node for node in origins if node in inside], set[Any]()
    while further:
        last = max(further)
        if last in working:
            return working[last]
        seen.add(last)
        further = [one for one in {*further, *last.all_input_nodes} if one in inside and one not in seen]
    return None


class Marks:
    """The marks of one graph's shared rows."""

    def __init__(self, rows: Iterable[Row], phase: str) -> None:
        items = list(_short(rows).items())[:MOST_ROWS]
        self._texts = [
            MARK + json.dumps({"version": VERSION, "phase": phase, "rows": dict(items[at : at + PATHS_PER_MARK])})
            for at in range(0, len(items), PATHS_PER_MARK)
        ]
        self._sent_to: object = None
        self._sent_s = 0.0

    def send(self) -> None:
        """Send the marks unless the listeners received them recently."""
        now, listeners = time.monotonic(), range_stack.listeners()
        if not self._texts or (listeners is self._sent_to and now - self._sent_s < _AGAIN_AFTER_S):
            return
        self._sent_to, self._sent_s = listeners, now
        for text in self._texts:
            range_stack.mark(text)


def _short(rows: Iterable[Row]) -> dict[str, Any]:
    """Return what is said of each row; of rows that differ in indices alone once, unless an index is in a part."""
    said = {PATH_SEPARATOR.join(path): _below(parts) for path, parts in rows}
    alike = {path: below for path, below in said.items() if not INDEX.search(repr(below and dict(below).keys()))}
    short = collapsed(alike, (INDEX, INDEX_ABOVE))
    return {short.get(path, path): below for path, below in said.items()}


def _below(parts: Parts | None) -> tuple[tuple[Names, int], ...] | None:
    """Return the parts by their names below what they share."""
    if parts is None:
        return None
    around = len(shared([path for path, _ in parts]))
    return tuple((path[around:], size) for path, size in parts)
