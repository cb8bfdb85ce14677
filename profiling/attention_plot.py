"""Draw attention alone over length, a line per kind and dimension: forward, backward, memory between them."""

from pathlib import Path
from typing import Any

import pandas as pd

from profiling import plots

# What a panel shows: the frame's column, that of its spread, and its title with the unit.
PANELS = (
    ("forward_mean_ms", "forward_std_ms", "forward, mean ms"),
    ("backward_mean_ms", "backward_std_ms", "backward, mean ms"),
    ("held_gib", None, "held before backward, GiB"),
)


def draw(lines: pd.DataFrame, path: Path) -> None:
    """Draw the frame of `attention_screen.table` to a file; its ending chooses png, svg or pdf."""
    plots.save(drawing(lines), path)


def drawing(lines: pd.DataFrame) -> Any:
    """Return the matplotlib figure of a frame. PlotError says why there is none."""
    ok = lines[lines["status"] == "ok"].assign(held_gib=lambda these: these["held_bytes"] / (1 << 30))
    if ok.empty:
        raise plots.PlotError("there is no measurement to draw")
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
    """Yield what each line is called, its cases, and how it looks: colour by kind, line by dimension."""
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
