"""The work of `nvtx-kernels benchmark`: sweep, select, show."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvtx_kernels.analysis.errors import UsageError
from nvtx_kernels.analysis.presenters.output import format_of
from nvtx_kernels.analysis.support import progress
from nvtx_kernels.model.config import CONFIGS, DIMENSIONS, config_of, size_in

from ..sweep import results
from . import frames, notes, studies
from .frame_tables import show as write
from .step_listing import listing

if TYPE_CHECKING:
    from ..sweep.configurations import Cell
    from ..sweep.lists import Study
    from ..sweep.processes import Measurable

Row = dict[str, Any]


def run(asked: Mapping[str, Any], study: "Study") -> int:
    """Measure what is asked, or take it from a file, show it, and return the command's exit status."""
    format_of(asked["format"], asked["output"])
    tables = _known(asked["table"] or study.tables)
    for theirs in asked["size"] or ():
        if (ours := size_in(asked["model_preset"], theirs)) != theirs:
            _say(f"{theirs} of {asked['model_preset']} is {ours} here, {CONFIGS[ours].parameters:,} parameters")
    rows = _from_files(asked, study) if asked["results"] else _measured(asked, study)
    if not rows:
        raise results.ResultsError("there are no measurements to show")
    show(rows, tables, asked)
    return 1 if any(row["status"] == "failed" for row in rows) else 0


def _known(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in studies.TABLES:
            raise UsageError(f"table must be one of {', '.join(studies.TABLES)}, not {name}")
    return names


def _from_files(asked: Mapping[str, Any], study: "Study") -> list[Row]:
    """Return the latest rows of files that have one of the values that options or the study list for a setting."""
    lists = _lists(asked, study)
    if captures := asked["captures"] or (study.captures if len(study.captures) > 1 else None):
        lists["capture"] = captures
    # Rows watched by an external nsys do not match `--captures none`.
    return [
        row
        for row in results.latest([row for path in asked["results"] for row in _read(path)])
        if all(_value(row, name) in (*values, None) for name, values in lists.items())
    ]


def _value(row: Row, name: str) -> Any:
    if name in DIMENSIONS:
        return getattr(config_of(row["cell"]), DIMENSIONS[name])
    return results.capture_of(row) if name == "capture" else row["cell"][name]


def _lists(asked: Mapping[str, Any], study: "Study") -> dict[str, Sequence[Any]]:
    """Return the requested lists of settings, completed by a study's, with our names of sizes."""
    from ..sweep.lists import LISTS

    settings = [option.setting for option in LISTS.values()]
    lists = {**study.lists, **{name: asked[name] for name in settings if asked[name]}}
    if "size" in lists:
        lists["size"] = [size_in(asked.get("model_preset"), size) for size in lists["size"]]
    return lists


def _read(path: Path) -> list[Row]:
    if not path.exists():
        raise results.ResultsError(f"{path} does not exist")
    rows, torn = results.read(path)
    if torn:
        _say(f"{path}: {torn} incomplete or foreign lines skipped")
    return rows


def _measured(asked: Mapping[str, Any], study: "Study") -> list[Row]:
    """Measure the requested cells and return their rows."""
    from ..sweep.processes import Plan, sweep

    path, cells = asked["into"], cells_of(asked, study)
    with progress_bar(len(cells)) as bar:
        left = sweep(cells, path, bar, Plan(asked["again"], asked["budget"], asked["longest"]))
    rows = results.of_cells(_read(path), (cell.key for cell in cells))
    _say(f"{len(cells) - left} of {len(cells)} configurations are in {path}, {bar.measured} measured now")
    if left:
        _say(f"the budget of {asked['budget']:g} s is spent; run the same command again to continue")
    return rows


def cells_of(asked: Mapping[str, Any], study: "Study") -> list["Cell"]:
    """Return the cells that lists, completed by a study's, ask for."""
    from ..sweep.configurations import product
    from ..workload.settings import SettingsError

    lists = _lists(asked, study)
    captures = asked["captures"] or study.captures
    fraction = asked["memory_fraction"]
    try:
        return product(lists, captures=captures, repeats=asked["repeats"], memory_fraction=fraction)
    except SettingsError as error:
        raise UsageError(str(error)) from error


def show(rows: Sequence[Row], tables: Sequence[str], asked: Mapping[str, Any]) -> None:
    """Write the tables, and the plot and the listing of steps if they are asked for."""
    lines = frames.frame(rows)
    made = [studies.TABLES[name](lines) for name in tables]
    write(notes.document(rows, lines, made), asked, listing(rows) if asked["steps_listing"] else "")
    if asked["plot"] is not None:
        from .plots import draw

        draw(lines, asked["plot"])


class Bar:
    """Show on stderr which cell is being measured, and why others were not."""

    def __init__(self) -> None:
        self.measured = 0

    def skip(self, count: int) -> None:
        """Count cells that were measured before."""
        progress.advance(count)

    def begin(self, cell: "Measurable") -> None:
        """Name the cell that is measured now."""
        progress.now(cell.label)

    def end(self, row: Row) -> None:
        """Count a cell, and report why it was not measured."""
        self.measured += 1
        progress.advance(1)
        if row["status"] != "ok":
            why = row.get("message") or f"out of memory in {row['phase']}"
            sys.stderr.write(f"{row['cell'].get('size', row['cell'].get('kind'))}: {why}\n")


@contextmanager
def progress_bar(count: int) -> Iterator[Bar]:
    """Show a progress bar on stderr, if that is a terminal."""
    with progress.on_screen("configurations"):
        progress.expect(count)
        yield Bar()


def _say(sentence: str) -> None:
    sys.stderr.write(f"profiling.benchmark: {sentence}\n")
