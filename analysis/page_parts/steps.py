"""How much the steps differ, range by range."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.attribution import Attribution
from analysis.page_parts.names import path_texts
from analysis.paths import Paths
from analysis.report import Path, Report
from analysis.selection import collapsed_path
from analysis.spread import per_path_and_step, per_step
from analysis.vocabulary import PHASES

MAX_RANGES, MAX_VALUES = 150, 30_000
STATISTICS = ("median", "min", "max", "mean", "std")


def steps(attribution: Attribution, report: Report) -> dict[str, Any]:
    """Return per range the median, bounds and spread over the steps, and its time in each of them.

    The ranges with the most kernel time come first; `left_out` says how many are not here. Kernel time and GPU
    span of single steps are given for as many ranges as `MAX_VALUES` allows; a null is a step without the range.
    """
    if not report.steps:
        return {"count": 0, "ranges": [], "left_out": 0}
    names, frame = _by_path(attribution, report)
    totals = frame.groupby("path")["kernel_ns"].sum().sort_values(ascending=False, kind="stable")
    chosen = totals.index[:MAX_RANGES].tolist()
    rows = _rows(names, frame[frame["path"].isin(chosen)])
    with_values = chosen[: MAX_VALUES // report.steps]
    for path, group in frame[frame["path"].isin(with_values)].groupby("path"):
        rows[path] |= _values(group, report.steps)
    return {
        "count": report.steps,
        "ranges": [rows[path] for path in chosen],
        "left_out": len(totals) - len(chosen),
    }


def _by_path(attribution: Attribution, report: Report) -> tuple[list[tuple[Path, str]], pd.DataFrame]:
    """Return paths with indices collapsed and their phases, and a frame: path (position in these), step, times."""
    paths = Paths(attribution)
    frame = per_step(attribution, include_warm_up=report.warm_up_included)
    keys = [(collapsed_path(path), PHASES[phase]) for path, phase in zip(paths.paths, paths.phase, strict=True)]
    distinct = list(dict.fromkeys(keys))
    number = {key: place for place, key in enumerate(distinct)}
    frame["path"] = [number[keys[path]] for path in frame["path"]]
    return distinct, per_path_and_step(frame)


def _rows(names: list[tuple[Path, str]], frame: pd.DataFrame) -> dict[Any, dict[str, Any]]:
    groups = frame.groupby("path")
    slowest = frame.loc[groups["kernel_ns"].idxmax()].set_index("path")["step"]
    kernel, span = (_statistics(groups[column]) for column in ("kernel_ns", "span_ns"))
    count = groups.size()
    return {
        path: {
            "path": path_texts(names[path][0]),
            "phase": names[path][1],
            "steps": int(count[path]),
            "slowest": int(slowest[path]),
            "kernel": kernel[path],
            "span": span[path],
            "kernel_ns": None,
            "span_ns": None,
        }
        for path in count.index
    }


def _statistics(groups: Any) -> dict[Any, dict[str, float] | None]:
    """Return per group median, bounds, mean and sample standard deviation, ns; None where a value is missing."""
    frame = groups.agg(list(STATISTICS))
    frame["std"] = frame["std"].fillna(0.0)
    whole = groups.count() == groups.size()
    return {path: row if whole[path] else None for path, row in frame.to_dict("index").items()}


def _values(group: pd.DataFrame, count: int) -> dict[str, list[float | None]]:
    in_steps = group.set_index("step").reindex(range(count))
    return {
        column: [None if value != value else value for value in in_steps[column].tolist()]
        for column in ("kernel_ns", "span_ns")
    }
