"""Idle time adds up to span less busy, to the nanosecond, on every report and in everything that shows it."""

import lzma

import numpy as np
import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.measures.idle import idle_time
from nvtx_kernels.analysis.measures.spans import Extents
from nvtx_kernels.analysis.readers import read

import nvtx_kernels as nk
from tests.analysis.making.bundled import DATA, SHARED, needs_shared
from tests.analysis.making.plain_sql import busy_within
from tests.analysis.making.subjects import table, viewed

ENDINGS = ("*.sqlite", "*.sqlite.xz", "*.json.xz")
OURS, OTHERS = (sorted(path for ending in ENDINGS for path in root.rglob(ending)) for root in (DATA, SHARED))
REPORTS = [*OURS, *(pytest.param(path, marks=needs_shared) for path in OTHERS or [SHARED])]


@pytest.fixture(params=REPORTS, ids=lambda path: f"{path.parent.name}/{path.name[:40]}")
def report(request, tmp_path):
    """Return a report of the tests or of ../shared, unpacked."""
    if request.param.suffix != ".xz":
        return request.param
    path = tmp_path / request.param.stem
    path.write_bytes(lzma.decompress(request.param.read_bytes()))
    return path


def idle_of(attribution):
    """Return each window's idle time, ns, by work that is merged in plain Python."""
    extents = Extents(attribution)
    found, work = idle_time(attribution), attribution.of_all_work.trace.work
    for gpu, start, end in zip(found.windows.gpu, found.windows.start_ns, found.windows.end_ns, strict=True):
        rows = np.flatnonzero(extents.gpu_of_all == gpu)
        busy = sorted(zip(work.start_ns[rows].tolist(), work.end_ns[rows].tolist(), strict=True))
        yield int(end - start) - busy_within(busy, int(start), int(end))


def test_all_that_shows_idle_time_adds_up_to_span_less_busy(report):
    attribution = attribute(read(report))
    expected = sum(idle_of(attribution))
    try:
        shown = viewed("idle", report, top=10**6)
    except ReportError as error:
        assert expected == 0, str(error)  # noqa: PT017 (there is no work, or no gap)
        return
    windows, causes = table(shown, "windows"), table(shown, "idle")
    assert sum(row["span_ns"] - row["busy_ns"] for row in windows) == expected
    assert sum(row["idle_ns"] + row.get("between_ns", 0) for row in causes) == expected
    assert sum(row["idle_ns"] for row in table(shown, "places")) == expected
    pieces = nk.idle(report, pieces=True)
    assert (pieces["end_ns"] - pieces["start_ns"]).sum() == expected
