"""Which ranges of a phase are counted."""

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.spans import Extents
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.vocabulary import FORWARD, PHASES

from tests.analysis.making.building import Launch, Range, Work, build


def extents(folder, ranges, *calls):
    """Return the extents of kernels of 10 ns: calls are (launch, start of the kernel, GPU)."""
    launches = [Launch(number, at, at + 2) for number, (at, _, _) in enumerate(calls)]
    work = [Work(number, at, at + 10, device=gpu) for number, (_, at, gpu) in enumerate(calls)]
    return Extents(attribute(read(build(folder, ranges=ranges, launches=launches, work=work))))


@pytest.mark.parametrize(
    ("names", "count"), [(["forward", "forward", "loss"], 2), (["loss", "loss"], 2), (["forward", "forward"], 2)]
)
def test_parts_of_a_phase_are_counted_where_it_has_no_other_ranges(names, count, tmp_path):
    ranges = [Range(name, 100 * n, 100 * n + 90) for n, name in enumerate(names)]
    found = extents(tmp_path, ranges, (10, 20, 0), (110, 120, 0))
    assert found.count(PHASES.index(FORWARD)) == count


def test_a_forward_inside_backward_is_no_forward(tmp_path):
    ranges = [Range("forward", 0, 90), Range("backward", 100, 290), Range("forward", 150, 200)]
    found = extents(tmp_path, ranges, (10, 20, 0), (160, 170, 0))
    assert found.count(PHASES.index(FORWARD)) == 1


def test_a_forward_inside_forward_is_one(tmp_path):
    ranges = [Range("forward", 0, 90), Range("forward", 10, 80), Range("layer", 15, 60)]
    assert extents(tmp_path, ranges, (20, 30, 0)).count(PHASES.index(FORWARD)) == 1
