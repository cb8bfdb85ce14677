"""FLOPs counted by range: equal by hand, conserved, and without a trace in results or in the process."""

import json
from collections import Counter

import nvtx
import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import counting, others, range_stack
from nvtx_kernels.profiling.annotate.counting import MARK, Counting
from torch import nn
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode, _len_torch_dispatch_stack
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from tests.profiling.making.counted_models import MAKERS, B, D, T, checkpointed, compiled, mlp, product
from tests.profiling.making.hearing import Heard, in_threads


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def made(request):
    """A small model, and what is known of it by hand."""
    return request.param()


@pytest.fixture(scope="module")
def counts(made):
    """What is counted of one forward and backward of it."""
    return counted(made)


def counted(made):
    """Count one forward and backward of an annotated model."""
    with annotate.annotate_modules(made.model), Counting().step() as counting:
        made.loss().backward()
    return counting


def by_phase(counts):
    """Add FLOPs up by phase, apart from those that are computed again."""
    found = Counter()
    for (phase, path), figures in counts.of.items():
        found["again" if "recompute" in path else phase] += figures.flops.total()
    return found


def test_flops_are_those_by_hand(made, counts):
    found = by_phase(counts)
    expected = {"forward": made.forward, "backward": made.backward, "again": made.again}
    assert {phase: found[phase] for phase in expected} == expected
    assert found.total() == sum(expected.values())


def test_flops_of_all_paths_are_pytorchs_own_total(request, made, counts):
    if request.node.callspec.params["made"] is compiled:
        pytest.skip("PyTorch's own counter does not look into compiled code")
    with FlopCounterMode(display=False) as theirs:
        made.loss().backward()
    assert counts.flops == theirs.get_total_flops()


def test_counting_changes_no_bit_of_loss_and_gradients(made):
    found = []
    for count in (False, True, False):
        made.model.zero_grad()
        torch.manual_seed(0)
        with annotate.annotate_modules(made.model), Counting().step() if count else annotate.range("step"):
            loss = made.loss()
            loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in made.model.parameters() if p.grad is not None)])
    for one, other in zip(*found[:2], strict=True):
        assert torch.equal(one, other)
    assert len(found[0]) == len(found[2]) > 1


def flops_by_place(counting):
    return {place: dict(figures.flops) for place, figures in counting.of.items() if figures.flops}


def test_flops_stand_in_the_ranges_that_compute_them():
    first, second = product(5, 8, 32), product(5, 32, 4)
    assert flops_by_place(counted(mlp())) == {
        ("forward", ("Sequential", "Sequential 0")): {"fp32": first},
        ("forward", ("Sequential", "Sequential 2")): {"fp32": second},
        ("backward", ("Sequential", "Sequential 2")): {"fp32": 2 * second},
        ("backward", ("Sequential", "Sequential 0")): {"fp32": first},
    }


def test_compiled_code_counts_in_the_ranges_of_its_modules():
    torch._dynamo.reset()  # of what other tests have compiled, without annotation
    made = mlp()
    with annotate.annotate_modules(made.model):
        call = torch.compile(made.model)
        with annotate.listen(Heard()):
            call(torch.ones(5, 8)).square().mean().backward()
        with Counting().step() as counting:
            call(torch.ones(5, 8)).square().mean().backward()
    assert flops_by_place(counting) == flops_by_place(counted(made))


def test_arithmetic_is_that_of_the_operators():
    model = nn.Linear(8, 8)
    with Counting().step() as counting, torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(2, 8))
    assert dict(counting.of["other", ()].flops) == {"bf16": product(2, 8, 8)}


def test_bytes_are_inputs_and_outputs_once():
    a, b = torch.ones(4, 8), torch.ones(8, 2)
    with Counting().step() as counting, annotate.range("product"):
        c = a @ b
        c.t()
        torch.empty(100)
        torch.ones(1, 8).expand(4, 8) + a
    product_bytes, ones_bytes, sum_bytes = 4 * (32 + 16 + 8), 4 * 8, 4 * (8 + 32 + 32)
    assert counting.of["other", ("product",)].bytes == product_bytes + ones_bytes + sum_bytes


def test_rows_that_are_picked_are_the_bytes_that_are_read():
    table, ids = nn.Embedding(1000, 4), torch.tensor([1, 2, 3])
    with Counting().step() as counting, torch.no_grad():
        table(ids)
    assert counting.of["other", ()].bytes == 3 * 4 * 4 + 3 * 8 + 3 * 4 * 4


def written_out(scores):
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
    return exponentials / exponentials.sum(-1, keepdim=True)


@pytest.mark.parametrize("softmax", [lambda scores: scores.softmax(-1), written_out], ids=["torch", "written out"])
def test_a_softmax_counts_5_flops_per_score_apart_from_products(softmax):
    with Counting().step() as counting, annotate.range("softmax"):
        softmax(torch.ones(3, 7))
    found = counting.of["other", ("softmax",)]
    assert (found.elementwise, found.flops.total(), counting.flops) == (5 * 21, 0, 0)


def test_backward_of_a_region_has_its_flops_and_4_per_score_of_softmax():
    scores, values = torch.ones(3, 7, requires_grad=True), torch.ones(7, 2)
    with Counting().step() as counting:
        with annotate.region("softmax") as part:
            chances = part.output(scores.softmax(-1))
        with annotate.region("final matmul") as part:
            out = part.output(chances @ values)
        out.sum().backward()
    found = {path[-1]: one for (phase, path), one in counting.of.items() if phase == "backward" and path}
    assert found["softmax"].elementwise == 4 * 21
    assert found["final matmul"].flops == {"fp32": product(3, 2, 7)}


WAYS = {"torch.cuda.nvtx": torch.cuda.nvtx.range, "nvtx": nvtx.annotate, "record_function": record_function}


