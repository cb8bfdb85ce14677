import json

import pytest
import torch
from nvtx_kernels.profiling import precision
from nvtx_kernels.profiling.study import precision as experiments

from tests.analysis.making.checks import said
from tests.profiling.making.shown_tables import shown

SUMS = [
    ("float32", "float32", "no", "10.0001", "10.000134"),
    ("float16", "float16", "no", "9.9531", "9.953125"),
    ("float32", "float16", "no", "10.0021", "10.002136"),
    ("float32", "float16", "float32", "10.0021", "10.002136"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_thousand_hundredths_come_to_what_everybody_finds(device):
    lines = shown(experiments.accumulation(device))
    assert [tuple(line.values()) for line in lines] == SUMS


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "low"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_autocast_lowers_products_and_keeps_weights_loss_and_gradients(name, low, device):
    lines = {line["tensor"]: line[f"{name} autocast"] for line in shown(experiments.autocast(device))}
    assert (lines["output of fc1"], lines["logits"], lines["loss"]) == (low, low, "float32")
    weights = ["fc1.weight", "ln.weight", "ln.bias", "fc2.weight"]
    kept = {lines[f"{kind} {weight}"] for kind in ("parameter", "gradient of") for weight in weights}
    assert kept == {"float32"}


@pytest.mark.parametrize("device", DEVICES)
def test_layer_norm_is_lowered_on_a_cpu_and_stays_in_full_precision_on_cuda(device):
    expected = "float16" if device == "cpu" else "float32"
    assert experiments.autocast_types(torch.float16, device)["output of layer norm"] == expected


def test_command_prints_every_table(capsys):
    assert precision.main(["--device", "cpu", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [line["result"] for line in told["tables"][0]["rows"]][1] == 9.953125
    assert len(told["tables"][1]["rows"]) == 12
    assert precision.main(["--device", "cpu", "--table", "layer-norm"]) == 0
    assert "bfloat16 has the range of FP32" in " ".join(capsys.readouterr().out.split())


# Exactly, the variance is the square of the standard deviation; what becomes of it, by row and type.
EFFECTS = [
    ("ordinary", "float16", "its own sum stops growing; fine in FP32"),
    ("ordinary", "bfloat16", "its own sum stops growing; fine in FP32"),
    ("large", "float16", "squares exceed 65,504: the row becomes 0"),
    ("large", "bfloat16", "its own sum stops growing; fine in FP32"),
    ("far from zero", "float16", "its own sum stops growing; fine in FP32"),
    ("far from zero", "bfloat16", "values near 100 are rounded in steps of 0.5"),
]


@pytest.mark.parametrize("device", DEVICES)
def test_variance_of_a_layer_norm_breaks_by_range_in_fp16_and_by_its_sum_in_bf16(device):
    lines = shown(experiments.layer_norm(device))
    assert [(line["row"], line["dtype"], line["effect"]) for line in lines] == EFFECTS


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_layer_norm_of_pytorch_is_as_broken_as_its_variance(dtype):
    x = 300 * torch.randn(1, 4096)
    by_hand = x.to(dtype) - x.to(dtype).mean()
    by_hand = by_hand * torch.rsqrt((by_hand * by_hand).mean() + 1e-5)
    assert (by_hand.float().std() > 0.9) == (dtype == torch.bfloat16)
    assert torch.nn.functional.layer_norm(x.to(dtype), (4096,)).float().std() > 0.9


def test_unknown_device_is_refused():
    status, _, err = said(precision, "--device", "abacus")
    assert (status, "device must be cuda, cuda:N or cpu, not abacus" in err) == (2, True)
