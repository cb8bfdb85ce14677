import dataclasses
from collections import Counter

import pytest
import torch
from nvtx_kernels.profiling.study.settings import PHASES_OF_MODE, Settings
from nvtx_kernels.profiling.study.workload import OPTIMIZERS, NoMemoryError, Workload, in_memory, timed_steps
from torch.profiler import profile

from tests.profiling.making.hearing import heard_from

TINY = Settings(size="tiny", context_length=16, batch_size=2, device="cpu")
# What each allocator says, and how much it was asked for.
NO_ROOM = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total"), 5 << 29),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"), 20 << 20),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes."), 8 << 30),
    (MemoryError(), None),
]
# Tensor operations of the course's AdamW on one parameter; the two fills are the dropped defaults.
OPERATIONS_OF_REFERENCE = {"mul": 6, "add": 3, "sub_": 2, "div": 1, "sqrt": 1, "pow": 1, "zero_": 2}


def workload(**changes):
    return Workload(dataclasses.replace(TINY, **changes))


@pytest.mark.parametrize(("mode", "phases"), PHASES_OF_MODE.items())
def test_a_step_and_its_phases_are_ranges_and_timed(mode, phases):
    program, steps = workload(mode=mode), []
    paths = heard_from(lambda: steps.extend(timed_steps(program, 2)))
    assert [path for path in paths if path.count("/") < 2] == ["step", *(f"step/{phase}" for phase in phases)] * 2
    assert ("step/forward/loss" in paths) == ("step/backward/loss" in paths) == (mode != "forward")
    for times in steps:
        assert set(times) == {*phases, "step"}
        assert 0 < min(times.values()) <= sum(times[phase] for phase in phases) < times["step"]


def test_forward_mode_computes_logits_without_gradients():
    logits = workload(mode="forward").forward()
    assert logits.shape == (2, 16, 256)
    assert not logits.requires_grad


@pytest.mark.parametrize("mode", ["forward-backward", "train"])
def test_gradients_are_dropped_after_every_step(mode):
    program = workload(mode=mode)
    list(timed_steps(program, 1))
    assert all(parameter.grad is None for parameter in program.model.parameters())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_lowers_the_loss(optimizer):
    program = workload(optimizer=optimizer)
    before = program.forward().item()
    list(timed_steps(program, 5))
    assert program.forward().item() < before


def test_a_seed_decides_weights_and_tokens():
    losses = [workload(seed=seed).forward().item() for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    ("dtype", "logits", "tf32"),
    [("fp32", torch.float32, "highest"), ("tf32", torch.float32, "high"), ("bf16", torch.bfloat16, "highest")],
)
def test_dtype_is_autocast_over_fp32_parameters_or_tf32(dtype, logits, tf32):
    program = workload(dtype=dtype, mode="forward")
    assert program.forward().dtype == logits
    assert {parameter.dtype for parameter in program.model.parameters()} == {torch.float32}
    assert torch.get_float32_matmul_precision() == tf32
    torch.set_float32_matmul_precision("highest")


def test_reference_adamw_agrees_with_torchs():
    weights = {name: torch.nn.Parameter(torch.linspace(-1, 1, 12)) for name in ("reference", "forloop")}
    for name, weight in weights.items():
        optimizer = OPTIMIZERS[name]([weight])
        for step in range(4):
            weight.grad = torch.sin(weight.detach() * (step + 1))
            optimizer.step()
    torch.testing.assert_close(weights["reference"].data, weights["forloop"].data, atol=1e-6, rtol=1e-5)


def test_reference_adamw_runs_the_courses_operations_on_every_tensor():
    weight = torch.nn.Parameter(torch.ones(3, 3))
    optimizer = OPTIMIZERS["reference"]([weight])
    for _ in range(2):
        weight.grad = torch.ones(3, 3)
        with profile(acc_events=True) as profiler:
            optimizer.step()
    seen = Counter(event.name for event in profiler.events())
    assert sum(OPERATIONS_OF_REFERENCE.values()) == 16
    assert {name: seen[f"aten::{name}"] for name in OPERATIONS_OF_REFERENCE} == OPERATIONS_OF_REFERENCE


@pytest.mark.parametrize(("error", "requested_bytes"), NO_ROOM)
def test_full_memory_names_the_phase_and_what_was_asked_for(error, requested_bytes):
    with pytest.raises(NoMemoryError, match="out of memory in backward") as caught, in_memory("backward"):
        raise error
    assert (caught.value.row["phase"], caught.value.row["requested_bytes"]) == ("backward", requested_bytes)


def test_other_errors_pass_unchanged():
    with pytest.raises(RuntimeError, match="shapes"), in_memory("forward"):
        raise RuntimeError("shapes do not match")
