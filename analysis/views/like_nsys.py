"""nsys's own two reports, from our reading of the file, so that anyone can check us against `nsys stats`.

`nvtx_kern_sum` counts a kernel in every push/pop range of the launching thread that contains the whole launch
call, grouped by range name, thread and kernel. `nvtx_gpu_proj_sum` adds up, over a range name's instances, the
time from the first start to the last end of all GPU work launched inside. Standard deviations are the sample's.
What this project's other views show beyond these numbers is what adoption and linking add.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from ..attribution.nesting import Nesting
from ..document import SHORT, Column, Detail, Document, Row, Table, headed
from ..errors import ReportError
from ..kernel_names.short import names_by_kernel
from ..trace import KERNEL, PUSH_POP, Trace
from . import headings

# nsys's headings, short enough for a terminal.
HEADINGS = {"range_instances": "ranges", "count": "launches", "total_ns": "total", "operations": "{} ops"}
HEADINGS |= {"total_span_ns": "total", "total_range_ns": "range"}
#: Of single launches and spans, which are shorter than sums: nsys's figures, and what pandas calls them.
OF_ONE = {"avg": "mean", "med": "median", "min": "min", "max": "max", "stddev": "std"}
NO_WORK = "No work was launched inside a range of its own thread, and nsys counts only that."
NO_RANGES = (
    "The report has no NVTX push/pop ranges, and nsys counts only these. Open some with "
    "`nvtx_kernels.annotate.range` or `torch.cuda.nvtx`, and record with `-t cuda,nvtx`."
)

NAMES_JOINED = (
    "nsys has a row for each name, and {:,} names of this report are joined, as it has too many. Leave out "
    "--like-nsys, or ask `nsys stats`."
)


def like_nsys(trace: Trace, detail: Detail = SHORT) -> Document:
    """Return nsys's kernel summary and projection summary per range.

    People get a range's kernels below it; programs get every row by itself, as in nsys's CSV. Raises ReportError
    if names are joined, because nsys has a row for each.
    """
    if joined := trace.provenance.names_joined:
        raise ReportError(NAMES_JOINED.format(joined))
    inside = work_in_ranges(trace)
    kernels = kernel_summary(inside)
    source = trace.provenance
    unit = source.unit_of_work
    own_ranges = headings.worded("the launching thread's own ranges", source)
    heading = f"{source.file}: counted as `nsys stats` does, by {own_ranges}"
    title = f"{unit} span of each range (projection), {{unit}} total"
    draw = _table if detail.whole else _grouped
    tables = (
        draw("nvtx_kern_sum", "Kernels in each range, {unit} total", kernels, unit),
        _table("nvtx_gpu_proj_sum", title, projection_summary(inside), unit),
    )
    if len(inside):
        return headings.document(source, heading, tables, (), ())
    absence = NO_WORK if (trace.ranges.style == PUSH_POP).any() else NO_RANGES
    return headings.document(source, heading, tables if detail.whole else (), (), (absence,))


def work_in_ranges(trace: Trace) -> pd.DataFrame:
    """Pair each piece of work with each range of its launching thread that contains its launch call.

    Columns: work (position in Work), instance (position among the push/pop ranges), range and kernel (names), pid,
    tid, is_kernel, start_ns, end_ns, range_ns (the range's own duration).
    """
    ranges = trace.ranges.take(trace.ranges.style == PUSH_POP)
    work = trace.work
    launched = np.flatnonzero(work.launch >= 0)
    nesting = Nesting(ranges)
    node = nesting.containing(trace.launches.take(work.launch[launched]))
    rows = [np.empty(0, np.int64)]
    instances = [np.empty(0, np.int32)]
    while len(held := np.flatnonzero(node >= 0)):
        rows.append(launched[held])
        instances.append(nesting.forest.range[node[held]])
        node = nesting.forest.above(node)
    paired = np.concatenate(rows)
    instance = np.concatenate(instances)
    kernel_names = np.array([*trace.names, ""], object)
    range_names = []  # as nsys has them: `:range` in the default domain
    for domain, name in zip(ranges.domain.tolist(), ranges.name_id.tolist(), strict=True):
        range_names.append(f"{trace.domains[domain].name}:{trace.names[name]}")
    thread = ranges.thread[instance]
    process_ids = [trace.processes[source.process].process_id for source in trace.threads] or [0]
    thread_ids = [source.thread_id for source in trace.threads] or [0]
    return pd.DataFrame(
        {
            "work": paired,
            "instance": instance,
            "range": np.array(range_names, object)[instance],
            "pid": np.array(process_ids)[thread],
            "tid": np.array(thread_ids)[thread],
            "kernel": kernel_names[work.name_id[paired]],
            "is_kernel": work.kind[paired] == KERNEL,
            "start_ns": work.start_ns[paired],
            "end_ns": work.end_ns[paired],
            "range_ns": (ranges.end_ns - ranges.start_ns)[instance],
        }
    )


def kernel_summary(inside: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `nsys stats -r nvtx_kern_sum` that name a range, longest first within each range."""
    kernels = inside[inside["is_kernel"]].assign(duration_ns=inside["end_ns"] - inside["start_ns"])
    keys = ["range", "pid", "tid"]
    frame = kernels.groupby([*keys, "kernel"], sort=True).agg(
        range_instances=("instance", "nunique"),
        count=("duration_ns", "count"),
        total_ns=("duration_ns", "sum"),
        **{f"{name}_ns": ("duration_ns", statistic) for name, statistic in OF_ONE.items()},
    )
    frame = frame.reset_index("kernel").reset_index()
    frame = frame[[*frame.columns.drop("kernel"), "kernel"]]
    return frame.sort_values([*keys, "total_ns"], ascending=[True, True, True, False], kind="stable")


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
        **{f"span_{name}_ns": ("span_ns", statistic) for name, statistic in OF_ONE.items()},
        operations=("operations", "sum"),
    )
    return frame.reset_index().sort_values("total_span_ns", ascending=False, kind="stable")


