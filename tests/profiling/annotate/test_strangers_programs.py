"""Programs as strangers write them, with and without annotation: the same results, operators and errors."""

import asyncio
import copy
import threading
from collections import Counter, OrderedDict

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import range_stack
from torch import nn
from torch.autograd import gradcheck  # noqa: F401  what strangers import
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.profiling.making.hearing import Heard

pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    def __init__(self, checkpointed=None):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(4), nn.Dropout(0.1)
        self.ffn = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
        self.checkpointed = checkpointed

    def forward(self, x):
        if self.checkpointed is None:
            inner = self.ffn(self.norm(x))
        else:
            inner = checkpoint(lambda x: self.ffn(self.norm(x)), x, use_reentrant=self.checkpointed)
        return x + self.drop(inner)


class Model(nn.Module):
    def __init__(self, checkpointed=None):
        super().__init__()
        self.layers = nn.ModuleList(Block(checkpointed) for _ in range(2))
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def x_of(rows=4):
    return torch.arange(4.0 * rows).reshape(rows, 4).div(16).requires_grad_()


def train(model, optimizer=None, steps=3):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x_of()).square().sum().backward()
        optimizer.step()


def plain(model):
    train(model)


def gradient_checkpoints(model):
    checkpoint_sequential(nn.Sequential(*model.layers), 2, x_of(), use_reentrant=False).sum().backward()


def hooks_of_the_program(model):
    model.head.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model.head.register_forward_hook(lambda module, args, output: output + 1)
    model.layers[0].register_full_backward_hook(lambda module, gradients, _: (gradients[0] * 2,))
    train(model)


def threads(model):
    models = [copy.deepcopy(model) for _ in range(2)]
    workers = [threading.Thread(target=lambda: model(x_of()).detach()) for _ in models]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def coroutines(model):
    async def one():
        await asyncio.sleep(0)
        return model(x_of())

    async def both():
        return await asyncio.gather(one(), one())

    sum(output.sum() for output in asyncio.run(both())).backward()


def compiled(model):
    torch.compiler.reset()
    train(torch.compile(model, backend="aot_eager"))


def exported(model):
    return torch.export.export(model.eval(), (x_of().detach(),)).module()(x_of().detach())


def generating(model):
    model.eval()
    tokens = [torch.ones(1, 4)]
    with torch.no_grad():
        for _ in range(5):
            tokens.append(model(tokens[-1]).softmax(-1))
    return torch.cat(tokens)


def retained_graph(model):
    loss = model(x_of()).sum()
    for _ in range(3):
        loss.backward(retain_graph=True)


def double_backward(model):
    x = x_of()
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def custom_function(model):
    model.head.register_forward_hook(lambda module, args, output: Doubled.apply(output))
    train(model)


def parametrized(model):
    nn.utils.parametrizations.weight_norm(model.head)
    nn.utils.parametrizations.spectral_norm(model.layers[0].ffn[0])
    train(model)


def lbfgs(model):
    model.eval()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(x_of()).square().sum()
        loss.backward()
        return loss

    return optimizer.step(closure)


def adversaries(model):
    critic = Model()
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(critic.parameters(), lr=0.1)
    for _ in range(2):
        other.zero_grad()
        critic(model(x_of()).detach()).sum().backward()
        other.step()
        mine.zero_grad()
        critic(model(x_of())).sum().neg().backward()
        mine.step()


def scaled(model):
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for index in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x_of()).square().sum() * (float("inf") if index == 1 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def scripted(model):
    return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))(x_of()), torch.jit.script(model.head)(
        x_of()
    )


def traced(model):
    return torch.jit.trace(model.eval(), x_of().detach())(x_of())


def functional_calls(model):
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    model.eval()
    loss = lambda weights, x: torch.func.functional_call(model, weights, (x,)).sum()  # noqa: E731
    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.ones(3, 4))["head.weight"]


def average_of_weights(model):
    averaged = torch.optim.swa_utils.AveragedModel(model)
    train(model)
    averaged.update_parameters(model)
    return averaged(x_of())


