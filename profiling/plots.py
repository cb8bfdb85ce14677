"""Draw a sweep's mean times with their spread, one panel per phase."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from profiling.study_frames import CONFIGURATION, PHASES, varying
from profiling.tables import word

# What may stand on the horizontal axis, best first; numbers are drawn to scale.
AXES = ("context_length", "warmup", "size", "batch_size", "dtype", "compile", "attention", "optimizer", "capture")
NUMERIC = ("context_length", "warmup", "batch_size")
PANEL_INCHES = (4.2, 3.6)


class PlotError(Exception):
    """Nothing can be drawn; the text is a sentence for the user."""


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Draw the frame of `study_frames` to a file; its ending chooses png, svg or pdf."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise PlotError("plots need matplotlib: pip install 'nvtx-kernels[plot]'") from error
    ok = lines[lines["status"] == "ok"]
    phases = [phase for phase in PHASES if (ok["phase"] == phase).any()]
    if not phases:
        raise PlotError("there is no measurement to draw")
    axis = horizontal(ok)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(phases), height), layout="constrained")
    panels = figure.subplots(1, len(phases), squeeze=False)[0]
    for panel, phase in zip(panels, phases, strict=True):
        _draw_phase(panel, ok[ok["phase"] == phase], axis)
        panel.set(title=phase, xlabel=CONFIGURATION[axis], ylabel="ms", yscale="log")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    figure.suptitle(_title(ok), fontsize="small")
    _save(figure, path)


def horizontal(lines: pd.DataFrame) -> str:
    """Return the setting that stands on the horizontal axis: the first of AXES that varies."""
    return next((name for name in AXES if lines[name].nunique() > 1), "size")


def _draw_phase(panel: Any, lines: pd.DataFrame, axis: str) -> None:
    for label, series in _series(lines, axis):
        places = series[axis] if axis in NUMERIC else series[axis].map(word)
        panel.errorbar(places, series["mean_ms"], yerr=series["std_ms"], label=label, marker="o", capsize=3)
    panel.grid(visible=True, which="both", alpha=0.3)


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


def _save(figure: Any, path: Path) -> None:
    beside = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
    try:
        figure.savefig(beside, dpi=150)
        beside.replace(path)
    except (OSError, ValueError) as error:
        raise PlotError(f"{path} cannot be drawn: {error}") from error
    finally:
        beside.unlink(missing_ok=True)
