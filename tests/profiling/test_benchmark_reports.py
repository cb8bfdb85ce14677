"""The pages of `reports/` are made from files of results alone, beside the published figures."""

import json
import subprocess
import sys

import pytest

from tests.profiling.measured_rows import row
from tests.profiling.recordings import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "record_reports.py"


def steps(**times):
    """Ten measured steps of these times in ms, and five before them."""
    run = {**times, "step": sum(times.values())}
    return {"warmup": [run] * 5, "measured": [run] * 10}


def h200(times, **cell):
    return {**row(warmup=range(5), measured=range(10), **cell), **steps(**times)}


def pages(folder, *rows, parts):
    (folder / "measurements.1.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    command = [sys.executable, str(SCRIPT), str(folder), *parts, "--pages"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return [(folder / f"{part}.md").read_text() for part in parts]


@pytest.mark.slow
def test_own_figures_stand_beside_the_published_ones(tmp_path):
    near = h200({"forward": 18.9, "backward": 36.8, "optimizer": 3.4}, dtype="fp32")
    far = h200({"forward": 9.6, "backward": 30.0, "optimizer": 3.4}, dtype="bf16")
    other = h200({"forward": 1.0, "backward": 1.0, "optimizer": 1.0}, dtype="fp32", compile=True)
    seed = h200({"forward": 34.0, "backward": 46.9}, mode="forward-backward")
    first, second = pages(tmp_path, near, far, other, seed, parts=["a", "b004"])
    assert "python -m profiling.benchmark --sizes small,medium,large,xl,2.7B" in first
    beside = [
        list(map(str.strip, line.split("|")[1:-1])) for line in first.partition("Beside")[2].splitlines()[4:]
    ]
    close = {(size, dtype, phase): words[-1] for size, dtype, phase, *words in beside}
    assert close["small", "bf16", "backward"] == "no"
    assert close["small", "fp32", "forward"] == "yes"
    assert "33.980 ± 0.180" in second
    assert "1.001" in second


def test_part_that_does_not_exist_is_refused(tmp_path):
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path), "z"], capture_output=True, text=True)
    assert (done.returncode, "no such part: z" in done.stderr) == (2, True)
