"""Facts of a run that cost time or memory without showing: looked up without a trace, and kept in the report."""

import signal

import pytest
import torch
from nvtx_kernels.analysis import scrub
from nvtx_kernels.profiling import costly_settings
from nvtx_kernels.profiling.costly_settings import Loaders, odd_sizes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nvtx_kernels as nk
from nvtx_kernels import analysis

VARIABLES = [
    ("CUDA_LAUNCH_BLOCKING", "1", {"launch_blocking": True}),
    ("CUDA_LAUNCH_BLOCKING", "0", {"launch_blocking": False}),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", {"no_memory_caching": True}),
    ("NCCL_P2P_DISABLE", "1", {"no_peer_to_peer": True}),
    ("TORCH_DISTRIBUTED_DEBUG", "detail", {"distributed_debug": "DETAIL"}),
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", {"expandable_segments": True}),
    ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", {"expandable_segments": False}),
]
SWITCHES = [
    (torch.autograd.set_detect_anomaly, "anomaly_mode"),
    (torch.use_deterministic_algorithms, "deterministic"),
]


@pytest.mark.parametrize(("name", "value", "facts"), VARIABLES)
def test_variables_of_the_environment_are_facts(monkeypatch, name, value, facts):
    before = costly_settings.costly_settings()
    monkeypatch.setenv(name, value)
    after = costly_settings.costly_settings()
    assert {fact: after[fact] for fact in after if fact not in before} == facts


@pytest.mark.parametrize(("switch", "fact"), SWITCHES)
def test_settings_of_pytorch_are_facts(switch, fact):
    switch(True)
    try:
        assert costly_settings.costly_settings()[fact] is True
    finally:
        switch(False)
    assert costly_settings.costly_settings()[fact] is False


def test_a_setting_that_this_pytorch_lacks_is_left_out(monkeypatch):
    monkeypatch.delattr(torch, "is_anomaly_enabled")
    assert "anomaly_mode" not in costly_settings.costly_settings()
    assert "deterministic" in costly_settings.costly_settings()


def test_sizes_are_told_that_8_does_not_divide():
    model = nn.ModuleDict({
        "embedding": nn.Embedding(50257, 64), "even": nn.Linear(64, 128), "head": nn.Linear(64, 1),
        "first": nn.Conv2d(3, 60, 3),
    })  # fmt: skip
    assert odd_sizes([model]) == {"embedding.weight": [50257, 64], "first.weight": [60, 3]}


def test_loaders_are_noted_while_they_are_used():
    loaders = Loaders()
    iterate = DataLoader.__iter__
    with loaders.noting():
        for _ in range(2):
            assert len(list(DataLoader(TensorDataset(torch.ones(4)), batch_size=2))) == 2
    assert DataLoader.__iter__ is iterate
    assert loaders.facts == {"loaders": [{"num_workers": 0, "pin_memory": False, "persistent_workers": False}]}


def recorded(path):
    """Record three steps of a program under hooks on saved tensors, with a loader and an odd size."""
    model = nn.Linear(8, 11)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(torch.ones(6, 8)), batch_size=2)
    with torch.autograd.graph.save_on_cpu(), nk.profile(model, optimizer, path, warmup=1):
        for (x,) in data:
            model(x).sum().backward()
            optimizer.step()
    return path


def test_a_report_has_the_facts_and_so_has_its_shared_copy(tmp_path):
    path, copy = recorded(tmp_path / "r.sqlite"), tmp_path / "shared.sqlite"
    assert scrub.main([str(path), "-o", str(copy)]) == 0
    for file in (path, copy):
        run = analysis.read(file).provenance.run
        assert run["odd_sizes"] == {"weight": [11, 8]}
        assert run["loaders"] == [{"num_workers": 0, "pin_memory": False, "persistent_workers": False}]
        assert (run["saved_tensor_hooks"], run["anomaly_mode"], run["optimizer"]) == (True, False, "SGD")
        assert run["parameter_dtypes"] == {"float32": 2}


@pytest.mark.gpu
def test_a_report_of_a_gpu_has_the_memory_that_was_taken(tmp_path):
    model = nn.Linear(1024, 1024).cuda()
    retries = torch.cuda.memory_stats()["num_alloc_retries"]  # of the tests before this one
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nk.profile(model, optimizer, tmp_path / "r.sqlite", warmup=1):
        for _ in range(4):
            model(torch.ones(64, 1024, device="cuda")).sum().backward()
            optimizer.step()
    run = analysis.read(tmp_path / "r.sqlite").provenance.run
    assert 4 << 20 < run["memory_peak_bytes"] <= run["memory_reserved_bytes"] < run["device_memory_bytes"]
    assert run["memory_retries"] == retries


class LateError(Exception):
    """What a program's handler of SIGALRM raises."""


def test_what_a_handler_of_the_program_raises_while_its_settings_are_noted_reaches_it(monkeypatch):
    def late(*_):
        raise LateError

    def hooks(_):
        signal.raise_signal(signal.SIGALRM)

    def fails(_):
        raise RuntimeError

    before = signal.signal(signal.SIGALRM, late)
    loaders = Loaders()
    try:
        monkeypatch.setattr(torch._C._autograd, "_top_saved_tensors_default_hooks", hooks)
        with pytest.raises(LateError):
            loaders.note_forward()
    finally:
        signal.signal(signal.SIGALRM, before)
    monkeypatch.setattr(torch._C._autograd, "_top_saved_tensors_default_hooks", fails)
    loaders.note_forward()
    assert loaders.facts == {}
