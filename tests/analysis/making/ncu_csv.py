"""Writes what `ncu --csv` writes of some launches, in both its forms.

The columns are those of Nsight Compute 2022 to 2025: the wide form of `--page raw` (a second row holds the units),
the long form of the default page, and the column of push/pop ranges that `--nvtx` adds to the wide form. Values
have thousands separators and units are scaled by 1000, as the Nsight Compute CLI manual says ("Metrics and Units",
"Output Pages"); ncu's own lines stand around the rows.
"""

import csv
import io
from dataclasses import dataclass, field

ABOUT = ["ID", "Process ID", "Process Name", "Host Name"]
NVTX = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
WHERE = ["Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]
TIME, OCCUPANCY = "gpu__time_duration.sum", "sm__warps_active.avg.pct_of_peak_sustained_active"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
LABELS = {
    TIME: "Duration",
    OCCUPANCY: "Achieved Occupancy",
    SM: "Compute (SM) Throughput",
    DRAM: "DRAM Throughput",
}


@dataclass
class Profiled:
    """One launch that ncu profiled; metrics are values with their units."""

    kernel: str
    blocks: int = 0
    metrics: dict = field(default_factory=dict)
    process: int = 4242


def usual(kernel, blocks=0, time_ns=2_000, occupancy=50.0, sm=20.0, dram=80.0, stalls=()):
    """Return a launch with the usual metrics."""
    metrics = {TIME: (time_ns, "ns"), OCCUPANCY: (occupancy, "%"), SM: (sm, "%"), DRAM: (dram, "%")}
    return Profiled(kernel, blocks, metrics | {STALL.format(name): (value, "inst") for name, value in stalls})


def wide(launches, *, units=True, nvtx=True):
    """Write the raw page."""
    names = list(dict.fromkeys(name for one in launches for name in one.metrics))
    of_units = {name: one.metrics[name][1] for one in launches for name in one.metrics}
    header = [*ABOUT, *([NVTX] if nvtx else []), *WHERE, *names]
    rows = [header]
    rows += [[""] * (len(header) - len(names)) + [of_units[name] for name in names]] if units else []
    for number, one in enumerate(launches):
        values = [_value(one.metrics[name][0]) if name in one.metrics else "n/a" for name in names]
        rows.append([*_about(number, one), *(["<default domain>:step"] if nvtx else []), *_where(one), *values])
    return _written(rows)


def long(launches, *, labels=False):
    """Write the default page: a metric a row, by its label where the section has one."""
    rows = [[*ABOUT, *WHERE, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]]
    for number, one in enumerate(launches):
        for name, (value, unit) in one.metrics.items():
            called = LABELS.get(name, name) if labels else name
            section = "GPU Speed Of Light Throughput" if labels else "Command line profiler metrics"
            rows.append([*_about(number, one), *_where(one), section, called, unit, _value(value)])
    return _written(rows)


def _about(number, one):
    return [str(number), str(one.process), "python3.12", "127.0.0.1"]


def _where(one):
    return [one.kernel, "1", "7", "(128, 1, 1)", f"({one.blocks or 1}, 1, 1)", "0", "9.0"]


def _value(value):
    return value if isinstance(value, str) else f"{value:,}"


def _written(rows):
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    begin = '==PROF== Connected to process 4242\n==PROF== Profiling "kernel" - 0: 0%....50%....100% - 9 passes\n'
    return f"{begin}loss 2.31\n{text.getvalue()}==PROF== Disconnected from process 4242\n"
