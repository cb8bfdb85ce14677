"""What `python -m profiling.attention` does once it knows what is asked: measure the grid, show it."""

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.progress import track

from profiling import results, table_formats
from profiling.commands import UsageError
from profiling.study_frames import statistics_of
from profiling.study_notes import WATCHED, machine
from profiling.tables import GIBIBYTES, WHOLE, Column, Table, number, spread, trouble

if TYPE_CHECKING:
    from profiling.attention_cases import Case

Row = dict[str, Any]
SETTINGS = {"kind": "kind", "dtype": "dtype", "d": "d", "length": "length"}
SHARED = {"batch_size": "batch", "dtype": "dtype", "warmup": "warm-up passes"}
DEFINITIONS = (
    "Times are wall time until the device has finished; n counts measured passes. d is the head's dimension; "
    "before backward is what tensors hold once forward is done, inputs and output included; on a GPU all tensors "
    "of the process."
)


def run(asked: Mapping[str, Any]) -> None:
    """Measure the grid, or take it from a file, and show it."""
    if asked["format"] not in table_formats.FORMATS:
        raise table_formats.FormatError(
            f"format is one of {', '.join(table_formats.FORMATS)}, not {asked['format']}"
        )
    rows = _rows_of(*asked["results"]) if asked["results"] else _measured(asked)
    if not rows:
        raise results.ResultsError("there is no measurement to show")
    shown = table(rows)
    sys.stdout.write(table_formats.FORMATS[asked["format"]]([shown], notes(rows)))
    if asked["plot"] is not None:
        from profiling.attention_plot import draw

        draw(shown.lines, asked["plot"])


def _rows_of(*paths: Any) -> list[Row]:
    rows = [row for path in paths for row in results.read(path, results.ATTENTION)[0]]
    return results.latest(rows)


def _measured(asked: Mapping[str, Any]) -> list[Row]:
    """Measure the cases that the file of results lacks, and return the rows of all that were asked for."""
    from profiling.attention_cases import measure
    from profiling.measure_one import limit_memory
    from profiling.settings import SettingsError

    try:
        cases, began_s = cases_of(asked), time.monotonic()
    except SettingsError as error:
        raise UsageError(str(error)) from error
    limit_memory(cases[0].settings, asked["memory_fraction"])
    with results.appending(asked["into"]) as file:
        waiting = cases if asked["again"] else _missing(cases, _rows_of(asked["into"]))
        for case in _progress(waiting):
            if asked["budget"] is not None and time.monotonic() - began_s >= asked["budget"]:
                break
            file.append(measure(case))
    cells = [asdict(case) for case in cases]
    return [row for row in _rows_of(asked["into"]) if row["cell"] in cells]


def _progress(cases: "Sequence[Case]") -> "Iterator[Case]":
    screen = Console(stderr=True)
    return iter(track(cases, "attention", console=screen, transient=True, disable=not sys.stderr.isatty()))


def cases_of(asked: Mapping[str, Any]) -> "list[Case]":
    """Return the grid that is asked for."""
    from profiling.attention import GRID_OF_DEVICE
    from profiling.attention_cases import Case
    from profiling.settings import default_device

    device = asked["device"] or default_device()
    defaults: Mapping[str, Any] = GRID_OF_DEVICE[device.partition(":")[0]]
    grid = {name: asked[name] or values for name, values in defaults.items()}
    axes = (asked["kinds"], asked["dtypes"], grid["dims"], grid["lengths"])
    rest = {"batch_size": asked["batch_size"], "warmup": asked["warmup"], "steps": grid["steps"], "device": device}
    return [
        Case(d=d, length=length, kind=kind, dtype=dtype, **rest)
        for kind, dtype, d, length in itertools.product(*axes)
    ]


def _missing(cases: "list[Case]", rows: Sequence[Row]) -> "list[Case]":
    from profiling.environment import environment

    done = {results.identity(row["cell"], row["state"]) for row in rows if row["status"] in results.FINAL}
    state = environment(cases[0].settings)
    return [case for case in cases if results.identity(asdict(case), state) not in done]


def table(rows: Sequence[Row]) -> Table:
    """Return one line per case: forward, backward, and the memory held between them."""
    lines = pd.DataFrame([_line(row) for row in rows])
    columns = (
        *(Column(header, (name,), str) for name, header in SETTINGS.items() if _tells(lines, name)),
        Column("n", ("forward_n",), WHOLE),
        Column("forward ms", ("forward_mean_ms", "forward_std_ms"), spread),
        Column("backward ms", ("backward_mean_ms", "backward_std_ms"), spread),
        Column("/ forward", ("ratio",), number(2)),
        Column("before backward GiB", ("held_bytes",), GIBIBYTES),
        *trouble(lines),
    )
    return Table("Attention alone, causal, one head; mean ± sample std of the measured passes", lines, columns)


def _tells(lines: pd.DataFrame, name: str) -> bool:
    return name != "dtype" or lines[name].nunique() > 1


def _line(row: Row) -> Row:
    wrong = {name: row.get(name) for name in ("status", "phase", "requested_bytes", "message", "held_bytes")}
    line = {**row["cell"], **wrong, "device_name": row["state"]["device_name"]}
    if watcher := row["state"].get("watched_by"):
        line["kind"] = f"{line['kind']}, {watcher}"
    for phase in ("forward", "backward"):
        values = [times[phase] for times in row.get("measured", ())]
        numbers = statistics_of(values) if values else {}
        line |= {
            f"{phase}_{name}": numbers.get(name)
            for name in ("n", "mean_ms", "std_ms", "median_ms", "min_ms", "max_ms")
        }
    line["ratio"] = line["backward_mean_ms"] / line["forward_mean_ms"] if row["status"] == "ok" else None
    return line


def notes(rows: Sequence[Row]) -> list[str]:
    """Return what decided the numbers."""
    cells = [row["cell"] for row in rows]
    shared = [
        f"{header} {', '.join(dict.fromkeys(str(cell[name]) for cell in cells))}"
        for name, header in SHARED.items()
    ]
    failed = [
        f"Warning: {row['cell']['kind']} failed: {row['message']}" for row in rows if row["status"] == "failed"
    ]
    full = sum(row["status"] == "oom" for row in rows)
    watchers = sorted({row["state"].get("watched_by", "") for row in rows} - {""})
    watched = [WATCHED.format(", ".join(watchers))] if watchers else []
    full_text = f"{full} of {len(rows)} cases out of memory"
    return [machine(rows), ", ".join(shared), DEFINITIONS, full_text, *watched, *failed]
