"""Draw a sweep's mean times with their spread, one panel per phase."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from profiling.commands import CommandError
from profiling.study_frames import CONFIGURATION, PHASES, varying
from profiling.tables import word

# What may stand on the horizontal axis, best first; numbers are drawn to scale.
AXES = ("context_length", "warmup", "size", "batch_size", "dtype", "compile", "attention", "optimizer", "capture")
NUMERIC = ("context_length", "warmup", "batch_size")
PANEL_INCHES = (5, 3.6)
MOST_COLUMNS = 2


class PlotError(CommandError):
    """Nothing can be drawn; the text is a sentence for the user."""


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Draw the frame of `study_frames` to a file; its ending chooses png, svg or pdf."""
    figure = drawing(lines)
    beside = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
    try:
        figure.savefig(beside, dpi=150)
        beside.replace(path)
    except (OSError, ValueError) as error:
        raise PlotError(f"{path} cannot be drawn: {error}") from error
    finally:
        beside.unlink(missing_ok=True)


def drawing(lines: pd.DataFrame) -> Any:
    """Return the matplotlib figure of a frame. PlotError says why there is none."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise PlotError("plots need matplotlib: pip install 'nvtx-kernels[plot]'") from error
    ok = lines[lines["status"] == "ok"]
    phases = [phase for phase in PHASES if (ok["phase"] == phase).any()]
    if not phases:
        raise PlotError("there is no measurement to draw")
    columns = min(len(phases), MOST_COLUMNS)
    rows = -(-len(phases) // columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    _draw_panels(panels, ok, phases)
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize="small")
    figure.suptitle(_title(ok), fontsize="medium")
    return figure


def _draw_panels(panels: Any, lines: pd.DataFrame, phases: list[str]) -> None:
    axis = horizontal(lines)
    colours = {label: f"C{index % 10}" for index, (label, _) in enumerate(_series(lines, axis))}
    for panel, phase in zip(panels, phases, strict=False):
        panel.set(title=phase, xlabel=CONFIGURATION[axis], ylabel="ms")
        for label, series in _series(lines, axis):
            _draw_series(panel, series[series["phase"] == phase], axis, label, colours[label])
        panel.grid(visible=True, alpha=0.3)
        panel.set_ylim(bottom=0)
    for unused in panels[len(phases) :]:
        unused.remove()


def horizontal(lines: pd.DataFrame) -> str:
    """Return the setting that stands on the horizontal axis: the first of AXES that varies."""
    return next((name for name in AXES if lines[name].nunique() > 1), "size")


def _draw_series(panel: Any, lines: pd.DataFrame, axis: str, label: str, colour: str) -> None:
    if lines.empty:
        return
    places = lines[axis] if axis in NUMERIC else lines[axis].map(word)
    panel.errorbar(places, lines["mean_ms"], lines["std_ms"], label=label, color=colour, marker="o", capsize=3)


def _series(lines: pd.DataFrame, axis: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the lines that differ in the axis alone, with what tells them from the others."""
    apart = [name for name in varying(lines) if name != axis]
    if not apart:
        yield "mean and std", lines
        return
    for values, series in lines.groupby(apart, sort=False, dropna=False):
        yield " ".join(map(word, values)), series


def _title(lines: pd.DataFrame) -> str:
    devices = " and ".join(sorted(lines["device_name"].dropna().unique()))
    low, high = lines["n"].min(), lines["n"].max()
    return f"{devices}: mean and sample std of n = {low:g}{'' if low == high else f' to {high:g}'} steps"
