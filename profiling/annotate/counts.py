"""What was counted in one step, by phase and path, and how it is written into a report.

In a report the counts are NVTX marks in our domain, `MARK` followed by a JSON object:

    nvtx-kernels flops: {"version": 1, "part": 0, "parts": 1, "calls": {"forward > GPT2": 1},
                         "ranges": {"backward": {"step > backward > GPT2 > layer *": [12, 4096, {"bf16": 8192}]}},
                         "uncounted": {"aten.gelu": [12, 65536]}}

`ranges` has by phase and path how many ranges that is (`*` stands for an index), and of each the bytes and the
FLOPs by arithmetic that it computes in no range inside it; `elementwise` is none of these, and counted apart
(operator_cost.py). `uncounted` has operators without a formula, the ones that move most: how often they ran, and
their bytes. `calls` says how often the counted step called the models.
`peaks` has what `nvtx-kernels check-machine --peaks` measured of the GPU, where it did.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from nvtx_kernels.analysis.vocabulary import ELEMENTWISE, PATH_SEPARATOR

from . import known_peaks, operator_cost
from .marks import collapsed

MARK = "nvtx-kernels flops: "
VERSION = 1
# nsys keeps long messages, but how long is not documented; a mark has at most this many paths.
PATHS_PER_MARK = 100
MOST_UNCOUNTED = 12
INDEX = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
INDEX_ABOVE = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9]|$)")

Path = tuple[str, ...]


class Figures:
    """What was computed directly in one range: FLOPs by arithmetic, element-wise ones apart, and bytes."""

    __slots__ = ("bytes", "elementwise", "flops")

    def __init__(self) -> None:
        self.flops: Counter[str] = Counter()
        self.elementwise = self.bytes = 0

    @property
    def of_mark(self) -> dict[str, int]:
        """All FLOPs, as a mark has them."""
        return {**self.flops, **({ELEMENTWISE: self.elementwise} if self.elementwise else {})}

    def same(self) -> tuple[Any, ...]:
        """Return what equal figures have in common."""
        return self.bytes, tuple(sorted(self.of_mark.items()))


class Counts:
    """What was counted, by phase and path; `calls` counts the calls of models, `uncounted` operators."""

    def __init__(self) -> None:
        self.of: defaultdict[tuple[str, Path], Figures] = defaultdict(Figures)
        self.calls: Counter[str] = Counter()
        self.uncounted: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._lock = threading.Lock()

    @property
    def flops(self) -> int:
        """The sum over all paths."""
        return sum(figures.flops.total() for figures in self.of.values())

    def add(self, place: tuple[str, Path], func: Any, call: tuple[Any, Any, Any]) -> None:
        """Take one operator's call: its arguments, its keywords, and what it returned."""
        number, moved = operator_cost.flops(func, *call), operator_cost.least_bytes(func, *call)
        if not number and not moved:
            return
        with self._lock:
            figures = self.of[place]
            figures.bytes += moved
            if number:
                figures.flops[operator_cost.arithmetic(func, call[0])] += number
            if number is None:
                figures.elementwise += operator_cost.elementwise_flops(func, call[0], call[2])
                totals = self.uncounted[_name(func)]
                totals[0] += 1
                totals[1] += moved

    def texts(self) -> list[str]:
        """Return the messages of the marks."""
        ranges = list(_collapsed(self.of))
        parts = [ranges[first : first + PATHS_PER_MARK] for first in range(0, len(ranges), PATHS_PER_MARK)] or [[]]
        most = sorted(self.uncounted.items(), key=lambda item: -item[1][1])[:MOST_UNCOUNTED]
        peaks = known_peaks.known()
        head = {"calls": self.calls, "uncounted": dict(most), **({"peaks": peaks} if peaks else {})}
        return [_text(number, len(parts), part, {} if number else head) for number, part in enumerate(parts)]


def _name(func: Any) -> str:
    return str(getattr(func, "_overloadpacket", None) or getattr(func, "_name", func))


def _collapsed(counted: dict[tuple[str, Path], Figures]) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield phase, path and figures; paths that differ in indices alone are one where their figures are equal."""
    by_phase: defaultdict[str, dict[str, Figures]] = defaultdict(dict)
    for (phase, path), figures in counted.items():
        by_phase[phase][PATH_SEPARATOR.join(path)] = figures
    for phase, paths in by_phase.items():
        short = collapsed({path: figures.same() for path, figures in paths.items()}, (INDEX, INDEX_ABOVE))
        number = Counter(short.values())
        for form, figures in {short[path]: figures for path, figures in paths.items()}.items():
            yield phase, form, [number[form], figures.bytes, figures.of_mark]


def _text(number: int, parts: int, ranges: list[Any], head: dict[str, Any]) -> str:
    by_phase: dict[str, dict[str, Any]] = {}
    for phase, path, figures in ranges:
        by_phase.setdefault(phase, {})[path] = figures
    content = {"version": VERSION, "part": number, "parts": parts, **head, "ranges": by_phase}
    return MARK + json.dumps(content, ensure_ascii=False, separators=(",", ":"))
