"""Draw a sweep's mean times with their spread, one panel per phase.

Colour distinguishes the first setting that varies, line and marker the others.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from nvtx_kernels.analysis.support.files import replacing

from ..cli import CommandError
from .frames import CONFIGURATION, PHASES, constant, place, varying
from .tables import word

# Settings for the horizontal axis, best first; numbers are drawn to scale, of powers of two by power.
AXES = ("context_length", "warmup", "size", "batch_size", "dtype", "compile", "attention", "optimizer", "capture")
NUMERIC = ("context_length", "warmup", "batch_size")
POWERS = ("context_length", "batch_size")
# Values of these grow along the axis, so that a line between them means something.
GROWING = (*NUMERIC, "size")
STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"), ((0, (5, 1)), "v"), ((0, (1, 1)), "P"))
NOT_IN_TITLE = ("device_name", "torch", "capture", "memory_fraction", "seed", "steps")
PANEL_INCHES = (5, 3.6)
MOST_COLUMNS = 2
# Letters of a title over one panel.
TITLE_WIDTH = 54
# From this ratio of the longest time to the shortest, times are drawn by power of ten.
WIDE = 10


class PlotError(CommandError):
    """Nothing can be drawn; the text is a sentence for the user."""


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Draw the frame of `study_frames` to a file; its ending chooses png, svg or pdf."""
    save(drawing(lines), path)


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure to a file, whole or not at all."""
    try:
        with replacing(path) as file:
            figure.savefig(file, dpi=150, format=path.suffix.removeprefix(".") or None)
    except (OSError, ValueError) as error:
        raise PlotError(f"{path} cannot be drawn: {getattr(error, 'strerror', None) or error}") from error


def drawing(lines: pd.DataFrame) -> Any:
    """Return the matplotlib figure of a frame. Raises PlotError if there is nothing to draw."""
    ok = lines[lines["status"] == "ok"]
    phases = [phase for phase in PHASES if (ok["phase"] == phase).any()]
    if phases == ["forward", "step"]:
        phases = ["forward"]
    if not phases:
        raise PlotError("there are no measurements to draw")
    figure, panels = panelled(len(phases))
    for panel, phase in zip(panels, phases, strict=True):
        _draw_panel(panel, ok, phase)
    legend(figure, panels)
    figure.suptitle(_title(ok, TITLE_WIDTH * min(len(phases), MOST_COLUMNS)), fontsize="medium")
    return figure


def panelled(count: int) -> tuple[Any, list[Any]]:
    """Return an empty figure and its panels, two in a row."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise PlotError("plots need matplotlib: pip install 'nvtx-kernels[plot]'") from error
    columns = min(count, MOST_COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in panels[count:]:
        unused.remove()
    return figure, list(panels[:count])


def legend(figure: Any, panels: list[Any]) -> None:
    """Put one legend for all panels below them."""
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    if len(handles) > 1:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize="small")


def _draw_panel(panel: Any, ok: pd.DataFrame, phase: str) -> None:
    axis = horizontal(ok)
    panel.set(title=phase, xlabel=CONFIGURATION[axis], ylabel="mean ms")
    series = list(_series(ok, axis))
    for index, (label, colour, style, lines) in enumerate(series):
        aside = 0 if axis in GROWING else 0.06 * (index - (len(series) - 1) / 2)
        _draw_series(panel, lines[lines["phase"] == phase], (ok, axis, aside), (label, colour, style))
    panel.grid(visible=True, alpha=0.3)
    _scale_times(panel, ok[ok["phase"] == phase])
    _scale_axis(panel, ok, axis)


def horizontal(lines: pd.DataFrame) -> str:
    """Return the setting for the horizontal axis: the first of AXES that varies."""
    return next((name for name in AXES if lines[name].nunique() > 1), "size")


