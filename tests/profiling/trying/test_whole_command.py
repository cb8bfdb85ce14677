"""`nvtx-kernels try` as a whole, in real processes."""

import json
import os
import signal
import subprocess
import sys
import time

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


@pytest.mark.slow
def test_an_interrupt_shows_what_was_measured_until_then(tmp_path):
    (tmp_path / "train.py").write_text(f"{TRAINS}steps(100_000)")
    options = ("--in-place", "--levers", "zero_grad,fused", "--rounds", "100000", "--budget", "1000")
    command = (sys.executable, "-m", "nvtx_kernels", "try", *options, "train.py")
    with subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1, text=True, env=os.environ) as process:
        for line in process.stderr:
            if line.startswith("try: screening"):
                break
        time.sleep(8)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "a step takes" in out
    assert "fused optimizer" in out
    assert "Interrupted: this was measured until then." in out
