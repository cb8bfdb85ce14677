"""`Report` objects made by hand or by hypothesis, and small report files of two steps."""

from hypothesis import strategies as st
from nvtx_kernels.analysis.report import KernelRow, PhaseRow, RangeRow, Report, Totals
from nvtx_kernels.analysis.trace import Provenance

from tests.analysis.making.building import Launch, Range, Rows, Work, write

NAMES = st.sampled_from(["step", "forward", "backward", "layer 0", "layer 1", "softmax", "<b>&"])
KERNELS = st.sampled_from([("sgemm", "gemm"), ("exp", "elementwise"), ("Softmax", "softmax"), ("=1+1", "other")])
ROWS = st.builds(
    lambda path, phase, kind, kernel, count, ns: KernelRow(
        tuple(path), phase, kind, *(kernel if kind == "kernel" else (f"[CUDA {kind}]", kind)), count, ns, ns, ns
    ),
    st.lists(NAMES, max_size=4),
    st.sampled_from(["forward", "backward", "other"]),
    st.sampled_from(["kernel", "kernel", "kernel", "memcpy"]),
    KERNELS,
    st.integers(1, 5),
    st.integers(0, 10**9),
)
REPORTS = st.builds(
    lambda rows, steps: report_of(*rows, steps=steps), st.lists(ROWS, max_size=8), st.integers(0, 3)
)


def kernel_total(rows):
    """Add the time of the rows that are kernels, ns."""
    return sum(row.total_ns for row in rows if row.kind == "kernel")


def report_of(*rows, steps=0, **source):
    """Build a report of kernel rows, and of a range row for every path they have."""
    paths = dict.fromkeys(row.path[:n] for row in rows for n in range(1, len(row.path) + 1))
    ranges = tuple(RangeRow(path, "other", 1, 0, 0, 0, 0, 0, 0, None, None) for path in paths)
    whole = sum(row.total_ns for row in rows)
    phases = tuple(_phase(name, rows) for name in dict.fromkeys(row.phase for row in rows))
    counts = {"steps": steps, "counted_steps": steps}
    return Report(Provenance("r.sqlite", **source), Totals(whole, *[0] * 8), phases, ranges, rows, **counts)


def _phase(name, rows):
    kernels = [row for row in rows if row.phase == name and row.kind == "kernel"]
    ns, count = sum(row.total_ns for row in kernels), sum(row.count for row in kernels)
    return PhaseRow(name, ns, count, 0, 0, ns)


def row(name, ns, *path, count=1, category="elementwise", kind="kernel"):
    """Build a kernel row whose phase is that of its path."""
    phase = next((name for name in path if name in ("forward", "backward")), "other")
    return KernelRow(path, phase, kind, name, category, count, ns, ns, ns)


STEP = 1000
# What one step launches: (range path below the step, kernel, start of the kernel, duration in µs).
LAUNCHES = (
    (("forward", "layer 0", "softmax"), "softmax_warp_forward", 100, 40),
    (("forward", "layer 0"), "ampere_sgemm_128x64_nn", 150, 200),
    (("forward", "layer 1"), "ampere_sgemm_128x64_nn", 360, 210),
    (("backward",), "ampere_sgemm_32x128_nt", 600, 300),
)


def two_steps(path, slower=0, names=None):
    """Write a report of two steps, the second `slower` µs longer in backward; `names` are other kernel names."""
    rows = Rows(gpus=["NVIDIA H200"])
    for step in range(2):
        begin, at = step * STEP * 1000, lambda us, step=step: (step * STEP + us) * 1000
        rows.ranges.append(Range("step", begin, at(STEP - 1)))
        for outer, start, end in (
            ("forward", 1, 50),
            ("layer 0", 2, 20),
            ("softmax", 3, 10),
            ("layer 1", 21, 40),
            ("backward", 51, 90),
        ):
            rows.ranges.append(Range(outer, at(start), at(end)))
        for number, (inside, kernel, start, lasts) in enumerate(LAUNCHES):
            call, longer = step * len(LAUNCHES) + number + 1, slower * step * (inside == ("backward",))
            when = {"softmax": 4, "layer 0": 12, "layer 1": 25, "backward": 60}[inside[-1]]
            rows.launches.append(Launch(call, at(when), at(when + 1)))
            rows.work.append(Work(call, at(start), at(start + lasts + longer), (names or {}).get(kernel, kernel)))
    return write(path, rows)
