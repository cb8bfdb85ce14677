"""Draw a sweep's mean times with their spread, one panel per phase, and the memory that attention alone holds.

Colour distinguishes the first setting that varies, line and marker the others.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from nvtx_kernels.analysis.support.files import replacing

from ..cli import CommandError
from .frame import CONFIGURATION, PHASES, constant, place, varying, word

# Settings for the horizontal axis, best first; numbers are drawn to scale, of powers of two by power.
AXES = (
    *("length", "context_length", "warmup", "size", "batch_size"),
    *("dtype", "compile", "attention", "optimizer", "capture"),
)
POWERS = ("length", "context_length", "batch_size")
NUMERIC = (*POWERS, "warmup")
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
HELD = "held before backward"


class PlotError(CommandError):
    """Nothing can be drawn; the text is a sentence for the user."""


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Draw a frame to a file, complete or not at all; its ending chooses png, svg or pdf."""
    figure = drawing(lines)
    try:
        with replacing(path) as file:
            figure.savefig(file, dpi=150, format=path.suffix.removeprefix(".") or None)
    except (OSError, ValueError) as error:
        raise PlotError(f"{path} cannot be drawn: {getattr(error, 'strerror', None) or error}") from error


def drawing(lines: pd.DataFrame) -> Any:
    """Return the matplotlib figure of a frame. Raises PlotError if there is nothing to draw."""
    ok = lines[lines["status"] == "ok"]
    panel_titles = _panel_titles(ok)
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise PlotError("plots need matplotlib: pip install 'nvtx-kernels[plot]'") from error

    columns = min(len(panel_titles), MOST_COLUMNS)
    rows = -(-len(panel_titles) // columns)
    panel_width, panel_height = PANEL_INCHES
    size = (panel_width * columns, panel_height * rows + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in panels[len(panel_titles) :]:
        unused.remove()
    handles: dict[str, Any] = {}
    for panel, panel_title in zip(panels, panel_titles, strict=False):
        _draw_panel(panel, ok, panel_title)
        panel_handles, labels = panel.get_legend_handles_labels()
        handles |= dict(zip(labels, panel_handles, strict=True))
    if len(handles) > 1:
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=3,
            fontsize="small",
        )
    title = _title(ok, TITLE_WIDTH * columns)
    figure.suptitle(title, fontsize="medium")
    return figure


def _panel_titles(ok: pd.DataFrame) -> list[str]:
    """Return the titles of the panels: phases, and HELD. Raises PlotError if there is nothing to draw."""
    titles = [phase for phase in PHASES if (ok["phase"] == phase).any()]
    if titles == ["forward", "step"]:
        titles = ["forward"]
    if not titles:
        raise PlotError("there are no measurements to draw")
    if ok["held_bytes"].notna().any():
        titles.append(HELD)
    return titles


def _title(ok: pd.DataFrame, width: int) -> str:
    """Return the title: the devices, how many steps, and the configuration that all lines share."""
    low = ok["n"].min()
    high = ok["n"].max()
    count = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    devices = " and ".join(sorted(ok["device_name"].dropna().unique()))
    elsewhere = (*NOT_IN_TITLE, horizontal(ok))
    shared = {name: value for name, value in constant(ok).items() if name not in elsewhere}
    about = ", ".join(f"{CONFIGURATION[name]} {word(value)}" for name, value in shared.items())
    measured = f"{devices}: mean and sample std of n = {count} steps"
    return f"{measured}\n{textwrap.fill(about, width)}".strip()


def horizontal(lines: pd.DataFrame) -> str:
    """Return the setting for the horizontal axis: the first of AXES that varies, or else that the lines have."""
    varying_axes = (name for name in AXES if lines[name].nunique() > 1)
    known_axes = (name for name in ("size", *AXES) if lines[name].notna().any())
    return next(varying_axes, next(known_axes))


def _draw_panel(panel: Any, ok: pd.DataFrame, title: str) -> None:
    """Draw the mean times of one phase, or the memory held between two, with a line or markers per series."""
    axis = horizontal(ok)
    values = sorted(ok[axis].dropna().unique(), key=lambda value: place(axis, value))
    is_memory = title == HELD
    phase = "forward" if is_memory else title
    drawn = ok[ok["phase"] == phase]
    if is_memory:
        drawn = drawn.assign(mean_ms=drawn["held_bytes"] / (1 << 30), std_ms=None)
    unit = "GiB" if is_memory else "mean ms"
    panel.set(title=title, xlabel=CONFIGURATION[axis], ylabel=unit)
    _draw_series(panel, ok, drawn, axis, values)
    panel.grid(visible=True, alpha=0.3)
    _scale_vertical(panel, drawn)
    _scale_horizontal(panel, axis, values)


def _draw_series(
    panel: Any,
    ok: pd.DataFrame,
    drawn: pd.DataFrame,
    axis: str,
    values: list[Any],
) -> None:
    """Draw a panel's lines over the values of an axis, each series with its colour and style."""
    series = list(_series(ok, axis))
    middle = (len(series) - 1) / 2
    for index, (label, colour, (dashes, marker), members) in enumerate(series):
        lines = drawn[drawn.index.isin(members.index)]
        lines = lines.sort_values(axis, key=lambda column: column.map(values.index))
        if lines.empty:
            continue
        aside = 0 if axis in GROWING else 0.06 * (index - middle)
        where = lines[axis] if axis in NUMERIC else lines[axis].map(values.index) + aside
        spread = None if lines["std_ms"].isna().all() else lines["std_ms"].astype(float)
        panel.errorbar(
            where,
            lines["mean_ms"],
            spread,
            label=label,
            capsize=3,
            color=colour,
            marker=marker,
            linestyle=dashes if axis in GROWING else "none",
        )


def _scale_vertical(panel: Any, drawn: pd.DataFrame) -> None:
    """Begin at zero, or draw by power of ten what is far apart."""
    from matplotlib import ticker  # type: ignore[import-not-found,unused-ignore]

    spread = drawn["std_ms"].astype(float).fillna(0)
    low = drawn["mean_ms"].min()
    high = (drawn["mean_ms"] + spread).max()
    if drawn["mean_ms"].max() < WIDE * low:
        panel.set_ylim(0, 1.05 * high)
        return
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    panel.yaxis.set_minor_formatter(ticker.NullFormatter())
    panel.set_ylim(low / 1.5, high * 1.3)


def _scale_horizontal(panel: Any, axis: str, values: list[Any]) -> None:
    """Mark what was measured on the horizontal axis, the same in every panel."""
    ticks = values if axis in NUMERIC else list(range(len(values)))
    if axis in POWERS and len(values) > 1:
        panel.set_xscale("log", base=2)
        panel.set_xlim(values[0] / 1.2, values[-1] * 1.2)
    panel.set_xticks(ticks, [word(value) for value in values], minor=False)
    panel.set_xticks([], minor=True)
    if axis not in POWERS:
        room = 0.05 * max(ticks[-1] - ticks[0], 1) if axis in GROWING else 0.5
        panel.set_xlim(ticks[0] - room, ticks[-1] + room)


def _series(lines: pd.DataFrame, axis: str) -> Iterator[tuple[str, str, Any, pd.DataFrame]]:
    """Yield the lines that differ in the axis alone, with the label, colour and style that distinguish them."""
    apart = [name for name in varying(lines) if name != axis]
    if not apart:
        yield "mean", "C0", STYLES[0], lines
        return
    colours: dict[Any, str] = {}
    styles: dict[Any, Any] = {}
    for values, series in lines.groupby(apart, sort=False, dropna=False):
        first, *others = pd.Series(values, dtype=object).replace({float("nan"): None})
        next_colour = f"C{len(colours) % 10}"
        next_style = STYLES[len(styles) % len(STYLES)]
        colour = colours.setdefault(first, next_colour)
        style = styles.setdefault(tuple(others), next_style)
        labels = map(_label, apart, values)
        yield " ".join(filter(None, labels)), colour, style, series


def _label(name: str, value: Any) -> str:
    if name == "compile":
        return {"True": "compiled", "False": "eager"}.get(str(value), str(value))
    if name == "optimizer":
        return "" if pd.isna(value) else f"{value} AdamW"
    return word(value) if isinstance(value, str) else f"{CONFIGURATION[name]} {word(value)}"
