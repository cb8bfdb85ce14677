"""Allocations in a recording: what PyTorch's own totals say, on CPU and GPU, and nothing unless asked."""

import pytest
import torch
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.memory import memory
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.profiling import record, run
from nvtx_kernels.profiling.recorder import record as recording
from torch import nn
from torch.profiler import ProfilerActivity, profile

import nvtx_kernels as nk
from tests.profiling.making.recordings import rows, train_on

EVENTS = "SELECT block, bytes, total_bytes FROM memory ORDER BY row"
WIDTH = 256


def net(device="cpu"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)


def step(model, optimizer, device="cpu", steps=1):
    train_on(torch.ones(64, WIDTH, device=device), model, optimizer, steps)


def profiled(path, device="cpu", steps=4):
    """Profile a loop, and return its memory."""
    model = net(device)
    optimizer = torch.optim.Adam(model.parameters())
    with nk.profile(model, optimizer, path, memory=True):
        step(model, optimizer, device, steps)
    return memory(attribute(read(path)), in_steps=True)


def test_bytes_are_those_that_the_profiler_of_pytorch_counts(tmp_path):
    """Of one call of the same code, torch.profiler's own sum over operators and ours are equal."""
    model, ones = net(), torch.ones(64, WIDTH)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        expected = model(ones)
    net_bytes = sum(event.self_cpu_memory_usage for event in seen.key_averages())
    with recording(tmp_path / "report.sqlite", memory=True, quiet=True):
        kept = model(ones)
    assert kept.shape == expected.shape
    assert sum(size for _, size, _ in rows(tmp_path / "report.sqlite", EVENTS)) == net_bytes > 0


def test_total_after_each_event_is_the_sum_so_far(tmp_path):
    profiled(tmp_path / "report.sqlite")
    events = rows(tmp_path / "report.sqlite", EVENTS)
    assert len(events) > 100
    before = events[0][2] - events[0][1]
    for number, (_, _, total) in enumerate(events):
        assert total == before + sum(size for _, size, _ in events[: number + 1])


def test_ranges_add_up_to_the_change_of_what_is_allocated(tmp_path):
    found = profiled(tmp_path / "report.sqlite")
    (balance,) = found.balances
    assert balance.unseen_bytes == 0
    whole = memory(attribute(read(tmp_path / "report.sqlite")), include_warm_up=True)
    top = [row for row in whole.ranges if len(row.path) < 2]
    change = sum(row.allocated_bytes - row.freed_bytes for row in top)
    assert change == balance.after_bytes - balance.before_bytes


def test_forward_keeps_what_its_backward_needs(tmp_path):
    """The ReLU's output serves its own backward and the second layer's; the first layer's serves none."""
    found = {row.path[-1]: row for row in profiled(tmp_path / "report.sqlite").ranges if row.phase == "forward"}
    activation = 64 * WIDTH * 4
    assert found["Sequential 0"].allocated_bytes == 3 * activation
    assert found["Sequential 0"].kept_bytes == 0
    assert found["Sequential 1"].kept_bytes == 3 * activation
    assert found["Sequential 2"].kept_bytes == 3 * activation


def test_state_of_the_optimizer_is_held_at_the_peak(tmp_path):
    found = profiled(tmp_path / "report.sqlite")
    state = 2 * sum(weight.nbytes for weight in net().parameters())
    (held,) = (row for row in found.holders if row.path == ("step", "optimizer"))
    # The state is of the first step, and the update at the peak holds denominators of the weights' size beside it.
    assert state <= held.held_bytes < state + state // 2 + 1024
    assert found.peaks[0].held_bytes == sum(row.held_bytes for row in found.holders)


def test_without_the_option_nothing_is_recorded(tmp_path):
    with recording(tmp_path / "report.sqlite", quiet=True):
        net()(torch.ones(64, WIDTH))
    assert read(tmp_path / "report.sqlite").memory is None


PROGRAM = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""


def test_commands_record_memory_where_asked(tmp_path):
    program, report = tmp_path / "train.py", tmp_path / "report.sqlite"
    program.write_text(PROGRAM)
    assert record.main(["-o", str(report), "--memory", str(program)]) == 0
    assert rows(report, EVENTS)
    ours = tmp_path / "ours.sqlite"
    sizes = ["--layers", "1", "--d-model", "64", "--d-ff", "64", "--heads", "2", "--vocab-size", "64"]
    assert run.main([*sizes, "--device", "cpu", "--steps", "1", "--record", str(ours), "--memory"]) == 0
    assert rows(ours, EVENTS)


@pytest.mark.gpu
def test_peak_is_what_the_allocator_says_of_it(tmp_path):
    model = net("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer, "cuda")
    with nk.profile(model, optimizer, tmp_path / "report.sqlite", warmup=0, memory=True):
        torch.cuda.reset_peak_memory_stats()
        step(model, optimizer, "cuda", steps=3)
        peak, now = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    found = memory(attribute(read(tmp_path / "report.sqlite")))
    assert found.peaks[0].held_bytes == peak == sum(row.held_bytes for row in found.holders)
    (balance,) = found.balances
    assert balance.after_bytes == now
    assert balance.unseen_bytes == 0


@pytest.mark.gpu
def test_each_modules_forward_allocates_what_the_allocator_says(tmp_path):
    """To the byte: the sums of a range are the differences of the allocator's own statistics around the module."""
    model, said = net("cuda"), {}
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer, "cuda")

    def counted():
        return torch.cuda.memory_stats()["allocated_bytes.all.allocated"]

    def before(module, _):
        said[module] = said.get(module, 0) - counted()

    def after(module, *_):
        said[module] += counted()

    for module in model.modules():
        module.register_forward_pre_hook(before, prepend=True)
        module.register_forward_hook(after)
    with nk.profile(model, optimizer, tmp_path / "report.sqlite", warmup=0, memory=True):
        step(model, optimizer, "cuda", steps=3)
    found = memory(attribute(read(tmp_path / "report.sqlite"))).ranges
    ours = {row.path[-1]: row.allocated_bytes for row in found if row.phase == "forward"}
    names = ("Sequential", *(f"Sequential {n}" for n in range(3)))
    assert [ours[name] for name in names] == [said[module] for module in model.modules()]