def _table(key: str, title: str, frame: pd.DataFrame, unit_of_work: str) -> Table:
    """Draw a frame; the standard deviation of one value is zero, as nsys prints it."""
    rows = tuple(Row(tuple(row)) for row in frame.fillna(0.0).to_numpy(object).tolist())
    return Table(key, title, tuple(_columns(frame, unit_of_work)), rows)


def _grouped(key: str, title: str, frame: pd.DataFrame, unit_of_work: str) -> Table:
    """Draw a frame with the kernels of a range, under short names, below it."""
    short = frame.fillna(0.0).drop(columns=["range", "pid", "tid", "med_ns"])
    names = short.pop("kernel")
    short.insert(0, "kernel", names.map(names_by_kernel(names)))
    rows: list[Row] = []
    for (name, _, tid), kernels in frame.groupby(["range", "pid", "tid"], sort=False):
        rows.append(Row((f"{name} [{tid}]", *[""] * (short.shape[1] - 1)), strong=True))
        rows += [Row(tuple(row), indent=1) for row in short.loc[kernels.index].to_numpy(object).tolist()]
    columns = tuple(_columns(short, unit_of_work))
    return Table(key, title, columns, tuple(rows), "In brackets the launching thread's id.")


def _columns(frame: pd.DataFrame, unit_of_work: str) -> Iterator[Column]:
    """Yield the columns, those of single launches and spans with a unit of their own."""
    for name in map(str, frame.columns):
        figure = name.removeprefix("span_").removesuffix("_ns")
        heading = figure.removesuffix("dev") if figure in OF_ONE else HEADINGS.get(name, name)
        (column,) = headed(**{name: heading.format(unit_of_work)})
        yield replace(column, own_unit=figure in OF_ONE)
