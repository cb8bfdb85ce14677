"""The same command on a GPU: its kernels, their phases, and what it says of the GPU."""

import json

import pytest
import torch
from nvtx_kernels.profiling.run import main

from nvtx_kernels import analysis
from tests.profiling.making.recordings import kernels, marks, marks_of_times, python, range_names, rows, said_of

pytestmark = pytest.mark.gpu
LAYERS, TENSORS = 2, 21
TF32_KERNEL = "s1688gemm"
FAILS_ON_THE_GPU = """
import sys, torch
from profiling import annotate, recorder
x = torch.ones(64, 64, device="cuda")
with recorder.record(sys.argv[1]), annotate.range("step"):
    with annotate.range("good"):
        (x @ x).sum().item()
    x[torch.tensor([99], device="cuda")].sum().item()
"""


def record(folder, *options):
    path = folder / "r.sqlite"
    assert main(["--size", "tiny", "--warmup", "2", "--steps", "2", "--record", str(path), *options]) == 0
    return path


def per_step(path):
    """Matrix products and kernels of each phase, per step."""
    phases = analysis.rank(analysis.read(path), per_step=True).phases.set_index("phase")
    return {phase: (row["gemm_kernels"], row["kernels"]) for phase, row in phases.iterrows() if row["kernels"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return record(tmp_path_factory.mktemp("trained"))


def test_phases_launch_the_kernels_that_theory_counts(trained):
    found = per_step(trained)
    assert (found["forward"][0], found["backward"][0]) == (9 * LAYERS + 1, 18 * LAYERS + 2)
    assert found["optimizer"] == (0, 16 * TENSORS)


def test_kernels_have_names_grids_streams_and_launches(trained):
    unlaunched = """SELECT count(*) FROM kernels LEFT JOIN launches ON launches.row = launch
                    WHERE launch < 0 OR kernels.start_ns < launches.start_ns OR duration_ns <= 0"""
    assert rows(trained, unlaunched) == [(0,)]
    assert rows(trained, "SELECT count(*) FROM work WHERE kind = 0 AND grid = 0") == [(0,)]
    assert len({name for name, _ in kernels(trained)}) > 10
    assert rows(trained, "SELECT count(DISTINCT device_id) FROM kernels") == [(1,)]


def test_backward_is_launched_by_a_thread_of_autograd_under_the_models_ranges(trained):
    threads = "SELECT DISTINCT thread FROM named_ranges WHERE name = ?"
    assert rows(trained, threads, "backward") == rows(trained, threads, "step")
    assert len(rows(trained, threads, "computing softmax")) == 2
    totals = analysis.rank(analysis.read(trained)).totals
    assert totals.outside_ns == totals.ambiguous_ns == 0


def test_the_report_names_the_gpu_and_counts_gpu_time(trained):
    gpu = torch.cuda.get_device_name()
    provenance = analysis.read(trained).provenance
    assert gpu in provenance.gpus
    assert provenance.unit_of_work == "GPU"
    (mark,) = marks(trained, "nvtx-kernels.run ")
    assert json.loads(mark.partition(" ")[2])["device_name"] == gpu
    timed, is_safe = (
        marks_of_times(trained)["unrecorded"],
        tuple(map(int, torch.version.cuda.split("."))) >= (12, 6),
    )
    assert (timed["clock"], timed["is_detached"]) == ("gpu", is_safe)


def test_fp32_uses_no_tf32_kernel(trained):
    assert [name for name, _ in kernels(trained) if TF32_KERNEL in name] == []


@pytest.mark.parametrize("dtype", ["tf32", "bf16", "fp16"])
def test_every_dtype_runs_and_launches_as_many_matrix_products(tmp_path, dtype):
    found = per_step(record(tmp_path, "--dtype", dtype))
    assert (found["forward"][0], found["backward"][0]) == (9 * LAYERS + 1, 18 * LAYERS + 2)


@pytest.mark.parametrize(("optimizer", "most"), [("foreach", 15 * 2), ("fused", 4)])
def test_torchs_optimizers_launch_few_kernels(tmp_path, optimizer, most):
    assert 0 < per_step(record(tmp_path, "--optimizer", optimizer))["optimizer"][1] <= most


def test_annotation_leaves_the_multiset_of_kernels_as_it_is(trained, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nvtx_kernels.profiling.annotate.range_stack.off", True)
        bare = record(tmp_path)
    assert range_names(bare) == []
    assert sorted(name for name, _ in kernels(bare)) == sorted(name for name, _ in kernels(trained))


def test_full_memory_is_one_sentence_and_status_1(capsys):
    assert main(["--size", "tiny", "--context-length", "100000", "--batch-size", "64"]) == 1
    assert "out of memory in forward: could not allocate another" in capsys.readouterr().err


def test_a_gpu_that_fails_leaves_a_readable_report_of_what_ran(tmp_path):
    path = tmp_path / "r.sqlite"
    done = python("-c", FAILS_ON_THE_GPU, path)
    assert "device-side assert" in done.stderr
    assert range_names(path) == ["step", "good"]
    assert "device-side assert" in said_of(path)["ended_early"]
