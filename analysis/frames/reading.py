"""Short, because every function of the library uses it: a trace, or the path of a report."""

from __future__ import annotations

from pathlib import Path

from ..readers import read
from ..readers.checks import require_work
from ..trace import Trace


def trace_of(source: Trace | Path | str) -> Trace:
    """Return a trace as it is, or read the report at a path.

    Raises analysis.errors.NotAReport, or NoGpuWork for a report without work.
    """
    if isinstance(source, Trace):
        return source
    trace = read(source)
    require_work(trace)
    return trace
