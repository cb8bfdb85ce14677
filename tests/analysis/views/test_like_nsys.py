"""Our own-thread counts against what `nsys stats` printed for the same reports, row by row."""

from pathlib import Path

import pandas as pd
import pytest
from nvtx_kernels.analysis.views.like_nsys import kernel_summary, projection_summary, work_in_ranges

from nvtx_kernels import analysis

H200 = Path(__file__).parents[4] / "shared" / "h200"
REPORTS = ("forward_fp32", "train_fp32")

pytestmark = pytest.mark.skipif(not H200.is_dir(), reason="needs the reports in ../shared/h200")

KERNEL_COLUMNS = {
    "NVTX Range": "range", "PID": "pid", "TID": "tid", "NVTX Inst": "range_instances", "Kern Inst": "count",
    "Total Time (ns)": "total_ns", "Avg (ns)": "avg_ns", "Med (ns)": "med_ns", "Min (ns)": "min_ns",
    "Max (ns)": "max_ns", "StdDev (ns)": "stddev_ns", "Kernel Name": "kernel",
}  # fmt: skip
PROJECTION_COLUMNS = {
    "Range": "range", "Total Proj Time (ns)": "total_span_ns", "Total Range Time (ns)": "total_range_ns",
    "Range Instances": "range_instances", "Proj Avg (ns)": "span_avg_ns", "Proj Med (ns)": "span_med_ns",
    "Proj Min (ns)": "span_min_ns", "Proj Max (ns)": "span_max_ns", "Proj StdDev (ns)": "span_stddev_ns",
    "Total GPU Ops": "operations",
}  # fmt: skip


def theirs(report, table, columns):
    """Read nsys's own rows that name a range; it rounds means and deviations to 0.1 ns."""
    frame = pd.read_csv(H200 / f"{report}.{table}.csv").rename(columns=columns)[list(columns.values())]
    return frame[frame["range"].notna()]


def compared(ours, theirs, keys):
    """Sort both by their keys, round ours as nsys does, and compare everything."""
    ours, theirs = (f[list(theirs.columns)].sort_values(keys).reset_index(drop=True) for f in (ours, theirs))
    pd.testing.assert_frame_equal(ours.fillna(0.0), theirs, check_dtype=False, rtol=0, atol=0.0501)


# By nsys's table: our rows, their columns, what sorts them, and how many nsys has in both reports.
TABLES = {
    "nvtx_kern_sum": (kernel_summary, KERNEL_COLUMNS, ["range", "tid", "kernel"], 776),
    "nvtx_gpu_proj_sum": (projection_summary, PROJECTION_COLUMNS, ["range"], 46),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_named_row_of_nsys_is_ours(table):
    summary, columns, keys, count = TABLES[table]
    expected = {report: theirs(report, table, columns) for report in REPORTS}
    for report, rows in expected.items():
        compared(summary(work_in_ranges(analysis.read(H200 / f"{report}.sqlite"))), rows, keys)
    assert sum(map(len, expected.values())) == count
