"""gitleaks' rules, as we read them, find what gitleaks' own test cases hold, and nothing in kernels' names."""

import csv
import json
import lzma
from pathlib import Path

import pytest
from nvtx_kernels.analysis.scrub import looks, makers

DATA = Path(__file__).parents[2] / "data"
CASES = json.loads(lzma.decompress((DATA / "gitleaks_cases.json.xz").read_bytes()))
# A line that says what a file is, without the secret; and a command with neither name nor form of one.
NO_SECRET_IN_IT = {'"type": "service_account"'}
RULES = sorted({rule for rule, _, _ in CASES})


@pytest.mark.parametrize("rule", RULES)
def test_what_gitleaks_finds_is_found(rule):
    secrets = [text for name, holds, text in CASES if name == rule and holds and text not in NO_SECRET_IN_IT]
    assert [text for text in secrets if not looks.secrets(text)] == []


def test_every_rule_is_read():
    assert len(makers.published()) > 200
    assert all(makers._rule(number).pattern for number in range(len(makers.published())))


def test_nothing_private_is_found_in_kernels_names():
    with (DATA / "kernel_names.csv").open(newline="") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    assert {(kind, name) for name in names for kind, find in looks.LOOKS.items() if find(name)} == set()


LAYERS = (
    "/layer.0/attention/self/MatMul", "/model/layers.11/self_attn/q_proj/MatMul_output_0", "a::b::c", "aten::mm",
    "/hm_heads.5/hm_heads.5.0/Conv", "jit(train)/jvp/dot_general", "model/layers/0/attn", "c10d::allreduce_",
    "cub::DeviceReduce::Sum", "torch 2.11.0", "cudnn 9.1.0.70", "step 3", "layer *", "tokens: 128", "12:34:56",
    "num_tokens=4096", "tokenizer=bert-base",
)  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_names_of_layers_operators_and_versions_stay(name):
    assert [kind for kind, find in looks.LOOKS.items() if find(name)] == []
