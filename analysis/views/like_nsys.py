"""nsys's own two reports, from our reading of the file, so that anyone can check us against `nsys stats`.

`nvtx_kern_sum` counts a kernel in every push/pop range of the launching thread that contains the whole launch
call, grouped by range name, thread and kernel. `nvtx_gpu_proj_sum` adds up, over a range name's instances, the
time from the first start to the last end of all GPU work launched inside. Standard deviations are the sample's.
What this project's other views show beyond these numbers is what adoption and linking add.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..attribution.nesting import Nesting
from ..document import SHORT, Column, Detail, Document, Kind, Row, Table
from ..kernel_names.short import names_by_kernel
from ..trace import KERNEL, PUSH_POP, Ranges, Trace
from . import headings

# nsys's headings, short enough for a terminal.
HEADINGS = {
    "range_instances": "ranges",
    "count": "launches",
    "total_ns": "total",
    "avg_ns": "avg",
    "med_ns": "med",
    "min_ns": "min",
    "max_ns": "max",
    "stddev_ns": "std",
    "total_span_ns": "total",
    "total_range_ns": "range",
    "span_avg_ns": "avg",
    "span_med_ns": "med",
    "span_min_ns": "min",
    "span_max_ns": "max",
    "span_stddev_ns": "std",
    "operations": "{unit_of_work} ops",
}

#: Columns of single launches and spans, which are shorter than sums.
PER_LAUNCH = ("avg_ns", "med_ns", "min_ns", "max_ns", "stddev_ns")


def like_nsys(trace: Trace, detail: Detail = SHORT) -> Document:
    """Return nsys's kernel summary and projection summary per range.

    People get a range's kernels below it; programs get every row by itself, as in nsys's CSV.
    """
    inside = work_in_ranges(trace)
    kernels = kernel_summary(inside)
    source, draw = trace.provenance, _table if detail.whole else _grouped
    heading = f"{source.file}: counted as `nsys stats` does, by " + headings.worded(
        "the launching thread's own ranges", source
    )
    unit = source.unit_of_work
    tables = (
        draw("nvtx_kern_sum", "Kernels in each range, {unit} total", kernels, unit),
        _table(
            "nvtx_gpu_proj_sum",
            f"{unit} span of each range (projection), {{unit}} total",
            projection_summary(inside),
            unit,
        ),
    )
    with_rows = tables if len(inside) or detail.whole else ()
    return headings.document(source, heading, with_rows, (), () if len(inside) else (_nothing(trace),))


def _nothing(trace: Trace) -> str:
    """Return why no range contains work, as nsys counts it."""
    if not (trace.ranges.style == PUSH_POP).any():
        return (
            "The report has no NVTX push/pop ranges, and nsys counts by no others. Open some with "
            "`nvtx_kernels.annotate.range` or `torch.cuda.nvtx`, and record with `-t cuda,nvtx`."
        )
    return "No work was launched inside a range of its own thread, which is what nsys counts."


def work_in_ranges(trace: Trace) -> pd.DataFrame:
    """Pair each piece of work with each range of its launching thread that contains its launch call.

    Columns: work (position in Work), instance (position among the push/pop ranges), range and kernel (names), pid,
    tid, is_kernel, start_ns, end_ns, range_ns (the range's own duration).
    """
    ranges, work, launches = trace.ranges.take(trace.ranges.style == PUSH_POP), trace.work, trace.launches
    launched = np.flatnonzero(work.launch >= 0)
    call = work.launch[launched]
    nesting = Nesting(ranges)
    node = nesting.containing(launches.thread[call], launches.start_ns[call], launches.end_ns[call])
    rows, instances = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    while len(held := np.flatnonzero(node >= 0)):
        rows.append(launched[held])
        instances.append(nesting.forest.range[node[held]])
        node = nesting.forest.above(node)
    paired, instance = np.concatenate(rows), np.concatenate(instances)
    names = np.array([*trace.names, ""], object)
    thread = ranges.thread[instance]
    return pd.DataFrame(
        {
            "work": paired,
            "instance": instance,
            "range": _range_names(trace, ranges)[instance],
            "pid": np.array([trace.processes[t.process].process_id for t in trace.threads] or [0])[thread],
            "tid": np.array([t.thread_id for t in trace.threads] or [0])[thread],
            "kernel": names[work.name_id[paired]],
            "is_kernel": work.kind[paired] == KERNEL,
            "start_ns": work.start_ns[paired],
            "end_ns": work.end_ns[paired],
            "range_ns": (ranges.end_ns - ranges.start_ns)[instance],
        }
    )


def kernel_summary(inside: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `nsys stats -r nvtx_kern_sum` that name a range, longest first within each range."""
    kernels = inside[inside["is_kernel"]].assign(duration_ns=inside["end_ns"] - inside["start_ns"])
    grouped = kernels.groupby(["range", "pid", "tid", "kernel"], sort=True)
    frame = (
        grouped["duration_ns"]
        .agg(
            count="count",
            total_ns="sum",
            avg_ns="mean",
            med_ns="median",
            min_ns="min",
            max_ns="max",
            stddev_ns="std",
        )
        .reset_index()
    )
    frame.insert(3, "range_instances", grouped["instance"].nunique().to_numpy())
    frame = frame[[*frame.columns.drop("kernel"), "kernel"]]
    return frame.sort_values(
        ["range", "pid", "tid", "total_ns"], ascending=[True, True, True, False], kind="stable"
    )


def projection_summary(inside: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `nsys stats -r nvtx_gpu_proj_sum`, longest first."""
    per_instance = inside.groupby(["range", "instance"], sort=False).agg(
        start_ns=("start_ns", "min"),
        end_ns=("end_ns", "max"),
        range_ns=("range_ns", "first"),
        operations=("work", "count"),
    )
    per_instance["span_ns"] = per_instance["end_ns"] - per_instance["start_ns"]
    frame = per_instance.groupby("range", sort=True).agg(
        total_span_ns=("span_ns", "sum"),
        total_range_ns=("range_ns", "sum"),
        range_instances=("span_ns", "count"),
        span_avg_ns=("span_ns", "mean"),
        span_med_ns=("span_ns", "median"),
        span_min_ns=("span_ns", "min"),
        span_max_ns=("span_ns", "max"),
        span_stddev_ns=("span_ns", "std"),
        operations=("operations", "sum"),
    )
    return frame.reset_index().sort_values("total_span_ns", ascending=False, kind="stable")


def _range_names(trace: Trace, ranges: Ranges) -> NDArray[np.object_]:
    """Name ranges as nsys does: `domain:range`, and `:range` in the default domain."""
    names = [
        f"{trace.domains[domain].name}:{trace.names[name]}"
        for domain, name in zip(ranges.domain.tolist(), ranges.name_id.tolist(), strict=True)
    ]
    return np.array(names, object)


def _table(key: str, title: str, frame: pd.DataFrame, unit_of_work: str) -> Table:
    """Draw a frame; the standard deviation of one value is zero, as nsys prints it."""
    rows = tuple(Row(tuple(row)) for row in frame.fillna(0.0).to_numpy(object).tolist())
    return Table(key, title, _columns(frame, unit_of_work), rows)


def _grouped(key: str, title: str, frame: pd.DataFrame, unit_of_work: str) -> Table:
    """Draw a frame with the kernels of a range, under short names, below it."""
    short = frame.fillna(0.0).drop(columns=["range", "pid", "tid", "med_ns"])
    names = short.pop("kernel")
    short.insert(0, "kernel", names.map(names_by_kernel(names)))
    rows: list[Row] = []
    for (name, _, tid), kernels in frame.groupby(["range", "pid", "tid"], sort=False):
        rows.append(Row((f"{name} [{tid}]", *[""] * (short.shape[1] - 1)), strong=True))
        rows += [Row(tuple(row), indent=1) for row in short.loc[kernels.index].to_numpy(object).tolist()]
    return Table(key, title, _columns(short, unit_of_work), tuple(rows), "In brackets the launching thread's id.")


def _columns(frame: pd.DataFrame, unit_of_work: str) -> tuple[Column, ...]:
    return tuple(
        Column(
            name,
            HEADINGS.get(name, name).format(unit_of_work=unit_of_work),
            _kind(name),
            own_unit=name.endswith(PER_LAUNCH),
        )
        for name in map(str, frame.columns)
    )


def _kind(name: str) -> Kind:
    if name.endswith("_ns"):
        return "ns"
    return "name" if name in ("range", "kernel") else "text" if name in ("pid", "tid") else "count"
