"""What this project itself wrote into a report: marks of the run and of annotated models, and categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from ..trace import CATEGORIES, Fact, Int8s, Int32s
from ..vocabulary.modules import agreed, at
from .allocations import MarkedAllocations
from .marks import FactMark, FlopsMark, LinesMark, MemoryMark, ModelMark, RunMark, read_mark

ANNOTATED = (*CATEGORIES, "phase")

# A domain: its process and its number there.
Key = tuple[int, int]


class Written:
    """Collects these, one row of the report at a time."""

    def __init__(self) -> None:
        self.run: dict[str, Any] = {}
        self._models: dict[str, ModelMark] = {}  # by text, for they are sent often
        self.steps = ""  # what annotation's ranges `step` count
        self.counted: dict[int, dict[str, Any]] = {}  # by process
        self.allocations: dict[int, MarkedAllocations] = {}  # by process
        self.lines: tuple[LinesMark, int, int] | None = None  # with its process and its moment
        self.facts: list[Fact] = []
        self.domains: set[Key] = set()  # in which annotation's marks are
        self._unfit: dict[str, None] = {}
        self._categories: dict[Key, dict[int, int]] = {}

    def mark(self, domain: Key, text: str, at_ns: int, thread: int) -> None:
        """Read a mark that a thread of the report pushed; those of other programs are ignored."""
        mark, unfit = read_mark(text)
        self._unfit |= dict.fromkeys(unfit)
        if isinstance(mark, RunMark):  # the program's end adds what was not known at its beginning
            self.run |= msgspec.to_builtins(mark)
        match mark:
            case FlopsMark():  # the parts of a step come in any order, and again
                empty: dict[str, Any] = {"calls": {}, "uncounted": {}, "peaks": {}}
                counts = self.counted.setdefault(domain[0], empty)
                counts["calls"].update(mark.calls)
                counts["uncounted"].update(mark.uncounted)
                counts["peaks"].update(msgspec.to_builtins(mark.peaks) if mark.peaks else {})
                for phase, paths in mark.ranges.items():
                    counts.setdefault("ranges", {}).setdefault(phase, {}).update(paths)
            case MemoryMark():
                self.allocations.setdefault(domain[0], MarkedAllocations()).add(mark, at_ns)
            case LinesMark():
                self.lines = mark, domain[0], at_ns
            case ModelMark():
                self.domains.add(domain)
                numbers = {
                    number: CATEGORIES[name] for name, number in mark.categories.items() if name in CATEGORIES
                }
                self._categories[domain] = numbers | self._categories.get(domain, {})
                self._models |= {text: mark} if mark.model else {}
                self.steps = self.steps or mark.steps
            case FactMark():
                self.facts.append(Fact(at_ns, thread, mark))

    def models(self) -> dict[str, dict[str, str]]:
        """Return the classes of each model's modules by their paths of ranges."""
        return agreed({mark.model: mark.classes} for mark in self._models.values())

    def attributes(self) -> dict[str, dict[str, str]]:
        """Return PyTorch's names of each model's modules: those of its mark, else those of the ranges."""
        tables = []
        for mark in self._models.values():
            if (names := mark.attributes) is not UNSET:
                as_ranges = {path: path.rpartition("/")[2] for path in mark.classes if at(names, path) is None}
                tables.append({mark.model: {**names, **as_ranges}})
        return agreed(tables)

    def notes(self) -> list[str]:
        """Return a note for each mark that does not fit its schema."""
        ignored = ", ".join(self._unfit)
        if ignored:
            return [f"Marks say what this project does not write; ignored: {ignored}."]
        return []

    def category(self, domain: Key, number: int, name: str) -> None:
        """Take the name of a category; NVTX numbers them separately for each domain, and 0 means no category."""
        if number:
            self._categories.setdefault(domain, {})[number] = CATEGORIES.get(name, 0)

    def categories_of(self, domain: Int32s, number: NDArray[np.uint8], keys: Sequence[Key | None]) -> Int8s:
        """Return the meaning of each range's category; `keys` are of annotation's domains, None for others."""
        meaning_of = np.zeros((len(keys), 256), np.int8)
        for row, key in enumerate(keys):
            for code, meaning in self._categories.get(key, {}).items() if key else ():
                meaning_of[row, code] = meaning
        if meaning_of.any():
            return meaning_of[domain, number]
        return np.zeros(len(domain), np.int8)
