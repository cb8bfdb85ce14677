"""Reports of serving engines: dicts as names become paths of modules, and steps become prefill and decode."""

import pytest
from nvtx_kernels.analysis.readers.module_names import called

from tests.analysis.making.building import Range, build, launched, thread
from tests.analysis.making.engines import served, sglang_step, tensorrt_call, tensorrt_step, vllm_call, vllm_step
from tests.analysis.making.traces import summary

PREFILL_DECODE = {
    "vLLM": (
        served(
            "LlamaForCausalLM", vllm_call,
            [(vllm_step(1, 512, 0, 0), 512), (vllm_step(0, 0, 8, 8), 8), (vllm_step(0, 0, 9, 9), 9)],
            around="gpu_model_runner: forward", outputs=True,
        ),
        "LlamaForCausalLM", ("gpu_model_runner: forward",),
    ),
    "SGLang": (
        served(
            "model", vllm_call,
            [(sglang_step("EXTEND", 2, 512), 512), (sglang_step("DECODE", 8), 8), (sglang_step("DECODE", 9), 9)],
        ),
        "model", (),
    ),
    "TensorRT-LLM": (
        served(
            "LlamaForCausalLM|X", tensorrt_call,
            [(tensorrt_step(0, 2, 0), 512), (tensorrt_step(1, 0, 8), 8), (tensorrt_step(2, 0, 9), 9)],
        ),
        "LlamaForCausalLM|X", (),
    ),
}  # fmt: skip


def of_rows(folder, rows):
    return summary(build(folder, **rows))


@pytest.mark.parametrize("engine", PREFILL_DECODE)
def test_calls_of_modules_are_paths_whatever_their_shapes(tmp_path, engine):
    rows, root, around = PREFILL_DECODE[engine]
    report = of_rows(tmp_path, rows)
    below = {
        row.path[1 + len(around) :] for row in report.ranges if len(row.path) > 1 + len(around) and row.kernels
    }
    chain = (root, "model", "layers.0", "self_attn", "qkv")
    assert below == {chain[:length] for length in range(1, 6)}
    assert not any("{" in name for row in report.ranges for name in row.path)


@pytest.mark.parametrize("engine", PREFILL_DECODE)
def test_prompts_are_prefill_and_tokens_decode(tmp_path, engine):
    report = of_rows(tmp_path, PREFILL_DECODE[engine][0])
    assert {row.phase: row.kernels for row in report.phases} == {"prefill": 5, "decode": 10}
    assert sum(row.kernel_ns for row in report.phases) == report.totals.work_ns == 150


def test_a_step_of_both_is_forward(tmp_path):
    steps = [(vllm_step(1, 512, 3, 3), 515), (vllm_step(0, 0, 4, 4), 4)]
    rows = served("A", vllm_call, steps, around="gpu_model_runner: forward")
    assert {row.phase: row.kernels for row in of_rows(tmp_path, rows).phases} == {"forward": 5, "decode": 5}
    rows = served("model", vllm_call, [(sglang_step("MIXED", 4), 4)])
    assert {row.phase: row.kernels for row in of_rows(tmp_path, rows).phases} == {"forward": 5}


def test_ranges_of_outputs_are_apart_and_hold_nothing(tmp_path):
    report = of_rows(tmp_path, PREFILL_DECODE["vLLM"][0])
    attention = [row for row in report.ranges if row.path[-1] == "self_attn"]
    assert [row.instances for row in attention if row.phase == "decode"] == [1, 1]
    outputs = [row for row in report.ranges if row.path[-1].endswith(" (outputs)")]
    assert not any(row.kernels for row in outputs)


def test_steps_are_measured(tmp_path):
    assert {name: of_rows(tmp_path, rows).steps for name, (rows, *_) in PREFILL_DECODE.items()} == {
        "vLLM": 3, "SGLang": 3, "TensorRT-LLM": 0,
    }  # fmt: skip


def test_a_module_of_another_is_never_shortened_by_it(tmp_path):
    other = thread(100, 107)
    ranges = [
        Range(vllm_call("model"), 0, 100),
        Range(vllm_call("model.a"), 10, 20),
        Range(vllm_call("model.ab.c"), 30, 40),  # ab has no range, and a is over
        Range(vllm_call("draft.a"), 50, 60),
        Range(vllm_call("model.a.b"), 12, 18, other),  # whose thread is taken to work for this one
    ]
    calls = launched((13, 14), (33, 34), (53, 54), (15, 16, other))
    found = {row.path for row in of_rows(tmp_path, {"ranges": ranges, **calls}).ranges if row.self_kernels}
    assert found == {("model", "a"), ("model", "ab.c"), ("model", "draft.a"), ("model", "a", "model.a.b")}


@pytest.mark.parametrize(
    ("name", "module", "outputs"),
    [
        (vllm_call("model.layers.0", [[8, 64]], parameters={"weight": [64]}), "model.layers.0", False),
        (vllm_call("model", outputs=[[8, 64]]), "model", True),
        (vllm_call("Torch Compiled Module (input):Llama", [[1]]), "Torch Compiled Module:Llama", False),
        (vllm_call("Torch Compiled Module (output):Llama", outputs=[[1]]), "Torch Compiled Module:Llama", True),
        (vllm_call("it's"), "it's", False),
        (tensorrt_call("A|B.model"), "A|B.model", False),
    ],
)
def test_the_module_of_a_name(name, module, outputs):
    assert called(name) == (module, outputs)


@pytest.mark.parametrize(
    "name", ["{'Module': ''}", "{'Module': 3}", "{'Modules': 'a'}", "Module: a", "{'Module': 'a\\'"]
)
def test_near_names_are_no_modules(name):
    assert called(name) is None
