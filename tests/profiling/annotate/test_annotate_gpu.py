"""On a GPU, backward runs on a thread of autograd's own: its ranges open there, and add nothing."""

import re
import threading
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling import annotate
from torch.autograd import DeviceType

from tests.profiling.making.hearing import Heard, linear, nodes_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

GEMM = re.compile(r"gemm|nvjet|cutlass::Kernel2", re.IGNORECASE)
GEMM_PART = re.compile("splitKreduce|split_k_kernel")
SMALL = CONFIGS["small"]


class Step:
    """One training step of a model on the GPU, forward and backward apart."""

    def __init__(self, size, context, attention="reference", dtype=None):
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.model = TransformerLM(CONFIGS[size], context, attention=attention)
            self.ids_BT = torch.randint(CONFIGS[size].vocabulary, (2, context))
        self.dtype = dtype

    def forward(self):
        self.model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", self.dtype) if self.dtype else nullcontext():
            return cross_entropy(self.model(self.ids_BT), self.ids_BT)

    def run(self):
        with annotate.range("forward"):
            loss = self.forward()
        with annotate.range("backward"):
            loss.backward()
        torch.cuda.synchronize()
        return [loss, *(parameter.grad for parameter in self.model.parameters())]


def gpu_work(run):
    """Count what the GPU did, by name: kernels, copies and memsets."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        run()
        torch.cuda.synchronize()
    return Counter(event.name for event in profile.events() if event.device_type == DeviceType.CUDA)


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_annotation_changes_no_kernel_and_no_bit(attention, dtype):
    step = Step("tiny", 64, attention, dtype)
    for _ in range(2):
        plain = step.run()
    plain_work = gpu_work(step.run)
    with annotate.listen(Heard()):
        annotated = step.run()
        annotated_work = gpu_work(step.run)
    assert annotated_work == plain_work
    assert all(torch.equal(one, other) for one, other in zip(annotated, plain, strict=True))


def test_annotation_takes_no_gpu_memory():
    step, peaks = Step("tiny", 64), []
    step.run()
    for listener in (nullcontext(), annotate.listen(Heard())):
        torch.cuda.reset_peak_memory_stats()
        with listener:
            step.run()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]


def test_backward_ranges_open_on_the_thread_that_runs_the_nodes():
    step, heard, node_threads = Step("tiny", 64), Heard(), set()
    with annotate.listen(heard):
        loss = step.forward()
        forward = len(heard.threads)
        for node in nodes_of(loss.grad_fn):
            node.register_prehook(lambda _: node_threads.add(threading.get_native_id()))
        loss.backward()
    assert set(heard.threads[:forward]) == {threading.get_native_id()}
    assert set(heard.threads[forward:]) == node_threads
    assert threading.get_native_id() not in node_threads
    assert heard.left_open() == []


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_backward_paths_mirror_the_forward_ones(attention):
    step, heard = Step("tiny", 64, attention), Heard()
    with annotate.listen(heard):
        step.run()
    main = threading.get_native_id()
    pairs = list(zip(heard.paths, heard.threads, strict=True))
    forward = Counter(path.removeprefix("forward/") for path, _ in pairs if path.startswith("forward/"))
    backward = Counter(path for path, thread in pairs if thread != main)
    assert backward == forward
    assert heard.left_open() == []


def test_small_model_launches_109_gemms_forward_and_218_backward():
    step = Step("small", 512)
    step.run()
    with annotate.listen(Heard()):
        forward = gpu_work(step.forward)
        loss = step.forward()
        backward = gpu_work(loss.backward)
    assert gemms(forward) == 9 * SMALL.layers + 1 == 109
    assert gemms(backward) == 18 * SMALL.layers + 2 == 218


def gemms(work):
    return sum(count for name, count in work.items() if GEMM.search(name) and not GEMM_PART.search(name))


def test_backward_that_fails_on_the_gpu_leaves_nothing_in_the_next_one():
    heard = Heard()
    weight = torch.ones(4, 4, device="cuda", requires_grad=True)
    weight.register_hook(lambda _: 1 / 0)
    with annotate.listen(heard):
        with pytest.raises(ZeroDivisionError):
            linear("failing", weight, weight).sum().backward()
        fresh = torch.ones(4, 4, device="cuda", requires_grad=True)
        linear("next", fresh, fresh).sum().backward()
    assert heard.paths == ["failing", "failing", "next", "next"]
    assert heard.left_open() == []


def test_tensors_of_cpu_and_gpu_may_meet_in_a_region():
    heard, weight = Heard(), torch.ones(4, 4, requires_grad=True)
    with annotate.listen(heard):
        with annotate.region("both") as part:
            x = part.output((weight * 2).cuda() @ torch.ones(4, 4, device="cuda"))
        x.sum().backward()
        linear("next", weight, weight).sum().backward()
    torch.cuda.synchronize()
    assert torch.equal(weight.grad[0, 0], torch.tensor(8.0) + linear_gradient())
    assert {path.split("/")[0] for path in heard.paths} == {"both", "next"}


def linear_gradient():
    weight = torch.ones(4, 4, requires_grad=True)
    torch.sin(weight @ weight).sum().backward()
    return weight.grad[0, 0]
