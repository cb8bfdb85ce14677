"""The work of `nvtx-kernels attention`: measure the grid, show and draw it."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from nvtx_kernels.analysis.document import Document, Table
from nvtx_kernels.analysis.errors import UsageError
from nvtx_kernels.analysis.presenters.output import format_of

from ..sweep import results
from ..sweep.processes import Plan, sweep
from . import frame_tables, plots
from .benchmark import progress_bar
from .frame_tables import Shown, number, pair, setting, show, trouble
from .frames import statistics_of
from .notes import WATCHED, machine

if TYPE_CHECKING:
    from ..sweep.attention_cases import Case

Row = dict[str, Any]
PHASES = ("forward", "backward")
SETTINGS = {"kind": "kind", "dtype": "dtype", "d": "d", "length": "length"}
SHARED = {"batch_size": "batch", "dtype": "dtype", "warmup": "warm-up passes"}
DEFINITIONS = (
    "Times are wall time until the device has finished; n counts measured passes. d is the head's dimension; "
    "before backward is what tensors hold once forward is done, inputs and output included; on a GPU all tensors "
    "of the process."
)


def run(asked: Mapping[str, Any]) -> None:
    """Measure the grid, or take it from a file, and show it."""
    format_of(asked["format"], asked["output"])
    rows = _rows_of(asked["results"]) if asked["results"] else _measured(asked)
    if not rows:
        raise results.ResultsError("there are no measurements to show")
    lines = frame(rows)
    show(document(rows, lines), asked)
    if asked["plot"] is not None:
        plots.save(drawing(lines), asked["plot"])


def _rows_of(paths: Sequence[Path]) -> list[Row]:
    return results.latest(results.rows_in(paths, results.ATTENTION))


def _measured(asked: Mapping[str, Any]) -> list[Row]:
    """Measure the cases that the file of results lacks, and return the rows of all that were asked for."""
    from ..sweep.attention_cases import measure
    from ..workload.environment import limit_memory
    from ..workload.settings import SettingsError

    try:
        cases = cases_of(asked)
    except SettingsError as error:
        raise UsageError(str(error)) from error
    limit_memory(cases[0].settings, asked["memory_fraction"])
    plan = Plan(asked["again"], asked["budget"], kind=results.ATTENTION, measure=measure)
    with progress_bar(len(cases)) as bar:
        sweep(cases, asked["into"], bar, plan)
    return results.of_cells(_rows_of([asked["into"]]), (case.key for case in cases))


def cases_of(asked: Mapping[str, Any]) -> "list[Case]":
    """Return the requested grid."""
    from ..sweep.attention_cases import GRID_OF_DEVICE, Case
    from ..workload.settings import default_device

    device = asked["device"] or default_device()
    defaults: Mapping[str, Any] = GRID_OF_DEVICE[device.partition(":")[0]]
    grid = {name: asked[name] or values for name, values in defaults.items()}
    axes = (asked["kinds"], asked["dtypes"], grid["dims"], grid["lengths"])
    rest = {"batch_size": asked["batch_size"], "warmup": asked["warmup"], "steps": grid["steps"], "device": device}
    return [
        Case(d=d, length=length, kind=kind, dtype=dtype, **rest)
        for kind, dtype, d, length in itertools.product(*axes)
    ]


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a line per case: settings, statistics of forward and backward, and the bytes held between them."""
    return pd.DataFrame([_line(row) for row in rows])


def table(lines: pd.DataFrame) -> Table:
    """Return the times of each case, and the memory held between forward and backward."""
    columns = (
        *(setting(header, name) for name, header in SETTINGS.items() if _tells(lines, name)),
        number("n", "forward_n", "count"),
        *(Shown(f"{phase} ms", (f"{phase}_mean_ms", f"{phase}_std_ms"), "spread", pair) for phase in PHASES),
        number("/ forward", "ratio", "ratio"),
        number("before backward GiB", "held_bytes", "GiB"),
        *trouble(lines),
    )
    title = "Attention alone, causal, one head; mean ± sample std of the measured passes"
    return frame_tables.table("attention", title, lines, columns)


def _tells(lines: pd.DataFrame, name: str) -> bool:
    return name != "dtype" or lines[name].nunique() > 1


