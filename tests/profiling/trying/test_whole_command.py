"""`nvtx-kernels try` as a whole, in real processes."""

import json

import pytest

from tests.profiling.making.tried import tried
from tests.profiling.trying.test_keeper import TRAINS


@pytest.mark.slow
def test_a_program_in_which_nothing_can_be_changed_has_the_time_of_its_step(tmp_path):
    (tmp_path / "train.py").write_text(f"{TRAINS}steps(40)")
    said = tried(tmp_path, "--in-place", "--levers", "zero_grad", "--steps", "5", "--format", "json", "train.py")
    assert said.status == 0, said.err
    assert said.arms == {}
    assert json.loads(said.out)["base_step_ns"] > 0
