"""Times that no GPU can have are told in one line, and `doctor` calls them a problem."""

import pytest
from nvtx_kernels.analysis import doctor
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.impossible import of_times

from tests.analysis.making.kineto import Block, Call, Program, Work, operator, write_kineto
from tests.analysis.making.subjects import summarized

US = 1_000


def trace(folder, *kernels, call_of=(1, 2, 3)):
    """Write three kernels, by begin and end in µs and stream, each launched by one of the calls."""
    calls = [Call(number, number * US, number * US + 100) for number in sorted({*call_of})]
    work = [
        Work(call, begin * US, end * US, stream=stream)
        for call, (begin, end, stream) in zip(call_of, kernels, strict=True)
    ]
    blocks = [Block("ProfilerStep#1", 0, 9_000 * US), operator("aten::mm", 0, 10 * US)]
    return write_kineto(folder / "trace.json", Program(blocks, calls, work))


def test_a_kernel_that_outlasts_the_next_of_its_stream_is_told_and_a_problem(tmp_path, capsys):
    path = trace(tmp_path, (20, 5_000, 7), (100, 200, 7), (5_100, 5_200, 7))
    assert doctor.main([str(path)]) == 1
    assert "1 kernel ends after the next one of their stream" in " ".join(capsys.readouterr().out.split())
    assert "by up to 4.80 ms (ampere_sgemm_128x64_nn)" in " ".join(summarized(path).notes)


POSSIBLE = {
    "in order": ([(20, 90, 7), (100, 200, 7), (300, 400, 7)], (1, 2, 3)),
    "on two streams": ([(20, 5_000, 7), (100, 200, 8), (300, 400, 8)], (1, 2, 3)),
    "begun before the other ends": ([(20, 150, 7), (100, 200, 7), (300, 400, 7)], (1, 2, 3)),
    "in a graph": ([(20, 5_000, 7), (100, 200, 7), (300, 400, 7)], (1, 1, 1)),
    "by less than clocks agree": ([(20, 109, 7), (100, 105, 7), (300, 400, 7)], (1, 2, 3)),
}


@pytest.mark.parametrize("case", POSSIBLE)
def test_kernels_that_can_be_so_are_not(tmp_path, case):
    kernels, call_of = POSSIBLE[case]
    assert of_times(read(trace(tmp_path, *kernels, call_of=call_of))) == ""