def _line(row: Row) -> Row:
    wrong = {name: row.get(name) for name in ("status", "phase", "requested_bytes", "message", "held_bytes")}
    line = {**row["cell"], **wrong, "device_name": row["state"]["device_name"]}
    if watcher := row["state"].get("watched_by"):
        line["kind"] = f"{line['kind']}, {watcher}"
    for phase in PHASES:
        values = [times[phase] for times in row.get("measured", ())]
        numbers = statistics_of(values) if values else {}
        line |= {
            f"{phase}_{name}": numbers.get(name)
            for name in ("n", "mean_ms", "std_ms", "median_ms", "min_ms", "max_ms")
        }
    line["ratio"] = line["backward_mean_ms"] / line["forward_mean_ms"] if row["status"] == "ok" else None
    return line


def document(rows: Sequence[Row], lines: pd.DataFrame) -> Document:
    """Return the table, with everything that affects its numbers."""
    cells = [row["cell"] for row in rows]
    shared = [
        f"{header} {', '.join(dict.fromkeys(str(cell[name]) for cell in cells))}"
        for name, header in SHARED.items()
    ]
    failed = [f"{row['cell']['kind']} failed: {row['message']}" for row in rows if row["status"] == "failed"]
    full = sum(row["status"] == "oom" for row in rows)
    watchers = sorted({row["state"].get("watched_by", "") for row in rows} - {""})
    watched = [WATCHED.format(", ".join(watchers))] if watchers else []
    about = (", ".join(shared), DEFINITIONS, f"{full} of {len(rows)} cases out of memory")
    return Document(machine(rows), (table(lines),), about, (*watched, *failed))


# What a panel shows: the frame's column, that of its spread, and its title with the unit.
PANELS = (
    ("forward_mean_ms", "forward_std_ms", "forward, mean ms"),
    ("backward_mean_ms", "backward_std_ms", "backward, mean ms"),
    ("held_gib", None, "held before backward, GiB"),
)


def drawing(lines: pd.DataFrame) -> Any:
    """Return the matplotlib figure of a frame. Raises PlotError if there is nothing to draw."""
    ok = lines[lines["status"] == "ok"].assign(held_gib=lambda these: these["held_bytes"] / (1 << 30))
    if ok.empty:
        raise plots.PlotError("there are no measurements to draw")
    figure, panels = plots.panelled(len(PANELS))
    for panel, (mean, std, title) in zip(panels, PANELS, strict=True):
        for label, series, looks in _series(ok):
            spread = None if std is None else series[std]
            panel.errorbar(series["length"], series[mean], spread, label=label, capsize=3, markersize=4, **looks)
        _scale(panel, ok, mean)
        panel.set(title=title, xlabel="length")
    plots.legend(figure, panels)
    figure.suptitle(_title(ok), fontsize="medium")
    return figure


def _series(ok: pd.DataFrame) -> Any:
    """Yield each line's label, cases and style: colour by kind, line by dimension."""
    kinds, dims = list(ok["kind"].unique()), sorted(ok["d"].unique())
    for (kind, dtype, d), series in ok.groupby(["kind", "dtype", "d"], sort=False):
        dashes, marker = plots.STYLES[dims.index(d) % len(plots.STYLES)]
        looks = {"color": f"C{kinds.index(kind) % 10}", "linestyle": dashes, "marker": marker}
        several = [dtype] if ok["dtype"].nunique() > 1 else []
        yield " ".join(map(str, [kind, *several, f"d {d}"])), series.sort_values("length"), looks


def _scale(panel: Any, ok: pd.DataFrame, mean: str) -> None:
    lengths = sorted(ok["length"].unique())
    panel.set_xscale("log", base=2)
    panel.set_xticks(lengths, [str(length) for length in lengths])
    panel.set_xticks([], minor=True)
    plots.by_power(panel.yaxis, panel.set_yscale)
    panel.set_ylim(ok[mean].min() / 1.5, ok[mean].max() * 1.5)
    panel.grid(visible=True, alpha=0.3)


def _title(ok: pd.DataFrame) -> str:
    devices = " and ".join(sorted(ok["device_name"].dropna().unique()))
    low, high = ok["forward_n"].min(), ok["forward_n"].max()
    count = f"n = {low:g}{'' if low == high else f' to {high:g}'} passes"
    about = ", ".join(
        f"{name} {ok[column].iloc[0]}" for name, column in (("batch", "batch_size"), ("dtype", "dtype"))
    )
    return f"{devices}: attention alone, mean and sample std of {count}\n{about}, one head, causal"
