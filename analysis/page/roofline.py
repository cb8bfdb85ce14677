"""The roofline of a report: the roofs of its GPU, and its ranges as points of arithmetic intensity and FLOP/s.

The model is that of Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009: attainable FLOP/s = min(peak FLOP/s, intensity x bytes/s).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10, sqrt
from typing import Any

from ..document import Detail, by_key
from ..errors import ReportError
from ..measures.gpu_peaks import Peak
from ..report import Path
from ..support.text import fit
from ..support.units import digits_text, share_text, si_text, time_in_digits
from ..views import efficiency
from ..views.registry import Subject
from .work_rows import LONGEST_KERNEL, PathTree

MAX_POINTS = 400
#: Peaks of integers are not FLOP/s.
INTEGERS = frozenset(("int8",))
WIDTH, HEIGHT, LARGEST = 1000, 420, 26
Row = dict[str, Any]


def counted_rows(subject: Subject) -> list[Row]:
    """Return the ranges as `view efficiency` has them, by its columns' keys; none where it has no answer."""
    try:
        tables = efficiency.view(replace(subject, detail=Detail(whole=True))).tables
    except ReportError:
        return []
    of_ranges = [table for table in tables if table.key == "efficiency"]
    return [row for table in of_ranges for row in by_key(table) if row["kernel_ns"]]


@dataclass(frozen=True, slots=True)
class _Frame:
    """The bounds of the picture, as powers of ten of FLOPs per byte and of FLOP/s, and where a point is in it."""

    left: int
    right: int
    low: int
    high: int

    def at(self, intensity: float, flops: float) -> tuple[float, float]:
        x = (log10(intensity) - self.left) / (self.right - self.left)
        y = (log10(flops) - self.low) / (self.high - self.low)
        return round(x * WIDTH, 1), round((1 - y) * HEIGHT, 1)


def roofline(rows: Sequence[Row], peak: Peak | None, tree: PathTree) -> dict[str, Any] | None:
    """Return the picture, `WIDTH` by `HEIGHT`; None without peaks of the GPU, or a range that has FLOPs and bytes.

    `roofs` are lines, the peaks' from where memory's meets them, `used` where a range computes in one. `points`
    are the ranges with the most kernel time, as circles of that area, with facts as `lines`; `outer` is true where
    ranges inside were counted too. `left_out` says how many ranges are not drawn because they compute or move
    nothing, and how many because there is no room.
    """
    drawn = sorted((row for row in rows if row["flops_per_byte"]), key=lambda row: -row["kernel_ns"])
    if peak is None or not drawn:
        return None
    around = _around(rows)
    used = {kind for row in drawn for kind in row["arithmetic"].split(" + ")}
    heights: dict[float, list[str]] = {}  # of peaks that are equally high, one roof
    for kind in peak.tflops:
        if kind not in INTEGERS or kind in used:
            heights.setdefault(peak.flops(kind) or 0.0, []).append(kind)
    frame = _frame(drawn, max(heights), peak.bytes)
    most_ns = drawn[0]["kernel_ns"]
    points = []
    for row in drawn[:MAX_POINTS]:
        path = row["range"].path
        points.append(
            {
                "path": tree.of_names(path),
                "phase": row["phase"],
                "at": frame.at(row["flops_per_byte"], row["flops_per_s"]),
                "radius": round(max(3.5, LARGEST * sqrt(row["kernel_ns"] / most_ns)), 1),
                "outer": path in around,
                "title": fit(row["range"], LONGEST_KERNEL),
                "lines": _lines(row),
            }
        )
    across = []
    for power in range(frame.left, frame.right + 1):
        x, _ = frame.at(10.0**power, 1)
        across.append((x, f"{10.0**power:g}"))
    up = []
    for power in range(frame.low, frame.high + 1):
        _, y = frame.at(1, 10.0**power)
        up.append((y, si_text(10.0**power, "FLOP/s")))
    return {
        "roofs": [*_roofs(heights, peak.bytes, used, frame)],
        "points": points,
        "across": across,
        "up": up,
        "left_out": {"without": len(rows) - len(drawn), "smaller": max(0, len(drawn) - MAX_POINTS)},
    }


def _frame(drawn: Sequence[Row], highest: float, bytes_per_s: float) -> _Frame:
    """Return bounds around all points and the highest roof with its ridge."""
    intensities = [row["flops_per_byte"] for row in drawn]
    speeds = [row["flops_per_s"] for row in drawn]
    low = floor(log10(min(speeds)))
    return _Frame(
        floor(log10(min(*intensities, 1.0))),
        ceil(log10(max(*intensities, 1.5 * highest / bytes_per_s))),
        low,
        max(ceil(log10(max(*speeds, highest))), low + 1),  # marks may say more than any GPU does
    )


def _roofs(heights: dict[float, list[str]], bytes_per_s: float, used: set[str], frame: _Frame) -> Iterable[Row]:
    """Yield memory's line up to the highest peak, and a line for each peak from where it meets memory's."""
    start = max(10.0**frame.left, 10.0**frame.low / bytes_per_s)
    ridge = max(heights) / bytes_per_s
    ends = frame.at(start, start * bytes_per_s), frame.at(ridge, ridge * bytes_per_s)
    yield {"ends": ends, "name": f"memory {si_text(bytes_per_s, 'B/s')}", "used": True, "slope": True}
    for height, kinds in sorted(heights.items(), reverse=True):
        ends = frame.at(height / bytes_per_s, height), frame.at(10.0**frame.right, height)
        name = f"{', '.join(kinds)} {si_text(height, 'FLOP/s')}"
        yield {"ends": ends, "name": name, "used": bool(used & set(kinds)), "slope": False}


def _lines(row: Row) -> list[str]:
    """Return the facts on a range."""
    lines = [time_in_digits(row["kernel_ns"])]
    rates = (
        ("flops_per_s", "FLOP/s", "compute_share", f"the peak of {row['arithmetic']}"),
        ("bytes_per_s", "B/s", "memory_share", "memory's peak"),
    )
    for rate, unit, share, peak in rates:
        of_peak = f", {share_text(row[share])} of {peak}" if row[share] is not None else ""
        lines.append(si_text(row[rate], unit) + of_peak)
    lines.append(f"{digits_text(row['flops_per_byte'], 3)} FLOPs per byte")
    if row["bound"]:
        lines.append(f"bound: {row['bound']}")
    return lines


def _around(rows: Iterable[Row]) -> set[Path]:
    """Return the paths around others."""
    paths = [row["range"].path for row in rows]
    return {path[:length] for path in paths for length in range(1, len(path))}
