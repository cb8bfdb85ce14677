import dataclasses

import pytest
import torch
from nvtx_kernels.analysis.vocabulary import settings as table
from nvtx_kernels.model.config import CONFIGS, DIMENSIONS
from nvtx_kernels.profiling import run
from nvtx_kernels.profiling.machine import tf32_allowed
from nvtx_kernels.profiling.study.environment import environment, limit_memory
from nvtx_kernels.profiling.study.one_run import costs, less_work
from nvtx_kernels.profiling.study.settings import Settings, SettingsError, with_defaults
from nvtx_kernels.profiling.study.table import document
from nvtx_kernels.profiling.tool import watcher

from tests.profiling.making.measured_rows import row

TINY = Settings(size="tiny", context_length=64, batch_size=1, device="cpu")
REFUSED = [
    ({"size": "huge"}, "size must be one of tiny, small"),
    ({"mode": "backward"}, "mode must be one of forward, forward-backward, train"),
    ({"dtype": "fp8"}, "dtype must be one of fp32, tf32, bf16, fp16"),
    ({"attention": "flash"}, "attention must be one of reference, sdpa"),
    ({"optimizer": "sgd"}, "optimizer must be one of reference, forloop, foreach, fused"),
    ({"steps": 0}, "steps must be ≥ 1, not 0"),
    ({"warmup": -1}, "warmup must be ≥ 0, not -1"),
    ({"seed": -1}, "seed must be ≥ 0, not -1"),
    ({"heads": 0}, "heads must be ≥ 1, not 0"),
    ({"heads": 7}, "d_model 768 is not a multiple of 7 heads"),
    ({"heads": 256}, "768 / 256 heads = 3 is odd"),
    ({"device": "tpu"}, "device must be cuda, cuda:N or cpu, not tpu"),
    ({"device": "cuda:x"}, "device must be cuda, cuda:N or cpu"),
    ({"device": "cuda:99"}, "cuda:99 is not available"),
]


def test_the_table_of_settings_has_all_of_a_run_and_of_the_models():
    assert table.SETTINGS.keys() == {field.name for field in dataclasses.fields(Settings)}
    assert (table.SIZES, [setting.name for setting in table.DIMENSIONS]) == (tuple(CONFIGS), [*DIMENSIONS])


@pytest.mark.parametrize(("asked", "sentence"), REFUSED)
def test_what_cannot_be_run_is_said(asked, sentence):
    with pytest.raises(SettingsError, match=sentence):
        with_defaults({"device": "cpu", **asked})


def test_defaults_on_a_cpu_are_the_assignments_model_with_less_work():
    settings = with_defaults({"device": "cpu"})
    assert settings == Settings("small", 64, 1, "train", "fp32", warmup=1, steps=3, device="cpu")
    [sentence] = less_work({}, settings)
    assert sentence.endswith(": context length 64 not 512, batch size 1 not 4, warmup 1 not 5, steps 3 not 10.")


def test_what_is_asked_for_is_never_reduced():
    asked = {"device": "cpu", "steps": 7, "warmup": 0, "size": None}
    settings = with_defaults(asked)
    assert (settings.steps, settings.warmup, settings.size) == (7, 0, "small")
    [sentence] = less_work(asked, settings)
    assert sentence.endswith(": context length 64 not 512, batch size 1 not 4.")


def test_preset_decides_what_xl_is():
    asked = run.parser().parse_args(["--size", "xl", "--year", "2026", "--device", "cpu"])
    settings = with_defaults(vars(asked))
    assert (settings.size, settings.config.parameters) == ("2.7B", 3_406_809_600)
    for size, name in (("2.7B", "size 2.7B (xl of 2026)"), ("xl", "size xl (as of 2024 and 2025)")):
        assert name in document([row(size=size)]).accounting[0]


def test_unchanged_dimensions_are_not_told():
    settings = dataclasses.replace(TINY, heads=2, layers=5)
    assert settings.by_name() == {**TINY.by_name(), "layers": 5}
    assert set(TINY.by_name()) & set(DIMENSIONS) == set()


