"""Rows of a sweep as one pandas frame: a line per configuration and phase, numbers in it.

Columns: the cell's settings by name, `size` with the dimensions that were changed, `capture` with what watched
the whole command; `device_name`, `torch`; `status` (ok, oom, failed), `parameters`;
`phase` (forward, backward, optimizer, step; of an oom row the phase that failed); of the measured steps `n`,
`mean_ms`, `std_ms` (of the sample), `cv_percent`, `min_ms`, `median_ms`, `max_ms`; `first_ms`, the very first
step, warm-up or not; `processes`, how many were pooled; `tokens_per_s`, `tflops`, `mfu_percent` of the phase
(of the whole step for `step`); `peak_bytes` of tensors; `sm_mhz` the
clock under load; STATE; `requested_bytes` and `message` of what went wrong; `started`, when each process
began (UTC), separated by spaces.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
from nvtx_kernels.model.config import CONFIGS, name_of

from ..sweep import results
from .throughput import FLOPS_OF_PHASE, peak_tflops, phase_flops, tokens

Row = dict[str, Any]
ALL_MEMORY = 1.0
# Measurements so far apart may have been made on another host, or while other work ran.
APART = timedelta(minutes=10)
PHASES = ("forward", "backward", "optimizer", "step")
# What distinguishes configurations, in the order of a table's columns, with its header.
CONFIGURATION: Mapping[str, str] = {
    "device_name": "device",
    "torch": "torch",
    "size": "size",
    "context_length": "context",
    "batch_size": "batch",
    "mode": "mode",
    "dtype": "dtype",
    "attention": "attention",
    "compile": "compile",
    "optimizer": "AdamW",
    "capture": "capture",
    "memory_fraction": "memory fraction",
    "seed": "seed",
    "warmup": "warm-up",
    "steps": "steps",
}
# The order of lines where it is not that of the values themselves.
ORDER: Mapping[str, Sequence[str]] = {
    "size": list(CONFIGS),
    "mode": ("forward", "forward-backward", "train"),
    "dtype": ("fp32", "tf32", "bf16", "fp16"),
    "attention": ("reference", "sdpa"),
    "optimizer": ("reference", "forloop", "foreach", "fused"),
    "capture": ("none", "bare", "recorder", "emit-nvtx"),
    "phase": PHASES,
}
# Columns that a frame has even if no line has a value.
COLUMNS = (
    *CONFIGURATION,
    *("status", "phase", "n", "mean_ms", "std_ms", "cv_percent", "min_ms", "median_ms", "max_ms", "first_ms"),
    *("processes", "parameters", "tokens_per_s", "tflops", "mfu_percent", "peak_bytes", "sm_mhz"),
    *("requested_bytes", "message", "started"),
)
# Further facts about the machine while a line was measured.
STATE = ("tf32", "autocast", "cuda", "driver", "python", "threads")


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the frame of the latest rows; repeats of a configuration are pooled."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=_order):
        groups.setdefault(tuple(_configuration(row).values()), []).append(row)
    lines = pd.DataFrame([line for group in groups.values() for line in _lines(group)])
    return lines.reindex(columns=list(dict.fromkeys((*COLUMNS, *lines.columns))))


def _order(row: Row) -> list[tuple[Any, ...]]:
    return [place(name, value) for name, value in _configuration(row).items()]


def place(name: str, value: Any) -> tuple[Any, ...]:
    """Return the sort key of a setting's value: the order of ORDER, None first, else their own."""
    order = ORDER.get(name, ())
    if value is None or value in order:
        return (-1 if value is None else order.index(value),)
    return (len(order), value)


def _configuration(row: Row) -> dict[str, Any]:
    state = row["state"]
    known = {
        **row["cell"],
        "size": name_of(row["cell"]),
        "capture": results.capture_of(row),
        "device_name": state.get("device_name"),
        "torch": state.get("torch"),
    }
    known["memory_fraction"] = known["memory_fraction"] or ALL_MEMORY
    return {name: known.get(name) for name in CONFIGURATION}


