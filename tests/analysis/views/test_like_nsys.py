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


@pytest.mark.parametrize("report", REPORTS)
def test_every_named_kernel_row_of_nsys_is_ours(report):
    inside = work_in_ranges(analysis.read(H200 / f"{report}.sqlite"))
    expected = theirs(report, "nvtx_kern_sum", KERNEL_COLUMNS)
    compared(kernel_summary(inside), expected, ["range", "tid", "kernel"])


@pytest.mark.parametrize("report", REPORTS)
def test_every_projection_row_of_nsys_is_ours(report):
    inside = work_in_ranges(analysis.read(H200 / f"{report}.sqlite"))
    compared(projection_summary(inside), theirs(report, "nvtx_gpu_proj_sum", PROJECTION_COLUMNS), ["range"])


def test_nsys_has_776_kernel_rows_and_46_projection_rows_to_compare():
    kernels = sum(len(theirs(report, "nvtx_kern_sum", KERNEL_COLUMNS)) for report in REPORTS)
    projections = sum(len(theirs(report, "nvtx_gpu_proj_sum", PROJECTION_COLUMNS)) for report in REPORTS)
    assert (kernels, projections) == (776, 46)
