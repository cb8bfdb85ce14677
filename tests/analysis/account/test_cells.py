"""The cells of an account: they add up to every step, and are what a plain sweep finds."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from nvtx_kernels.analysis.account import partition
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read

from tests.analysis.making.bundled import every_report, readable
from tests.analysis.making.cross_cases import MADE
from tests.analysis.making.generated import chaos, programs
from tests.analysis.making.plain_account import actual_cells, expected_cells
from tests.analysis.making.traces import trace_of

#: Reports with more work than this would keep a plain sweep too long.
MOST_SWEPT = 12_000


@pytest.fixture(scope="module", params=every_report())
def divided(request, tmp_path_factory):
    """Return the partition of a report of the tests or of ../shared."""
    return partition(attribute(read(readable(request.param, tmp_path_factory.mktemp("report")))))


def adds_up(divided):
    """Assert that each GPU's cells add up to each step, and each step to the time from end to end."""
    table, cells = divided.table, divided.cells
    assert (table.own_ns + table.taken_out_ns == table.end_ns - table.before_ns).all()
    assert (cells.ns > 0).all()
    for number, loop in enumerate(divided.steps.loops):
        for gpu in divided.gpus_of(number):
            of_gpu = cells.take((cells.gpu == gpu) & np.isin(cells.row, loop.rows))
            sums = np.zeros(len(table), np.int64)
            np.add.at(sums, of_gpu.row, of_gpu.ns)
            assert sums[loop.rows].tolist() == table.own_ns[loop.rows].tolist()


def test_cells_add_up_to_every_step(divided):
    adds_up(divided)


def test_cells_are_those_of_a_sweep(divided):
    if divided.on_cpu or len(divided.attribution.trace.work) > MOST_SWEPT:
        pytest.skip("operators of a CPU are no intervals, and of very much work a sweep takes too long")
    assert actual_cells(divided) == expected_cells(divided)


def test_blocks_of_any_size_give_the_same_cells(divided):
    in_blocks = partition(divided.attribution, gaps_at_once=150)
    assert by_every_column(in_blocks.cells) == by_every_column(divided.cells)


def by_every_column(cells):
    """Return the time of the cells by all else that they say, ns: a block has its own cells."""
    sums, names = Counter(), [name for name in cells.__match_args__ if name != "ns"]
    for *key, ns in zip(*(getattr(cells, name).tolist() for name in (*names, "ns")), strict=True):
        sums[tuple(key)] += ns
    return sums


@pytest.mark.parametrize("strategy", [chaos(), programs], ids=["chaos", "programs"])
@pytest.mark.parametrize("include_warm_up", [False, True])
def test_any_program_adds_up_and_is_as_swept(strategy, include_warm_up):
    @given(strategy)
    def is_as_swept(rows):
        trace = trace_of(rows)
        if len(trace.work):
            divided = partition(attribute(trace), include_warm_up=include_warm_up)
            adds_up(divided)
            assert actual_cells(divided) == expected_cells(divided)

    is_as_swept()


@pytest.mark.parametrize("name", MADE)
def test_made_reports_are_as_swept(name):
    divided = partition(attribute(trace_of(MADE[name])))
    adds_up(divided)
    assert actual_cells(divided) == expected_cells(divided)
