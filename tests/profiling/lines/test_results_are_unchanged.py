"""What a program computes is the same, bit by bit, with lines and without."""

import pytest

import nvtx_kernels as nk
from nvtx_kernels import analysis
from tests.conftest import slice_of
from tests.profiling.making.assembled_programs import result


def recorded(number, path, *, lines):
    return result(
        number, lambda model, optimizer: nk.profile(model, optimizer, path, warmup=3, steps=2, lines=lines)
    )


def is_unchanged(number, folder):
    """Compare a program with lines and without, and return how many of its calls have one."""
    with_lines = recorded(number, folder / "with.sqlite", lines=True)
    assert with_lines == recorded(number, folder / "without.sqlite", lines=False)
    traced = analysis.read(folder / "with.sqlite").lines
    assert analysis.read(folder / "without.sqlite").lines.reason == "lines were switched off"
    return int((traced.of_launch >= 0).sum())


@pytest.mark.parametrize("number", range(3))
def test_a_program_computes_the_same_with_lines(tmp_path, number):
    assert is_unchanged(number, tmp_path) > 50


@pytest.mark.slow
def test_a_slice_of_a_hundred_programs_computes_the_same_with_lines(tmp_path):
    for number in slice_of(range(3, 100), 10):
        (tmp_path / str(number)).mkdir()
        assert is_unchanged(number, tmp_path / str(number)) > 50, number
