"""The mark of an annotated model in a report: the class of each module.

One NVTX mark in our domain, `MARK` followed by a JSON object:

    nvtx-kernels annotation: {"version": 1, "model": "GPT2", "modules": 86,
                              "classes": {"layer */attn": "GPT2Attention", "layer */mlp/mlp 0": "Linear"},
                              "steps": "steps of AdamW",
                              "categories": {"model/forward": 1, "model/backward": 2, "phase": 3}}

`model` is the name of the outermost range and the model's class. The keys of `classes` are paths of ranges
below it, joined by `/`; a `*` is any index, where all modules of that path are of one class. `steps`
names what the ranges `step` count, if annotation opened them. `categories` are the numbers
of the ranges' categories: nsys keeps no names of categories and domains from before its capture range.

The mark is sent before the model's first call that is recorded, when `steps` changes, and then at most ten times
a second, because a report keeps only what happened inside its capture range. All marks of a report are equal,
except for `steps`, which is known from the first step on.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from . import optimizers, range_stack

MARK = "nvtx-kernels annotation: "
VERSION = 1
_AGAIN_AFTER_S = 0.1
_INDEX = re.compile(r"(?<= )\d+(?=/|$)")
_INDEX_ABOVE = re.compile(r"(?<= )\d+(?=/)")


class Mark:
    """The mark of one annotated model."""

    def __init__(self, model: str, classes: Mapping[str, str]) -> None:
        self.model = model
        self._content = {
            "version": VERSION,
            "model": model,
            "modules": len(classes),
            "classes": {short: classes[path] for path, short in collapsed(classes).items()},
        }
        self._sent_to: object = None
        self._sent_steps = ""
        self._sent_s = 0.0

    def send(self) -> bool:
        """Send the mark unless the listeners received it in this form recently; return whether it was sent."""
        now, listeners, steps = time.monotonic(), range_stack.listeners(), optimizers.counted_by()
        is_known = listeners is self._sent_to and steps == self._sent_steps
        if is_known and now - self._sent_s < _AGAIN_AFTER_S:
            return False
        self._sent_to, self._sent_steps, self._sent_s = listeners, steps, now
        numbers = range_stack.category_numbers()
        told = {"steps": steps, "categories": numbers}
        content = self._content | {key: value for key, value in told.items() if value}
        range_stack.mark(MARK + json.dumps(content, ensure_ascii=False))
        return True


def collapsed(
    values: Mapping[str, Hashable], indices: Sequence[re.Pattern[str]] = (_INDEX, _INDEX_ABOVE)
) -> dict[str, str]:
    """Return each path as it is written: with `*` for indices, where all paths of that form have the same value.

    The first pattern of indices for which this holds is used; without one, a path stays as it is.
    """
    forms = {path: [pattern.sub("*", path) for pattern in indices] for path in values}
    found: defaultdict[tuple[int, str], set[Hashable]] = defaultdict(set)
    for path, value in values.items():
        for place in enumerate(forms[path]):
            found[place].add(value)
    alike = {place for place, of_one in found.items() if len(of_one) == 1}
    return {
        path: next((form for at, form in enumerate(forms[path]) if (at, form) in alike), path) for path in values
    }