def test_flops_are_those_of_the_changed_model():
    deeper, _ = costs(dataclasses.replace(TINY, layers=6, vocab_size=512))
    flops, _ = costs(TINY)
    assert deeper["forward > lm head"] == 2 * flops["forward > lm head"]
    assert (
        deeper["backward > layer * > ffn > up projection"] == 3 * flops["backward > layer * > ffn > up projection"]
    )


def test_settings_default_to_the_assignment():
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert (fields["context_length"], fields["batch_size"]) == (512, 4)
    assert (fields["warmup"], fields["steps"], fields["dtype"], fields["size"]) == (5, 10, "fp32", "small")


@pytest.mark.parametrize(("override", "allowed"), [("", False), ("0", False), ("1", True)])
def test_tf32_is_what_cublas_will_do(monkeypatch, override, allowed):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    assert tf32_allowed() is allowed


@pytest.mark.parametrize(("device", "index"), [("cuda", 1), ("cuda:0", 0), ("cuda:2", 2)])
def test_limit_of_memory_is_set_on_a_gpu_by_its_index(monkeypatch, device, index):
    limits = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    # PyTorch's own function runs, which wants an index, but for the calls of the driver.
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_setMemoryFraction", lambda *limit: limits.append(limit), raising=False)
    limit_memory(Settings(size="tiny", device=device), 0.3)
    assert limits == [(0.3, index)]


def test_environment_names_versions_and_device_and_no_secrets(monkeypatch):
    monkeypatch.setenv("HOSTNAME", "a-host")
    facts = environment(TINY)
    assert {"python", "torch", "nvtx", "device_name", "tf32", "autocast", "threads"} <= set(facts)
    assert "a-host" not in str(facts)


NSYS = "/opt/nvidia/nsight-systems/2026.3.1/target-linux-x64"
WATCHED = [
    {"NSYS_PROFILING_SESSION_ID": "123"},
    {"CUDA_INJECTION64_PATH": f"{NSYS}/libToolsInjection64.so"},
    {"NVTX_INJECTION64_PATH": f"{NSYS}/libToolsInjection64.so"},
    {"LD_PRELOAD": f"{NSYS}/libnvperf_host.so:{NSYS}/libToolsInjectionProxy64.so"},
]
UNWATCHED = [
    {},
    {"NSYS_PROFILING_SESSION_ID": "", "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"},
    {"CUDA_INJECTION64_PATH": "/usr/local/cuda/compute-sanitizer/libsanitizer-collection.so"},
    {"NVTX_INJECTION64_PATH": "/home/me/nvtx_tool.so", "LD_PRELOAD": "/usr/lib/libjemalloc.so.2"},
]


@pytest.mark.parametrize("variables", WATCHED)
def test_nsys_is_known_by_what_it_gives_the_processes_it_watches(variables, monkeypatch):
    assert watcher(variables) == {"watched_by": "nsys"}
    for name, value in variables.items():
        if name != "LD_PRELOAD":
            monkeypatch.setenv(name, value)
            assert environment(TINY)["watched_by"] == "nsys"


@pytest.mark.parametrize("variables", UNWATCHED)
def test_other_tools_and_nsys_settings_are_not_nsys(variables):
    assert watcher(variables) == {}


@pytest.mark.parametrize(
    ("changes", "phases"),
    [
        ({}, {"forward", "backward"}),
        ({"mode": "forward"}, {"forward"}),
        ({"attention": "sdpa"}, {"forward", "backward"}),
    ],
)
def test_costs_cover_the_phases_that_run(changes, phases):
    flops, moved = costs(dataclasses.replace(TINY, **changes))
    assert {name.split(" > ")[0] for name in flops} == {name.split(" > ")[0] for name in moved} == phases
    assert ("forward > loss" in moved) == ("backward" in phases)


def test_layers_are_counted_together():
    flops, _ = costs(TINY)
    config = CONFIGS["tiny"]
    assert flops["forward > layer * > attention > q projection"] == config.layers * 2 * 64 * config.d_model**2
    assert not any("layer 0" in name for name in flops)
