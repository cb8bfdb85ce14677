"""No change saves more than a usual step takes, nor more than the row of the account that it shortens."""

from functools import partial

import pytest
from nvtx_kernels.analysis.measures.fixes import fixes_of
from nvtx_kernels.analysis.opened import opened

from tests.analysis.making.simulated import FP32_GEMM, MS, US, recorded

#: What the program waits in each step, of which one is cold, ms; and what the GPU's products take, ns.
PAUSES, GEMMS = (0, 8, 2, 580, 14), 100 * 200 * US


def uneven(pauses, machine):
    """Run a step of products behind a pause that differs from step to step."""
    machine.host(next(pauses) * MS)
    with machine.range("forward"):
        machine.gemms(100, 200 * US, FP32_GEMM)
    machine.read()


@pytest.mark.parametrize("recording", [{}, {"slower": 3}])
def test_a_cold_step_makes_no_saving_larger(tmp_path, recording):
    advice = fixes_of(opened(recorded(tmp_path, partial(uneven, iter(PAUSES)), steps=5, **recording)).partition)
    assert advice.step_ns > 100 * MS
    saved_ns = {fix.rule: fix.alone_ns for fix in advice.fixes}
    assert saved_ns["fp32"] <= GEMMS
    assert max(saved_ns.values()) <= GEMMS + sorted(PAUSES)[2] * MS + MS
    assert advice.fixes[0].then_ns >= advice.step_ns - saved_ns[advice.fixes[0].rule] - MS
