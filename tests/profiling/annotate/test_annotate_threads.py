"""Whose backward a node is, where several threads make nodes, each with numbers of its own."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from nvtx_kernels.profiling import annotate
from torch import nn

from tests.profiling.making.hearing import Heard, heard_from, in_threads, leaf


class Branches(nn.Module):
    """Two branches that run in threads of a pool, as the caller's own layers do before and after them."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)
        self.left, self.right = (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2))

    def forward(self, x):
        x = self.before(x)
        left, right = self.pool.map(lambda branch: branch(x), (self.left, self.right))
        return self.after(left + right + x)


def backward_paths(run):
    """Return the paths of the backward ranges in a function, sorted: each once."""
    paths = set()

    class Backward(Heard):
        def push(self, name, payload):
            super().push(name, payload)
            if annotate.category() == "model/backward":
                paths.add(self.paths[-1])

    with annotate.listen(Backward()):
        run()
    return sorted(paths)


OF_BRANCHES = [
    "Branches",
    "Branches/after",
    "Branches/before",
    *(f"{side}{part}" for side in ("left", "right") for part in ("", *(f"/{side} {i}" for i in range(3)))),
]


@pytest.mark.parametrize("workers", [1, 2])
def test_branches_in_a_pool_have_their_backward_and_the_callers_layers_theirs(workers):
    with ThreadPoolExecutor(workers) as pool:
        model = Branches(pool)
        with annotate.annotate_modules(model):
            for _ in range(3):
                paths = backward_paths(lambda: model(leaf()).sum().backward())
                assert paths == OF_BRANCHES


def test_replicas_in_threads_that_end_have_their_backward():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def step():
        weights = [one * 1 for one in model.parameters()]  # as replicas have: nodes of the calling thread
        replicas = [model._replicate_for_data_parallel() for _ in range(2)]
        for replica in replicas:
            replica._modules = {name: one._replicate_for_data_parallel() for name, one in model._modules.items()}
            for place, kind in enumerate(("0", "2")):
                child = replica._modules[kind]
                child._former_parameters = {}
                for name, weight in zip(("weight", "bias"), weights[2 * place :], strict=False):
                    child._parameters[name] = None
                    object.__setattr__(child, name, weight)
                    child._former_parameters[name] = weight
            replica._former_parameters = {}
        outputs = {}
        inputs = [leaf() * 1 for _ in replicas]

        def run(index):
            outputs[index] = replicas[index](inputs[index])

        in_threads(lambda: run(0), lambda: run(1))
        sum(outputs[index].sum() for index in range(2)).backward()

    with annotate.annotate_modules(model):
        paths = backward_paths(step)
    assert paths == ["Sequential", *(f"Sequential/Sequential {index}" for index in range(3))]


def in_thread(run):
    """Run a function in a thread of its own and return what it returned."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def test_loss_on_one_thread_is_not_of_the_model_that_another_ran():
    model, seen, heard = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), [], Heard()
    with annotate.annotate_modules(model), annotate.listen(heard):
        outputs = in_thread(lambda: model(leaf()))
        loss = outputs.square().sum()
        node = loss.grad_fn
        while node is not outputs.grad_fn:
            node.register_hook(lambda *_: seen.append(heard.left_open()))
            node = node.next_functions[0][0]
        loss.backward()
    assert seen == [[], []]


def test_forwards_with_equal_numbers_are_told_apart():
    """Two models in two fresh threads: every node of one has the number of a node of the other."""
    models = {name: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for name in "ab"}
    heard, wrong = Heard(), []
    annotations = [annotate.annotate_modules(model, name=name) for name, model in models.items()]
    with annotate.listen(heard):
        outputs = {name: in_thread(lambda model=model: model(leaf())) for name, model in models.items()}
        for name, model in models.items():
            for weight in model.parameters():
                weight.register_post_accumulate_grad_hook(
                    lambda _, name=name: wrong.append((name, heard.left_open()[:1]))
                )
        sum(output.sum() for output in outputs.values()).backward()
    for annotation in annotations:
        annotation.remove()
    assert sorted(wrong) == [(name, [name]) for name in "aabb" for _ in range(2)]


def penalty(model, x, *, grad_on_thread, backward_on_thread):
    """Compute the gradient penalty of a critic, and the gradients of that."""

    def gradient():
        return torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]

    value = in_thread(gradient) if grad_on_thread else gradient()
    loss = (value.norm(2, dim=1) - 1).square().mean()
    if backward_on_thread:
        in_thread(loss.backward)
    else:
        loss.backward()


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the innermost range of every product, on the thread that enters it."""

    def __init__(self, heard):
        super().__init__()
        self.heard, self.ranges = heard, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket is torch.ops.aten.mm:
            open_here = self.heard.open.get(threading.get_ident(), [])
            self.ranges.append(open_here[-1] if open_here else None)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("grad_on_thread", [False, True])
@pytest.mark.parametrize("backward_on_thread", [False, True])
def test_second_order_is_of_the_parts_that_made_the_first(grad_on_thread, backward_on_thread):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Tanh())
    where = {"grad_on_thread": grad_on_thread, "backward_on_thread": backward_on_thread}
    with annotate.annotate_modules(model):
        paths = backward_paths(lambda: penalty(model, leaf(), **where))
        again = backward_paths(lambda: penalty(model, leaf(), **where))
    assert paths == again == ["Sequential", *(f"Sequential/Sequential {index}" for index in range(4))]


def test_products_of_the_second_order_name_their_own_layers():
    model, heard = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)), nn.Tanh()), Heard()
    operators, x = Operators(heard), leaf()
    with annotate.annotate_modules(model), annotate.listen(heard):
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        loss = gradient.square().sum()
        with operators:
            loss.backward()
    # Two of what the layer's first backward made, and two of its forward.
    assert sorted(operators.ranges) == sorted(4 * [f"Sequential {index}" for index in range(3)])


def test_learning_to_learn_names_the_layers_of_every_inner_step():
    model, heard = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)), Heard()
    operators = Operators(heard)
    with annotate.annotate_modules(model), annotate.listen(heard):
        weights = dict(model.named_parameters())
        for _ in range(2):
            loss = torch.func.functional_call(model, weights, (torch.ones(2, 4),)).square().sum()
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {
                name: weight - gradient
                for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            }
        loss = torch.func.functional_call(model, weights, (torch.ones(2, 4),)).square().sum()
        with operators:
            loss.backward()
    assert None not in operators.ranges
    assert set(operators.ranges) == {"Sequential 0", "Sequential 1"}


def test_model_may_be_annotated_while_another_thread_calls_it():
    model, is_over, errors = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8))), threading.Event(), []

    def call():
        try:
            while not is_over.is_set():
                model(leaf()).sum().backward()
        except Exception as error:
            errors.append(error)

    def annotate_again_and_again():
        thread = threading.Thread(target=call)
        thread.start()
        try:
            for _ in range(100):
                with annotate.annotate_modules(model):
                    model(leaf())
        finally:
            is_over.set()
            thread.join()

    plain = nn.Module.__call__
    heard_from(annotate_again_and_again)
    assert errors == []
    assert nn.Module.__call__ is plain
