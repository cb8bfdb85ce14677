import json

import pytest
import torch
from nvtx_kernels.profiling import precision
from nvtx_kernels.profiling.precision import experiments

from tests.profiling.making.shown_tables import shown

SUMS = [
    ("float32", "float32", "no", "10.0001", "10.000134"),
    ("float16", "float16", "no", "9.9531", "9.953125"),
    ("float32", "float16", "no", "10.0021", "10.002136"),
    ("float32", "float16", "float32", "10.0021", "10.002136"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _has_device(request):
    if "cuda" in request.node.name and not torch.cuda.is_available():
        pytest.skip("there is no CUDA GPU here")


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


def test_layer_norm_is_lowered_on_a_cpu():
    assert experiments.autocast_types(torch.float16, "cpu")["output of layer norm"] == "float16"


@pytest.mark.gpu
def test_layer_norm_stays_in_full_precision_on_cuda():
    assert experiments.autocast_types(torch.float16, "cuda")["output of layer norm"] == "float32"


def test_command_prints_both_tables(capsys):
    assert precision.main(["--device", "cpu", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [line["result"] for line in told["tables"][0]["rows"]][1] == 9.953125
    assert len(told["tables"][1]["rows"]) == 12


def test_unknown_device_is_refused(capsys):
    with pytest.raises(SystemExit):
        precision.main(["--device", "abacus"])
    assert "device must be cuda, cuda:N or cpu, not abacus" in capsys.readouterr().err
