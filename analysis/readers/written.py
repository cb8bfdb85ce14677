"""What this project itself wrote into a report: marks of the run and of annotated models, and categories."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..trace import MODEL_BACKWARD, MODEL_FORWARD, Int8s, Int32s
from . import fused_writes
from .marked_allocations import MEMORY_MARK, MarkedAllocations

RUN_MARK = "nvtx-kernels.run "
MODEL_MARK = "nvtx-kernels annotation: "
FLOPS_MARK = "nvtx-kernels flops: "

# What FLOPs are counted by: bf16, tf32, complex64, ….
ARITHMETIC = re.compile(r"[a-z][a-z0-9_]{1,19}")

# TFLOP/s and GB/s that no GPU reaches.
MOST_RATE = 1e6

# What annotation calls the categories of its ranges, and what those of the model's parts say.
ANNOTATED = ("model/forward", "model/backward", "phase")
CATEGORIES = {"model/forward": MODEL_FORWARD, "model/backward": MODEL_BACKWARD}

# A domain: its process and its number there.
Key = tuple[int, int]


class Written:
    """Collects these, one row of the report at a time."""

    def __init__(self) -> None:
        self.run: dict[str, Any] = {}
        self.models: dict[str, dict[str, str]] = {}
        self.steps = ""  # what annotation's ranges `step` count
        self.counted: dict[int, dict[str, Any]] = {}  # by process
        self.writes: fused_writes.Writes = {}
        self.allocations: dict[int, MarkedAllocations] = {}  # by process
        self.domains: set[Key] = set()  # in which annotation's marks are
        self._categories: dict[Key, dict[int, int]] = {}

    def mark(self, domain: Key, text: str, at_ns: int = 0) -> None:
        """Read a mark that the report has at a time; those of other programs are ignored."""
        if text.startswith(RUN_MARK):
            self.run = parsed(text.removeprefix(RUN_MARK)) or {}
        elif text.startswith(FLOPS_MARK):
            counts = sane_counts(parsed(text.removeprefix(FLOPS_MARK)) or {})
            counts.join(self.counted.setdefault(domain[0], {}))
        elif text.startswith(fused_writes.WRITES_MARK):
            fused_writes.join(self.writes, parsed(text.removeprefix(fused_writes.WRITES_MARK)) or {})
        elif text.startswith(MEMORY_MARK):
            of_process = self.allocations.setdefault(domain[0], MarkedAllocations())
            of_process.add(parsed(text.removeprefix(MEMORY_MARK)) or {}, at_ns)
        elif text.startswith(MODEL_MARK):
            said = parsed(text.removeprefix(MODEL_MARK)) or {}
            steps = said.get("steps", "")
            self.domains.add(domain)
            for name, number in _numbers(said).items():
                self._categories.setdefault(domain, {}).setdefault(number, CATEGORIES[name])
            self.models |= _classes(said)
            self.steps = self.steps or (steps if isinstance(steps, str) else "")

    def category(self, domain: Key, number: int, name: str) -> None:
        """Take the name of a category; NVTX numbers them separately for each domain."""
        self._categories.setdefault(domain, {})[number] = CATEGORIES.get(name, 0)

    def categories_of(self, domain: Int32s, number: NDArray[np.uint8], keys: Sequence[Key | None]) -> Int8s:
        """Return the meaning of each range's category; `keys` are of annotation's domains, None for others."""
        says = np.zeros((len(keys), 256), np.int8)
        for row, key in enumerate(keys):
            for code, meaning in self._categories.get(key, {}).items() if key else ():
                says[row, code] = meaning
        return says[domain, number] if says.any() else np.zeros(len(domain), np.int8)


def parsed(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a mark; None for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class SaidCounts(NamedTuple):
    """What a mark says of a counted step, as far as it is what annotation writes.

    `ranges` has by phase and path how many paths that is, and of each the bytes and the FLOPs by arithmetic;
    `uncounted` has by operator how often it ran, and its bytes; `peaks` is empty, or has TFLOP/s by arithmetic and
    GB/s that were measured of the GPU.
    """

    calls: dict[str, float]
    uncounted: dict[str, list[float]]
    ranges: dict[str, dict[str, list[Any]]]
    peaks: dict[str, Any]

    def join(self, known: dict[str, Any]) -> None:
        """Add this to what other marks said; the parts of a step come in any order, and again."""
        for what in ("calls", "uncounted", "peaks"):
            known.setdefault(what, {}).update(getattr(self, what))
        for phase, paths in self.ranges.items():
            known.setdefault("ranges", {}).setdefault(phase, {}).update(paths)


def sane_counts(said: dict[str, Any]) -> SaidCounts:
    """Keep what a mark may say of a counted step."""
    uncounted = _mapping(said.get("uncounted"))
    ranges = {phase: _mapping(paths) for phase, paths in _mapping(said.get("ranges")).items()}
    return SaidCounts(
        {path: number for path, number in _mapping(said.get("calls")).items() if _is_count(number)},
        {name: numbers for name, numbers in uncounted.items() if _are_counts(numbers, 2)},
        {
            phase: {path: figures for path, figures in paths.items() if _are_figures(figures)}
            for phase, paths in ranges.items()
        },
        _sane_peaks(_mapping(said.get("peaks"))),
    )


def _sane_peaks(said: dict[str, Any]) -> dict[str, Any]:
    """Return measured peaks if all of them can be; else none."""
    tflops, speed = _mapping(said.get("tflops")), said.get("gigabytes_per_s")
    are_rates = all(isinstance(rate, int | float) and 0 < rate < MOST_RATE for rate in (*tflops.values(), speed))
    is_sane = tflops and are_rates and all(ARITHMETIC.fullmatch(kind) for kind in tflops)
    return {"tflops": tflops, "gigabytes_per_s": speed} if is_sane else {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _are_figures(value: Any) -> bool:
    """Return whether this is a number of paths, bytes, and FLOPs by arithmetic."""
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], dict):
        return False
    flops = value[2]
    names = all(ARITHMETIC.fullmatch(name) for name in flops)
    return names and _are_counts([*value[:2], *flops.values()], 2 + len(flops)) and value[0] >= 1


def _are_counts(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(map(_is_count, value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**80


def _numbers(said: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of categories by their names, as far as an annotation's mark has them."""
    written = said.get("categories")
    found = written if isinstance(written, dict) else {}
    return {name: found[name] for name in CATEGORIES if found.get(name) in range(256)}


def _classes(said: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the classes of a model's modules by their paths, as far as an annotation's mark has them."""
    model, classes = said.get("model"), said.get("classes")
    if not isinstance(model, str) or not isinstance(classes, dict):
        return {}
    return {model: {place: name for place, name in classes.items() if isinstance(name, str)}}
