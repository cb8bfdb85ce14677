"""The mark of an annotated model in a report: the class of each module, and what PyTorch calls it.

One NVTX mark in our domain, `MARK` followed by a JSON object:

    nvtx-kernels annotation: {"version": 3, "model": "GPT2", "modules": 86,
                              "classes": {"layer */attn": "GPT2Attention", "layer */mlp/mlp 0": "Linear"},
                              "attributes": {"layer *": "layers.*", "layer */mlp/mlp *": "*"},
                              "categories": {"model/forward": 1, "model/backward": 2, "phase": 3}}

`model` is the name of the outermost range and the model's class. The keys of `classes` are paths of ranges
below it, joined by `/`; a `*` is any index, where all modules of that path are of one class. `attributes` are the
modules' paths below the module of the next outer range, where they are not the range's name; a last `*` is the
name's index, any other stands for several. What modules of one path of ranges do not share is empty.
`categories` are the numbers of the ranges' categories: nsys keeps no names of categories and domains from before
its capture range.

The mark is sent before the model's first call that is recorded, and then at most ten times a second, because a
report keeps only what happened inside its capture range. All marks of a model are equal. From version 2 on, ranges
of the category `timeline` are pictures, and marks of training (`optimizers.py`) say what happened.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

from ..harmless import json_text
from . import range_stack

MARK = "nvtx-kernels annotation: "
VERSION = 3
_AGAIN_AFTER_S = 0.1
_INDEX = re.compile(r"(?<= )\d+(?=/|$)")
_INDEX_ABOVE = re.compile(r"(?<= )\d+(?=/)")
_INDEX_OF_ATTRIBUTE = re.compile(r"(?<![^.])\d+(?![^.])")


class Mark:
    """The mark of one annotated model.

    Of each module it is given the path of ranges below the model's, the class, and the path below the next outer
    range's module.
    """

    def __init__(self, model: str, modules: Iterable[tuple[str, str, str]]) -> None:
        self.model = model
        class_names = defaultdict[str, set[str]](set)
        attributes = defaultdict[str, set[str]](set)
        for range_path, class_name, attribute in modules:
            class_names[range_path].add(class_name)
            holders, dot, last = attribute.rpartition(".")
            if last.isdigit() and range_path.endswith(f" {last}"):  # the index that the range's name has too
                attribute = f"{holders}{dot}*"
            attributes[range_path].add(attribute)
        classes = {}
        for path, names in class_names.items():
            classes[path] = names.pop() if len(names) == 1 else ""
        called = {path: _joined(of_path) for path, of_path in attributes.items()}
        self._content = {
            "version": VERSION,
            "model": model,
            "modules": len(classes),
            "classes": {short: classes[path] for path, short in collapsed(classes).items()},
            "attributes": {
                short: called[path]
                for path, short in collapsed(called).items()
                if called[path] != path.rpartition("/")[2]
            },
        }
        self._sent_to: object = None
        self._sent_s = 0.0

    def send(self) -> bool:
        """Send the mark unless the listeners received it in this form recently; return whether it was sent."""
        now, listeners = time.monotonic(), range_stack.listeners
        if listeners is self._sent_to and now - self._sent_s < _AGAIN_AFTER_S:
            return False
        self._sent_to, self._sent_s = listeners, now
        numbers = range_stack.category_numbers()
        content = self._content | ({"categories": numbers} if numbers else {})
        range_stack.mark(MARK + json_text(content))
        return True


def _joined(attributes: set[str]) -> str:
    """Return the attribute of all modules of one path: where they differ, with `*` for indices, or nothing."""
    if len(attributes) > 1:
        attributes = {_INDEX_OF_ATTRIBUTE.sub("*", attribute) for attribute in attributes}
    return attributes.pop() if len(attributes) == 1 else ""


def collapsed(
    values: Mapping[str, Hashable], indices: Sequence[re.Pattern[str]] = (_INDEX, _INDEX_ABOVE)
) -> dict[str, str]:
    """Return each path as it is written: with `*` for indices, where all paths of that form have the same value.

    The first pattern of indices for which this holds is used; without one, a path stays as it is.
    """
    written = {path: path for path in values}
    for pattern in reversed(indices):
        forms = {path: pattern.sub("*", path) for path in values}
        values_of_form = defaultdict[str, set[Hashable]](set)
        for path, value in values.items():
            values_of_form[forms[path]].add(value)
        written |= {path: form for path, form in forms.items() if len(values_of_form[form]) == 1}
    return written
