"""The roofline of a report: the roofs of its GPU, and its ranges as points of arithmetic intensity and FLOP/s.

The model is that of Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009: attainable FLOP/s = min(peak FLOP/s, intensity x bytes/s).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..document import Detail, by_key
from ..errors import ReportError
from ..measures.efficiency import NEITHER
from ..measures.gpu_peaks import Peak
from ..report import Path
from ..support.text import fit
from ..support.units import share_text, time_text
from ..views import efficiency
from ..views.registry import Subject
from ..views.rows import common_length, label
from .icicle import LONGEST_KERNEL

MAX_POINTS = 400
#: Peaks of integers are not FLOP/s.
INTEGERS = frozenset(("int8",))
#: A point's facts on its range, and their columns in the view.
POINT = {
    "phase": "phase",
    "ns": "kernel_ns",
    "flops": "flops_per_s",
    "bytes": "bytes_per_s",
    "intensity": "flops_per_byte",
    "arithmetic": "arithmetic",
    "of_compute": "compute_share",
    "of_memory": "memory_share",
    "bound": "bound",
}
Row = dict[str, Any]


def counted_rows(subject: Subject) -> list[Row]:
    """Return the ranges as `view efficiency` has them, by its columns' keys; none where it has no answer."""
    try:
        tables = efficiency.view(replace(subject, detail=Detail(whole=True))).tables
    except ReportError:
        return []
    of_ranges = [table for table in tables if table.key == "efficiency"]
    return [row for table in of_ranges for row in by_key(table) if row["kernel_ns"]]


def roofline(rows: Sequence[Row], peak: Peak | None) -> dict[str, Any] | None:
    """Return the picture; None without peaks of the GPU, or a range that has FLOPs and bytes.

    `memory` is in bytes/s; `roofs` are peaks in FLOP/s, the highest first, `used` where a range computes in one.
    `points` are the ranges with the most kernel time: `ns` is over what the rows' figures are, `flops` in FLOP/s,
    `bytes` in bytes/s, `intensity` in FLOPs per byte, `of_compute` and `of_memory` are shares of the peaks.
    `outer` is true where ranges inside it were counted too. `left_out` says how many ranges are not drawn because
    they compute or move nothing, and how many because there is no room.
    """
    drawn = sorted((row for row in rows if row["flops_per_byte"]), key=lambda row: -row["kernel_ns"])
    if peak is None or not drawn:
        return None
    around, used = _around(rows), {kind for row in drawn for kind in row["arithmetic"].split(" + ")}
    heights: dict[float, list[str]] = {}  # of peaks that are equally high, one roof
    for kind in peak.tflops:
        if kind not in INTEGERS or kind in used:
            heights.setdefault(peak.flops(kind) or 0.0, []).append(kind)
    return {
        "memory": peak.bytes,
        "roofs": [
            {"flops": height, "kinds": kinds, "used": bool(used & set(kinds))}
            for height, kinds in sorted(heights.items(), reverse=True)
        ],
        "points": [
            {
                "path": fit(row["range"], LONGEST_KERNEL),
                **{name: row[key] for name, key in POINT.items()},
                "outer": row["range"].path in around,
            }
            for row in drawn[:MAX_POINTS]
        ],
        "left_out": {"without": len(rows) - len(drawn), "smaller": max(0, len(drawn) - MAX_POINTS)},
    }


def far_below(rows: Sequence[Row]) -> Iterator[str]:
    """Name the range with the most kernel time that is bound by neither, of those with no other inside."""
    around = _around(rows)
    far = [row for row in rows if row["bound"] == NEITHER and row["range"].path not in around]
    if not far:
        return
    most = max(far, key=lambda row: row["kernel_ns"])
    common = common_length(row["range"].path for row in rows if row["range"].path not in around)
    path = fit(label(most["range"].path, common), LONGEST_KERNEL)
    phase = "" if most["phase"] in most["range"].path else f"{most['phase']}, "
    reached = [
        f"{share_text(most[key])} of peak {rate}"
        for key, rate in (("compute_share", "FLOP/s"), ("memory_share", "B/s"))
        if most[key] is not None
    ]
    yield (
        f"{path} ({phase}{time_text(most['kernel_ns'])}) is bound by neither compute nor memory: it reaches "
        f"{' and '.join(reached)}."
    )


def _around(rows: Iterable[Row]) -> set[Path]:
    """Return the paths around others."""
    return {row["range"].path[:length] for row in rows for length in range(1, len(row["range"].path))}