@pytest.fixture
def _heard():
    """Hear the program throughout, as a recording does: without CUDA, torch.cuda.nvtx raises otherwise."""
    with others.hear(counting._Ranges(Counter())):
        yield


@pytest.mark.usefixtures("_heard")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ranges_that_the_program_opens_itself_are_in_the_paths(way):
    counting = Counting()
    with way("epoch"), counting.step(), annotate.range("forward"), way("scores"), annotate.range("inner"):
        torch.ones(2, 3) @ torch.ones(3, 4)
    assert dict(counting.of["forward", ("forward", "scores", "inner")].flops) == {"fp32": product(2, 3, 4)}


@pytest.mark.usefixtures("_heard")
def test_a_programs_step_around_the_counted_one_is_in_the_paths():
    counting = Counting()
    counting.listen()
    with torch.cuda.nvtx.range("step 3"), torch.cuda.nvtx.range("forward"):
        counting.begin()
        torch.ones(2, 3) @ torch.ones(3, 4)
        counting.end()
    assert [path for _, path in counting.of] == [("step 3", "forward")] * len(counting.of)


def test_what_hears_a_program_can_end_in_any_order():
    first, second = Counting(), Counting()
    first.listen()
    second.listen()
    first.end()
    second.begin()
    with torch.cuda.nvtx.range("scores"):
        torch.ones(2, 3) @ torch.ones(3, 4)
    second.end()
    assert ("other", ("scores",)) in second.of
    assert not isinstance(torch.cuda.nvtx._nvtx, others._HeardNvtx)


def test_a_programs_own_operator_counts_by_its_formula():
    @torch.library.custom_op("counted::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def count():
        with Counting().step() as counting:
            twice(torch.ones(3, 5))
        return counting

    assert "counted.twice" in count().uncounted
    register_flop_formula(torch.ops.counted.twice)(lambda shape, **_: shape[0] * shape[1])
    try:
        assert count().flops == 15
        assert "counted.twice" not in count().uncounted
    finally:
        del flop_registry[torch.ops.counted.twice]


def test_inference_mode_counts_what_operators_are_made_of():
    made = mlp()
    with torch.inference_mode(), annotate.annotate_modules(made.model), Counting().step() as counting:
        made.loss()
    assert counting.flops == made.forward


def test_nothing_is_left_when_a_counted_step_fails():
    call = nn.Module.__call__
    with pytest.raises(KeyError), annotate.annotate_modules(nn.Linear(2, 2)), Counting().step():
        raise KeyError
    assert _len_torch_dispatch_stack() == 0
    assert (range_stack.listeners, nn.Module.__call__) == ((), call)


def test_a_mode_that_the_program_enters_meanwhile_stays():
    class Theirs(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    counting, theirs = Counting(), Theirs()
    counting.listen()
    counting.begin()
    with theirs:
        counting.end()
        assert _len_torch_dispatch_stack() == 1
    assert _len_torch_dispatch_stack() == 0


def test_work_of_autograds_threads_is_below_the_ranges_of_the_thread_that_waits():
    owner, found = range_stack.here(), []

    def run():
        with annotate.range("layer 0"):
            found.append(counting._place(owner, counting._Ranges(Counter())))

    with annotate.listen(Heard()), annotate.range("backward"):
        in_threads(run)
    assert found == [("backward", ("backward", "layer 0"))]


def marks_of(run):
    """Run a function that listens, and return the counts in the marks that it sent."""
    heard = Heard()
    run(heard)
    return [json.loads(mark.removeprefix(MARK)) for mark in heard.marks if mark.startswith(MARK)]


def test_layers_that_compute_the_same_are_one_entry_of_a_mark():
    made = checkpointed()
    texts = counted(made).texts()
    ranges = json.loads(texts[0].removeprefix(MARK))["ranges"]["forward"]
    assert ranges["Checkpointed > block * > Sequential 0"] == [
        2, 4 * (B * T * D + D * 40 + 40 + B * T * 40), {"fp32": product(B * T, D, 40)}
    ]  # fmt: skip


def test_the_first_step_is_counted_and_told_to_who_listens_later():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())

    def run(heard):
        with annotate.annotate_modules(model, flops=True):
            for step in range(3):
                if step == 1:
                    listening = annotate.listen(heard)
                    listening.__enter__()
                for _ in range(2):  # two accumulated batches a step
                    model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            listening.__exit__(None, None, None)

    told = marks_of(run)
    assert told
    assert told[0]["ranges"]["forward"]["Linear"][2] == {"fp32": 2 * product(2, 4, 4)}
    assert told[0]["calls"] == {"Linear": 2}


def test_a_step_of_inference_is_the_programs_range_or_a_call():
    def run(heard, *, in_step):
        model = nn.Linear(4, 4)
        with annotate.listen(heard), torch.no_grad(), annotate.annotate_modules(model, flops=True):
            for _ in range(2):
                with annotate.range("step" if in_step else "part"):
                    model(torch.ones(2, 4))
                    model(torch.ones(2, 4))

    told = [marks_of(lambda heard, in_step=in_step: run(heard, in_step=in_step))[-1] for in_step in (True, False)]
    assert [one["calls"] for one in told] == [{"step > Linear": 2}, {"part > Linear": 1}]


def test_a_loop_without_steps_is_not_counted_and_says_so(capsys):
    model = nn.Linear(2, 2)

    def run(heard):
        with annotate.listen(heard), annotate.annotate_modules(model, flops=True):
            for _ in range(70):
                model(torch.ones(1, 2)).sum().backward()

    assert marks_of(run) == []
    assert "open a range" in capsys.readouterr().err
    assert _len_torch_dispatch_stack() == 0
