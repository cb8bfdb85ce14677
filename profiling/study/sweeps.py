"""The work of `profiling.benchmark`: which cells and rows its options mean, and their table."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nvtx_kernels.analysis.presenters.output import format_of
from nvtx_kernels.model.config import CONFIGS, DIMENSIONS, config_of, size_in

from . import results
from .results import Row
from .studies import STUDIES, Study, lists_of
from .table import show


def benchmark(options: Mapping[str, Any]) -> int:
    """Measure what the options ask, or take it from files, show it, and return the command's exit status."""
    study = STUDIES[options["study"]]
    format_of(options["format"], options["output"])
    for name in options["size"] or ():
        own_name = size_in(options["year"], name)
        if own_name != name:
            parameters = CONFIGS[own_name].parameters
            _say(f"{name} of {options['year']} is {own_name} here, {parameters:,} parameters")
    if options["results"]:
        rows = _selected(options, study)
    else:
        from .processes import measured, product, sweep

        path = options["into"]
        captures = options["captures"] or study.captures
        limits = {"repeats": options["repeats"], "memory_fraction": options["memory_fraction"]}
        cells = product(lists_of(options, study), captures=captures, **limits)
        measure = partial(measured, longest_s=options["longest"])
        count, left = sweep(cells, path, measure, again=options["again"], budget_s=options["budget"])
        _say(f"{len(cells) - left} of {len(cells)} configurations are in {path}, {count} measured now")
        if left:
            _say(f"the budget of {options['budget']:g} s is spent; run the same command again to continue")
        rows = results.of_cells(_read(path), (cell.key for cell in cells))
    groups = options["columns"] or study.columns
    phases = options["phases"] or study.phases
    show(rows, options, {"by": options["by"] or study.by, "groups": groups, "phases": phases})
    return 1 if any(row["status"] == "failed" for row in rows) else 0


def _selected(options: Mapping[str, Any], study: Study) -> list[Row]:
    """Return the latest rows of files that have one of the values that options or the study list for a setting."""
    lists = lists_of(options, study)
    captures = options["captures"]
    if not captures and len(study.captures) > 1:
        captures = study.captures
    if captures:
        lists["capture"] = captures

    def value(row: Row, name: str) -> Any:
        if name in DIMENSIONS:
            return getattr(config_of(row["cell"]), DIMENSIONS[name])
        # Rows watched by an external nsys do not match `--captures none`.
        return results.capture_of(row) if name == "capture" else row["cell"][name]

    def is_listed(row: Row) -> bool:
        return all(value(row, name) in (*values, None) for name, values in lists.items())

    rows = [row for path in options["results"] for row in _read(path)]
    return [row for row in results.latest(rows) if is_listed(row)]


def _read(path: Path) -> list[Row]:
    if not path.exists():
        raise results.ResultsError(f"{path} does not exist")
    rows, torn = results.read(path)
    if torn:
        _say(f"{path}: {torn} incomplete or foreign lines skipped")
    return rows


def _say(sentence: str) -> None:
    sys.stderr.write(f"profiling.benchmark: {sentence}\n")
