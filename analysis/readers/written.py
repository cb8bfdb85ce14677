"""What this project itself wrote into a report: marks of the run and of annotated models, and categories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trace import MODEL_BACKWARD, MODEL_FORWARD, Int8s, Int32s

RUN_MARK = "nvtx-kernels.run "
MODEL_MARK = "nvtx-kernels annotation: "
FLOPS_MARK = "nvtx-kernels flops: "

# What annotation calls the categories of its ranges, and what those of the model's parts say.
ANNOTATED = ("model/forward", "model/backward", "phase")
CATEGORIES = {"model/forward": MODEL_FORWARD, "model/backward": MODEL_BACKWARD}

# A domain: its process and its number there.
Key = tuple[int, int]


class Written:
    """Collects it, one row of the report at a time."""

    def __init__(self) -> None:
        self.run: dict[str, Any] = {}
        self.models: dict[str, dict[str, str]] = {}
        self.steps = ""  # what annotation's ranges `step` count
        self.counted: dict[int, dict[str, Any]] = {}  # by process
        self.domains: set[Key] = set()  # in which annotation's marks are
        self._categories: dict[Key, dict[int, int]] = {}

    def mark(self, domain: Key, text: str) -> None:
        """Take a mark; those of others say nothing."""
        if text.startswith(RUN_MARK):
            self.run = parsed(text.removeprefix(RUN_MARK)) or {}
        elif text.startswith(FLOPS_MARK):
            _join_counts(self.counted.setdefault(domain[0], {}), parsed(text.removeprefix(FLOPS_MARK)) or {})
        elif text.startswith(MODEL_MARK):
            said = parsed(text.removeprefix(MODEL_MARK)) or {}
            steps = said.get("steps", "")
            self.domains.add(domain)
            for name, number in _numbers(said).items():
                self._categories.setdefault(domain, {}).setdefault(number, CATEGORIES[name])
            self.models |= _classes(said)
            self.steps = self.steps or (steps if isinstance(steps, str) else "")

    def category(self, domain: Key, number: int, name: str) -> None:
        """Take the name of a category; NVTX numbers them for each domain anew."""
        self._categories.setdefault(domain, {})[number] = CATEGORIES.get(name, 0)

    def categories_of(self, domain: Int32s, number: NDArray[np.uint8], keys: Sequence[Key | None]) -> Int8s:
        """Return what the category of each range says; `keys` are of annotation's domains, None is another's."""
        says = np.zeros((len(keys), 256), np.int8)
        for row, key in enumerate(keys):
            for code, meaning in self._categories.get(key, {}).items() if key else ():
                says[row, code] = meaning
        return says[domain, number] if says.any() else np.zeros(len(domain), np.int8)


def parsed(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a mark holds; None for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _join_counts(known: dict[str, Any], said: dict[str, Any]) -> None:
    """Add one mark's part of a counted step to what is known of it; the parts come in any order, and again."""
    for what in ("calls", "uncounted"):
        if isinstance(said.get(what), dict):
            known[what] = said[what]
    ranges = said.get("ranges")
    for phase, paths in ranges.items() if isinstance(ranges, dict) else ():
        if isinstance(paths, dict):
            known.setdefault("ranges", {}).setdefault(phase, {}).update(paths)


def _numbers(said: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of categories by their names, as far as an annotation's mark says them."""
    told = said.get("categories")
    found = told if isinstance(told, dict) else {}
    return {name: found[name] for name in CATEGORIES if found.get(name) in range(256)}


def _classes(said: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the classes of a model's modules by their paths, as far as an annotation's mark says them."""
    model, classes = said.get("model"), said.get("classes")
    if not isinstance(model, str) or not isinstance(classes, dict):
        return {}
    return {model: {place: name for place, name in classes.items() if isinstance(name, str)}}
