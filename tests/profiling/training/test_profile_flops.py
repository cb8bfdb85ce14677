"""FLOPs from a training loop to the view: counted in warm-up, joined to the ranges of the measured steps."""

import pytest
import torch
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.profiling import record, run
from torch import nn
from torch.utils._python_dispatch import _len_torch_dispatch_stack

import nvtx_kernels as nk
from tests.profiling.making.counted_models import checkpointed, product
from tests.profiling.making.recordings import marks, train_on


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))


def test_a_profiled_loop_has_its_flops_in_every_range(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters())
    with nk.profile(model, optimizer, tmp_path / "report.sqlite", warmup=2, flops=True):
        train_on(torch.ones(2, 8), model, optimizer, 5)
    answer = nk.efficiency(tmp_path / "report.sqlite")
    first, second = product(2, 8, 16), product(2, 16, 4)
    flops = answer["efficiency"].set_index("range").flops
    assert flops["step > forward > Sequential > Sequential 1"] == 3 * second
    assert flops["step > backward > Sequential > Sequential 0"] == 3 * first
    assert flops["step"] == 3 * (2 * first + 3 * second)
    assert not any("lacks" in note for note in answer.screen().notes)


def test_counting_leaves_the_weights_as_they_would_be(tmp_path):
    weights = []
    for flops in (False, True):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters())
        with nk.profile(model, optimizer, tmp_path / f"{flops}.sqlite", flops=flops):
            train_on(torch.ones(2, 8), model, optimizer, 4)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_a_checkpointed_model_has_a_higher_hfu_than_mfu(tmp_path):
    made = checkpointed()
    optimizer = torch.optim.SGD(made.model.parameters())
    with nk.profile(made.model, optimizer, tmp_path / "report.sqlite", flops=True):
        for _ in range(3):
            made.loss().backward()
            optimizer.step()
    step = nk.efficiency(tmp_path / "report.sqlite", per_step=True)["step"].set_index("flops_of").flops
    assert step["model (MFU)"] == made.forward + made.backward
    assert step["all computed (HFU)"] == made.forward + made.backward + made.again


def test_without_warm_up_there_is_no_step_to_count(tmp_path):
    with pytest.raises(ValueError, match="flops counts the last step of warm-up"):
        nk.profile(net(), None, tmp_path / "report.sqlite", warmup=0, flops=True)


def test_a_block_that_ends_in_warm_up_leaves_nothing_that_counts(tmp_path):
    model = net()
    with nk.profile(model, None, tmp_path / "report.sqlite", flops=True):
        model(torch.ones(2, 8))
    assert _len_torch_dispatch_stack() == 0


TWO_MODELS = """
import torch
models = [torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)]
optimizers = [torch.optim.SGD(models[0].parameters()), torch.optim.AdamW(models[1].parameters())]
for _ in range(4):
    for model, optimizer in zip(models, optimizers):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
"""


def test_a_program_is_counted_unless_its_step_ended_before_the_second_optimizer_which_is_refused(tmp_path):
    script, report = tmp_path / "train.py", tmp_path / "report.sqlite"
    script.write_text(TWO_MODELS)
    assert record.main(["-o", str(report), "--flops", "--warmup", "1", str(script)]) == 0
    with pytest.raises(ReportError, match=r"called forward > Linear#2 0 times, and .* 1 times, .* --warmup 2"):
        nk.efficiency(report)
    assert record.main(["-o", str(report), "--flops", "--warmup", "2", str(script)]) == 0
    answer = nk.efficiency(report, per_step=True)["efficiency"].set_index("range").flops
    assert answer["step"] == 2 * 2 * product(2, 8, 4)


def test_a_run_counts_what_the_model_says_of_its_products(tmp_path):
    report = tmp_path / "report.sqlite"
    sizes = ["--size", "tiny", "--context-length", "8", "--warmup", "2", "--steps", "1", "--device", "cpu"]
    assert run.main([*sizes, "--flops", "--record", str(report)]) == 0
    assert len(marks(report, "nvtx-kernels flops:")) == 1
    answer = nk.efficiency(report)
    assert answer["step"].flops[0] == answer["efficiency"].set_index("range").flops["measure"]
    assert not any("states" in note or "lacks" in note for note in answer.screen().notes)