def _draw_series(
    panel: Any, lines: pd.DataFrame, where: tuple[pd.DataFrame, str, float], how: tuple[str, str, Any]
) -> None:
    if lines.empty:
        return
    (ok, axis, aside), (label, colour, (dashes, marker)) = where, how
    places = lines[axis] if axis in NUMERIC else lines[axis].map(_values(ok, axis).index) + aside
    looks = {"color": colour, "marker": marker, "linestyle": dashes if axis in GROWING else "none"}
    panel.errorbar(places, lines["mean_ms"], lines["std_ms"], label=label, capsize=3, **looks)


def _values(lines: pd.DataFrame, axis: str) -> list[Any]:
    return sorted(lines[axis].dropna().unique(), key=lambda value: place(axis, value))


def _scale_times(panel: Any, lines: pd.DataFrame) -> None:
    low, high = lines["mean_ms"].min(), (lines["mean_ms"] + lines["std_ms"].fillna(0)).max()
    if lines["mean_ms"].max() < WIDE * low:
        panel.set_ylim(0, 1.05 * high)
        return
    by_power(panel.yaxis, panel.set_yscale)
    panel.set_ylim(low / 1.5, high * 1.3)


def by_power(axis: Any, set_scale: Any) -> None:
    """Scale an axis by power of ten, with its numbers written out."""
    from matplotlib.ticker import (  # type: ignore[import-not-found,unused-ignore]
        LogLocator,
        NullFormatter,
        StrMethodFormatter,
    )

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _scale_axis(panel: Any, lines: pd.DataFrame, axis: str) -> None:
    """Mark on the horizontal axis what was measured, the same in every panel."""
    values = _values(lines, axis)
    if axis in POWERS and len(values) > 1:
        panel.set_xscale("log", base=2)
        panel.set_xlim(values[0] / 1.2, values[-1] * 1.2)
    places = values if axis in NUMERIC else list(range(len(values)))
    panel.set_xticks(places, [word(value) for value in values], minor=False)
    panel.set_xticks([], minor=True)
    if axis not in POWERS:
        room = 0.05 * max(places[-1] - places[0], 1) if axis in GROWING else 0.5
        panel.set_xlim(places[0] - room, places[-1] + room)


def _series(lines: pd.DataFrame, axis: str) -> Iterator[tuple[str, str, Any, pd.DataFrame]]:
    """Yield the lines that differ in the axis alone, with the label, colour and style that distinguish them."""
    apart = [name for name in varying(lines) if name != axis and lines[name].nunique() > 1]
    if not apart:
        yield "mean", "C0", STYLES[0], lines
        return
    colours: dict[Any, str] = {}
    styles: dict[Any, Any] = {}
    for values, series in lines.groupby(apart, sort=False, dropna=False):
        first, *others = pd.Series(values, dtype=object).replace({float("nan"): None})
        colour = colours.setdefault(first, f"C{len(colours) % 10}")
        style = styles.setdefault(tuple(others), STYLES[len(styles) % len(STYLES)])
        yield " ".join(filter(None, map(_label, apart, values))), colour, style, series


def _label(name: str, value: Any) -> str:
    if name == "compile":
        return "compiled" if value else "eager"
    if name == "optimizer":
        return "" if pd.isna(value) else f"{value} AdamW"
    return word(value) if isinstance(value, str) else f"{CONFIGURATION[name]} {word(value)}"


def _title(lines: pd.DataFrame, width: int) -> str:
    devices = " and ".join(sorted(lines["device_name"].dropna().unique()))
    low, high = lines["n"].min(), lines["n"].max()
    axis = horizontal(lines)
    same = {name: value for name, value in constant(lines).items() if name not in (*NOT_IN_TITLE, axis)}
    about = ", ".join(f"{CONFIGURATION[name]} {word(value)}" for name, value in same.items())
    count = f"n = {low:g}{'' if low == high else f' to {high:g}'} steps"
    return f"{devices}: mean and sample std of {count}\n{textwrap.fill(about, width)}".strip()