def _lines(group: list[Row]) -> Iterator[Row]:
    known = {**_configuration(group[0]), **{name: group[0]["state"].get(name) for name in STATE}}
    known["started"] = " ".join(sorted(str(row["started"]) for row in group if row.get("started")))
    bad = next((row for row in group if row["status"] != "ok"), None)
    if bad is not None:
        wrong = {name: bad.get(name) for name in ("status", "phase", "requested_bytes", "message")}
        yield {**known, **wrong}
        return
    for phase in PHASES:
        if phase in group[0]["measured"][0]:
            yield {**known, "status": "ok", **_phase_line(group, phase)}


def _phase_line(group: list[Row], phase: str) -> Row:
    values = [times[phase] for row in group for times in row["measured"]]
    return {
        "phase": phase,
        "parameters": group[0]["parameters"],
        "processes": len(group),
        **statistics_of(values),
        "first_ms": statistics.fmean((row["warmup"] + row["measured"])[0][phase] for row in group),
        **_rates(group[0], phase, statistics.fmean(values)),
        "peak_bytes": _peak_bytes(group[0], phase),
        "sm_mhz": (group[0].get("clocks") or {}).get("sm_mhz"),
    }


def statistics_of(values: Sequence[float]) -> dict[str, float | None]:
    """Return statistics of the measured times of a phase; std is the sample's, None for one value."""
    mean = statistics.fmean(values)
    std = statistics.stdev(values) if len(values) > 1 else None
    return {
        "n": len(values),
        "mean_ms": mean,
        "std_ms": std,
        "cv_percent": None if std is None else 100 * std / mean,
        "min_ms": min(values),
        "median_ms": statistics.median(values),
        "max_ms": max(values),
    }


def _rates(row: Row, phase: str, mean_ms: float) -> dict[str, float | None]:
    cell, done = row["cell"], tuple(name for name in row["measured"][0] if name != "step")
    flops = phase_flops(cell, done if phase == "step" else (phase,))
    tflops = flops / mean_ms / 1e9 if flops else None
    peak = peak_tflops(row["state"]["device_name"], cell["dtype"])
    return {
        "tokens_per_s": tokens(cell) / mean_ms * 1e3 if phase == "step" else None,
        "tflops": tflops,
        "mfu_percent": None if peak is None or tflops is None else 100 * tflops / peak,
    }


def _peak_bytes(row: Row, phase: str) -> int | None:
    by_phase = row.get("phase_peak_bytes") or {}
    return by_phase.get(phase) if phase in FLOPS_OF_PHASE else max(by_phase.values(), default=None)


def sessions(started: Iterable[str]) -> list[tuple[datetime, datetime]]:
    """Return the first and last moment of every session, APART or more from the next, of those given."""
    found: list[tuple[datetime, datetime]] = []
    for moment in sorted(datetime.fromisoformat(text.replace("Z", "+00:00")) for text in started):
        if found and moment - found[-1][1] < APART:
            found[-1] = (found[-1][0], moment)
        else:
            found.append((moment, moment))
    return found


def sessions_of(lines: pd.DataFrame) -> list[tuple[datetime, datetime]]:
    """Return the sessions in which lines were measured."""
    return sessions(text for texts in lines["started"].dropna() for text in texts.split())


def varying(lines: pd.DataFrame) -> list[str]:
    """Return the configuration columns that distinguish the lines; the size is always one of them."""
    return [name for name in CONFIGURATION if name == "size" or lines[name].nunique() > 1]


def constant(lines: pd.DataFrame) -> dict[str, Any]:
    """Return the configuration that all lines share, without what none of them has."""
    shared = {name: lines[name].dropna().unique() for name in CONFIGURATION if name not in varying(lines)}
    return {name: values[0] for name, values in shared.items() if len(values)}
