"""Read a profile, attribute every piece of GPU work to the ranges that caused it, and rank the kernels.

Examples:
    >>> import nvtx_kernels as nk
    >>> nk.rank("report.sqlite").kernels  # a pandas frame
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .attribution.causes import Rules
    from .frames.ranking import Ranking
    from .trace import Trace

__all__ = ["rank", "read"]

if __name__ == "analysis":  # imported by its bare name
    from nvtx_kernels.folders import be_one

    be_one(__name__)


def read(path: Path | str) -> Trace:
    """Read a report: of nsys (an export or a .nsys-rep), of PyTorch's profiler, of rocprofv3, or our recording.

    Raises analysis.errors.NotAReport; its text names what the file is, and a next step.
    """
    from .readers import read as read_report  # deferred: `--help` needs no reader

    return read_report(path)


def rank(
    source: Trace | Path | str,
    *,
    include_warm_up: bool = False,
    per_step: bool | None = False,
    rules: Rules | None = None,
    unrecorded_step_ns: float | None = None,
) -> Ranking:
    """Attribute the work of a trace, or of the report at a path, to its ranges and rank it.

    `unrecorded_step_ns` is how long a step takes without recording, measured elsewhere. Figures are sums, or means
    of a measured step if `per_step`; None decides as screens do, by the steps' work.

    Raises analysis.errors.NotAReport and NoGpuWork if the path is not a report that can be ranked, and
    analysis.errors.ReportError if `per_step` is set for a report without step ranges.
    """
    from .frames.ranking import ranking  # deferred: it imports pandas

    return ranking(
        source,
        include_warm_up=include_warm_up,
        per_step=per_step,
        rules=rules,
        unrecorded_step_ns=unrecorded_step_ns,
    )
