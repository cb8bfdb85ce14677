"""Names for tables: indices as `*`, but siblings whose modules are known to be of different classes apart.

`profiling.annotate` writes into a report of which class each module is: by the model's name, paths of ranges below
it joined by `/`, with `*` for an index where all modules there are of one class.
`nn.Sequential(Linear, GELU, Linear)` is three rows then, `mlp 0 Linear` and so on, and not one of `mlp *`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from ..report import Path, Report
from ..vocabulary import collapsed

Classes = Mapping[str, str]
Naming = Callable[[Path], Path]

_INDEX = re.compile(r"(?<= )\d+(?=/|$)")
_INDEX_ABOVE = re.compile(r"(?<= )\d+(?=/)")


def naming_of(*reports: Report) -> Naming:
    """Return how tables name the paths of these reports, which are compared if there are several.

    The classes that one report has for its modules apply to the others too, unless another differs.
    """
    return naming(_agreed(report.provenance.models for report in reports))


def naming(models: Mapping[str, Classes]) -> Naming:
    """Return what collapses the indices in every name of a path, given the classes of modules by model."""

    @cache
    def named(path: Path) -> Path:
        model_depth = next((depth for depth, name in enumerate(path) if name in models), len(path))
        classes = models.get(path[model_depth], {}) if model_depth < len(path) else {}
        return tuple(
            _name(name, classes, "/".join(path[model_depth + 1 : depth + 1])) for depth, name in enumerate(path)
        )

    return named


def _name(name: str, classes: Classes, place: str) -> str:
    """Return a module's name with its class where its siblings are of others, else without its index."""
    together = collapsed(name)
    if together == name or not place or _INDEX.sub("*", place) in classes:
        return together
    class_name = classes.get(_INDEX_ABOVE.sub("*", place)) or classes.get(place)
    return f"{name} {class_name}" if class_name else together


def _agreed(reports: Iterable[Mapping[str, Classes]]) -> dict[str, dict[str, str]]:
    """Merge the facts about the same models, without those that differ."""
    joined: dict[str, dict[str, str]] = {}
    denied: set[tuple[str, str]] = set()
    for models in reports:
        for model, classes in models.items():
            together = joined.setdefault(model, {})
            denied |= {(model, place) for place, name in classes.items() if together.get(place, name) != name}
            together.update(classes)
    return {
        model: {place: name for place, name in classes.items() if (model, place) not in denied}
        for model, classes in joined.items()
    }
