"""Rows of a sweep as one pandas frame: a line per configuration and phase, numbers in it.

Columns: the cell's settings by name, `size` with the dimensions that were changed, `capture` with what watched
the whole command, `kind`, `d` and `length` of attention alone; `device_name`, `torch`; `status` (ok, oom, failed),
`parameters`; `phase` (forward, backward, optimizer, step; of an oom row the phase that failed); of the measured
steps `n`, `mean_ms`, `std_ms` (of the sample), `cv_percent`, `min_ms`, `median_ms`, `max_ms`; `first_ms`, the very
first step, warm-up or not; `processes`, how many were pooled; `tokens_per_s`, `tflops`, `mfu_percent` of the phase
(of the whole step for `step`); `peak_bytes` of tensors, `held_bytes` between attention's forward and backward;
`sm_mhz` the clock under load; STATE; `requested_bytes` and `message` of what went wrong; `started`, when each
process began (UTC), separated by spaces.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
from nvtx_kernels.analysis.measures.gpu_peaks import peak_of
from nvtx_kernels.analysis.vocabulary.settings import CHOICES, DIMENSIONS, MEASURING, WORK
from nvtx_kernels.model.config import config_of, name_of
from nvtx_kernels.model.cost import matmul_flops

from . import results
from .results import Row
from .studies import KINDS

ALL_MEMORY = 1.0
# Measurements so far apart may have been made on another host, or while other work ran.
APART = timedelta(minutes=10)
PHASES = ("forward", "backward", "optimizer", "step")
# A phase's FLOPs are a multiple of those of the forward's matrix products: recomputation does not count, and the
# share of the peak is the MFU of PaLM (Chowdhery et al. 2022, appendix B), with attention's products included.
FORWARDS_OF_PHASE = {"forward": 1, "backward": 2, "optimizer": 0}
# What distinguishes configurations, in the order of a table's columns, with its header.
CONFIGURATION: Mapping[str, str] = {
    "device_name": "device",
    **{name: name for name in ("torch", "kind", "size", "context_length", "d", "length")},
    **{setting.name: setting.header for setting in WORK if setting not in DIMENSIONS},
    "optimizer": "AdamW",
    "capture": "capture",
    "memory_fraction": "memory fraction",
    **{setting.name: setting.header for setting in MEASURING},
}
# The order of lines where it is not that of the values themselves.
ORDER: Mapping[str, Sequence[Any]] = {
    **CHOICES,
    "kind": KINDS,
    "capture": ("none", "bare", "recorder", "emit-nvtx"),
    "phase": PHASES,
}
STATISTICS = ("n", "mean_ms", "std_ms", "cv_percent", "min_ms", "median_ms", "max_ms")
OF_FAILURE = ("status", "phase", "requested_bytes", "message")
# Columns that a frame has even if no line has a value.
COLUMNS = (
    *CONFIGURATION,
    *("status", "phase", *STATISTICS, "first_ms"),
    *("processes", "parameters", "tokens_per_s", "tflops", "mfu_percent", "peak_bytes", "held_bytes", "sm_mhz"),
    *("requested_bytes", "message", "started"),
)
# Further facts about the machine while a line was measured.
STATE = ("tf32", "autocast", "cuda", "driver", "host_cpu", "python", "threads")


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the frame of the latest rows; repeats of a configuration are pooled."""
    pooled: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        pooled.setdefault(tuple(configuration(row).values()), []).append(row)
    lines = pd.DataFrame([line for group in pooled.values() for line in _lines(group)])
    columns = dict.fromkeys((*COLUMNS, *lines.columns))
    lines = lines.reindex(columns=list(columns))
    return lines.sort_values(
        list(CONFIGURATION),
        kind="stable",
        key=places,
        ignore_index=True,
    )


def place(name: str, value: Any) -> tuple[Any, ...]:
    """Return the sort key of a setting's value: the order of ORDER, None first, else their own."""
    order = ORDER.get(name, ())
    if value is None:
        return (-1,)
    if value in order:
        return (order.index(value),)
    return (len(order), value)


def places(values: pd.Series) -> pd.Series:
    """Return each value's place among those of its setting, for sorting."""
    name = str(values.name)
    ordered = sorted(set(values.dropna()), key=lambda value: place(name, value))
    indices = {value: index for index, value in enumerate(ordered)}
    return values.map(indices).fillna(-1)


def configuration(row: Row) -> dict[str, Any]:
    """Return the settings that distinguish a row's configuration from others."""
    state = row["state"]
    values = dict(row["cell"])
    values["capture"] = results.capture_of(row)
    values["device_name"] = state.get("device_name")
    values["torch"] = state.get("torch")
    if row["kind"] == results.MODEL:
        values["size"] = name_of(row["cell"])
        values["memory_fraction"] = values["memory_fraction"] or ALL_MEMORY
    return {name: values.get(name) for name in CONFIGURATION}