def fails_in_the_middle(model):
    model.layers[1].norm.register_forward_pre_hook(lambda module, args: 1 // 0)
    train(model)


def fails_in_backward(model):
    model.head.weight.register_hook(lambda gradient: 1 // 0)
    train(model)


def wrong_shape(model):
    model(torch.ones(3, 5))


def accumulated_and_clipped(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(x_of()).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


PROGRAMS = [
    plain, gradient_checkpoints, hooks_of_the_program, threads, coroutines, compiled, exported, generating,
    retained_graph, double_backward, custom_function, parametrized, lbfgs, adversaries, scaled, scripted, traced,
    functional_calls, average_of_weights, fails_in_the_middle, fails_in_backward, wrong_shape,
    accumulated_and_clipped,
]  # fmt: skip
# These see operators that compilers and tracers run, in whatever order they please.
COUNTED = [one for one in PROGRAMS if one not in (compiled, exported, threads)]
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)


class Operators(TorchDispatchMode):
    """Counts the operators that are called."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def outcome(program, *, annotated, checkpointed=None):
    """Run a program on a fresh model; return what it returns or raises, the weights and the gradients."""
    torch.manual_seed(0)
    model = Model(checkpointed)
    annotation = annotate.annotate_modules(model) if annotated else None
    try:
        result = program(model)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    if annotation is not None:
        annotation.remove()
    return result, model.state_dict(), {name: one.grad for name, one in model.named_parameters()}


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@each_program
def test_results_gradients_and_errors_are_the_same_bits(program):
    expected, heard = outcome(program, annotated=False), Heard()
    with annotate.listen(heard):
        found = outcome(program, annotated=True)
    if isinstance(expected[0], str) or expected[0] is None:
        assert found[0] == expected[0]
    else:
        assert_same(found[0], expected[0])
    assert_same(found[1], expected[1])
    assert found[2].keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        assert (gradient is None) == (found[2][name] is None)
        if gradient is not None:
            assert_same(found[2][name], gradient)


@pytest.mark.parametrize("program", COUNTED, ids=lambda one: one.__name__)
def test_operators_are_the_same(program):
    counts = []
    for annotated in (False, True):
        with annotate.listen(Heard()), Operators() as operators:
            outcome(program, annotated=annotated)
        counts.append(operators.counts)
    assert counts[0] == counts[1]
    assert counts[0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_training_is_the_same(reentrant):
    expected = outcome(plain, annotated=False, checkpointed=reentrant)
    with annotate.listen(Heard()):
        found = outcome(plain, annotated=True, checkpointed=reentrant)
    assert_same(found[1], expected[1])


@each_program
def test_ranges_are_balanced_when_the_next_has_begun(program):
    heard = Heard()
    with annotate.listen(heard):
        outcome(program, annotated=True)
        with annotate.range("next"):
            pass
    assert [name for name in heard.left_open() if name not in ("step", "optimizer")] == []


def test_parallel_training_is_the_same(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        program = lambda model: train(nn.parallel.DistributedDataParallel(model))  # noqa: E731
        expected = outcome(program, annotated=False)
        with annotate.listen(Heard()):
            found = outcome(program, annotated=True)
    finally:
        torch.distributed.destroy_process_group()
    assert_same(found[1], expected[1])


def test_transformer_encoder_keeps_its_fast_path():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    counts = []
    for annotated in (False, True):
        annotation = annotate.annotate_modules(model) if annotated else None
        with annotate.listen(Heard()), torch.no_grad(), Operators() as operators:
            model(torch.ones(2, 3, 8))
        counts.append(operators.counts)
    annotation.remove()
    assert counts[0] == counts[1]
    assert counts[0]["aten._transformer_encoder_layer_fwd.default"] == 2


class Strange(dict):
    """A result that says how often it is looked into."""

    looked = 0

    def values(self):
        Strange.looked += 1
        raise RuntimeError

    __iter__ = items = keys = values


def test_results_are_looked_into_without_their_own_code():
    class Returns(nn.Module):
        def forward(self, x):
            return Strange(output=x * 2)

    model, heard = Returns(), Heard()
    with annotate.annotate_modules(model), annotate.listen(heard):
        dict.__getitem__(model(x_of()), "output").sum().backward()
    assert (heard.paths, Strange.looked) == (["Returns"] * 2, 0)


def test_functions_that_a_program_overrides_hear_nothing_of_annotation():
    class Overridden(torch.overrides.TorchFunctionMode):
        seen: tuple = ()

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.seen += (getattr(function, "__name__", ""),)
            return function(*args, **(kwargs or {}))

    seen = []
    for annotated in (False, True):
        model = Model()
        annotation = annotate.annotate_modules(model) if annotated else None
        with annotate.listen(Heard()), Overridden() as overridden:
            model(x_of())
        seen.append(overridden.seen)
    annotation.remove()
    assert seen[0] == seen[1] != ()


def hooks_on(node):
    handle = node.register_prehook(lambda _: None)
    count = len(handle.hooks_dict_ref()) - 1
    handle.remove()
    return count


def test_features_that_outlive_steps_collect_no_hooks():
    features, model = x_of() * 2, Model()
    with annotate.listen(Heard()), annotate.annotate_modules(model):
        for _ in range(200):
            model(features).sum().backward(retain_graph=True)
        assert hooks_on(features.grad_fn) == 1
    assert hooks_on(features.grad_fn) == 0


def test_graph_that_is_kept_opens_no_ranges_after_removal():
    model, heard = Model(), Heard()
    with annotate.listen(heard):
        with annotate.annotate_modules(model):
            loss = model(x_of()).sum()
        before = len(heard.paths)
        loss.backward()
    assert len(heard.paths) == before


def test_nothing_grows_over_steps():
    model, heard = nn.Sequential(OrderedDict(one=nn.Linear(4, 4), two=nn.ReLU())), Counting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with annotate.listen(heard), annotate.annotate_modules(model):
        train(model, optimizer, 50)
        objects = len(objects_of_ours())
        train(model, optimizer, 300)
        assert len(objects_of_ours()) <= objects
    assert heard.depth <= 2


class Counting:
    """Counts open ranges."""

    depth = 0

    def push(self, name, payload):
        self.depth += 1

    def pop(self):
        self.depth -= 1

    def mark(self, message):
        pass


def objects_of_ours():
    import gc

    gc.collect()
    return [one for one in gc.get_objects() if "nvtx_kernels.profiling.annotate" in str(type(one).__module__)]


@pytest.mark.parametrize("inside", ["a range", "nothing"])
def test_interrupts_leave_no_range_of_a_module_open(inside):
    model, heard = Model(), Heard()

    def interrupt(*_):
        raise KeyboardInterrupt

    with annotate.listen(heard), annotate.annotate_modules(model):
        handle = model.layers[1].ffn[1].register_forward_hook(interrupt)
        for _ in range(100):
            with pytest.raises(KeyboardInterrupt):
                model(x_of())
        handle.remove()
        assert heard.left_open() == []
        with annotate.range("running"):
            model(x_of())
            assert heard.left_open() == ["running"]
    assert range_stack.stack() == []