def _lines(group: list[Row]) -> Iterator[Row]:
    """Yield a line per phase of rows of one configuration, or what went wrong with it."""
    first = group[0]
    shared = configuration(first)
    shared |= {name: first["state"].get(name) for name in STATE}
    started = [str(row["started"]) for row in group if row.get("started")]
    shared["started"] = " ".join(sorted(started))
    failure = next((row for row in group if row["status"] != "ok"), None)
    if failure is not None:
        yield {**shared, **{name: failure.get(name) for name in OF_FAILURE}}
        return
    peaks = dict(first.get("phase_peak_bytes") or {})
    peaks["step"] = max(peaks.values(), default=None)
    clocks = first.get("clocks") or {}
    for phase in PHASES:
        steps = [step for row in group for step in row["measured"]]
        times = [step[phase] for step in steps if phase in step]
        if not times:
            continue
        figures = _statistics(times)
        first_times = [_first_time(row, phase) for row in group]
        yield {
            **shared,
            "status": "ok",
            "phase": phase,
            "parameters": first.get("parameters"),
            "processes": len(group),
            **figures,
            "first_ms": statistics.fmean(first_times),
            **_rates(first, phase, figures["mean_ms"]),
            "peak_bytes": peaks.get(phase),
            "held_bytes": first.get("held_bytes") if phase == "forward" else None,
            "sm_mhz": clocks.get("sm_mhz"),
        }


def _statistics(times: Sequence[float]) -> dict[str, Any]:
    """Return STATISTICS of some times, ms; a single one has no spread."""
    mean = statistics.fmean(times)
    std = statistics.stdev(times) if len(times) > 1 else None
    return {
        "n": len(times),
        "mean_ms": mean,
        "std_ms": std,
        "cv_percent": std and 100 * std / mean,
        "min_ms": min(times),
        "median_ms": statistics.median(times),
        "max_ms": max(times),
    }


def _first_time(row: Row, phase: str) -> float:
    """Return how long a phase took in the first step that had it, ms."""
    steps = row["warmup"] + row["measured"]
    times: Iterator[float] = (step[phase] for step in steps if phase in step)
    return next(times)


def _rates(row: Row, phase: str, mean_ms: float) -> dict[str, float | None]:
    """Return tokens per second, TFLOP/s and MFU of a phase; attention alone has none."""
    cell = row["cell"]
    if row["kind"] != results.MODEL:
        return {}
    batch_size, length = cell["batch_size"], cell["context_length"]
    phases = [name for name in row["measured"][0] if phase in ("step", name) and name != "step"]
    forwards = sum(FORWARDS_OF_PHASE[name] for name in phases)
    flops = forwards * matmul_flops(config_of(cell), batch_size, length)
    tflops = flops / mean_ms / 1e9 if flops else None
    peak = peak_tflops(row["state"]["device_name"], cell["dtype"])
    tokens = batch_size * length
    return {
        "tokens_per_s": tokens / mean_ms * 1e3 if phase == "step" else None,
        "tflops": tflops,
        "mfu_percent": None if peak is None or tflops is None else 100 * tflops / peak,
    }


def peak_tflops(device_name: str, dtype: str) -> float | None:
    """Return the dense peak of a GPU in TFLOP/s for a dtype, None where it is not known."""
    peak = peak_of([device_name])
    return peak and peak.tflops.get(dtype)


def sessions(started: Iterable[str]) -> list[tuple[datetime, datetime]]:
    """Return the first and last moment of every session, APART or more from the next; texts may join several."""
    texts = [text for joined in started for text in joined.split()]
    moments = [datetime.fromisoformat(text.replace("Z", "+00:00")) for text in texts]
    spans: list[tuple[datetime, datetime]] = []
    for moment in sorted(moments):
        first, last = spans[-1] if spans else (moment, moment)
        if spans and moment - last < APART:
            spans[-1] = (first, moment)
        else:
            spans.append((moment, moment))
    return spans


def varying(lines: pd.DataFrame) -> list[str]:
    """Return the configuration columns that distinguish the lines."""
    return [name for name in CONFIGURATION if lines[name].nunique() > 1]


def constant(lines: pd.DataFrame) -> dict[str, Any]:
    """Return the configuration that all lines share, without what none of them has."""
    shared = [name for name in CONFIGURATION if lines[name].nunique() == 1]
    return {name: lines[name].dropna().unique()[0] for name in shared}


def word(value: Any) -> str:
    """Return how a setting's value reads."""
    return {"True": "yes", "False": "no"}.get(str(value), str(value))
