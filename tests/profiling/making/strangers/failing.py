"""Programs that fail, and some that go on."""

import torch
from torch import nn

from .table import Model, program, sgd, train, x_of


def fail(*_):
    raise ValueError("the program's own")


FAILING_HOOKS = {
    "fails_in_a_hook_before": lambda model: model.layers[1].norm.register_forward_pre_hook(fail),
    "fails_in_a_hook_after": lambda model: model.layers[1].ffn[1].register_forward_hook(fail),
    "fails_in_a_hook_of_a_tensor": lambda model: model.layers[0].ffn[0].weight.register_hook(fail),
    "fails_in_a_hook_of_backward": lambda model: model.layers[1].register_full_backward_hook(fail),
}


def failing(name, register):
    def run(annotate):
        model = annotate(Model())
        register(model)
        train(model)

    run.__name__ = name
    return run


for hook_name, hook in FAILING_HOOKS.items():
    program()(failing(hook_name, hook))


@program()
def fails_in_its_own_backward(annotate):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ArithmeticError("no gradient")

    model = annotate(Model())
    model.layers[0].register_forward_hook(lambda m, a, output: Broken.apply(output))
    train(model)


@program()
def wrong_shape(annotate):
    annotate(Model())(torch.ones(3, 5))


@program()
def wrong_arguments(annotate):
    annotate(Model())(x_of(), mask=None)


@program()
def twice_backward(annotate):
    loss = annotate(Model())(x_of()).sum()
    loss.backward()
    loss.backward()


@program(silent=True)
def without_init(annotate):
    class Forgot(nn.Module):
        def __init__(self):
            self.size = 4

    annotate(Model())
    Forgot()(1)


@program()
def without_forward(annotate):
    class Empty(nn.Module):
        pass

    annotate(Empty())(x_of())


@program()
def out_of_memory_and_smaller(annotate):
    model, sizes = annotate(Model()), []
    optimizer = sgd(model)
    handle = model.layers[1].register_forward_hook(lambda m, args, _: fail() if len(args[0]) > 2 else None)
    for rows in (4, 3, 2):
        try:
            optimizer.zero_grad()
            model(x_of(rows)).sum().backward()
            optimizer.step()
        except ValueError as error:
            sizes.append((rows, str(error)))
    handle.remove()
    return sizes


@program()
def fails_and_handles_and_fails(annotate):
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Model()

        def forward(self, x):
            try:
                return self.inner(x)
            except RuntimeError as error:
                error.add_note("in the careful module")
                raise LookupError("inner model failed") from error

    annotate(Careful())(torch.ones(2, 7))


@program()
def stops_iteration(annotate):
    class Exhausted(nn.Module):
        def forward(self, items):
            return next(items)

    model, items = annotate(Exhausted()), iter([torch.ones(1)])
    model(items)
    model(items)


@program()
def interrupted(annotate):
    model = annotate(Model())

    def interrupt(*_):
        raise KeyboardInterrupt("by hand")

    train(model, steps=1)
    model.layers[1].register_forward_hook(interrupt)
    train(model)


@program()
def interrupted_in_backward(annotate):
    model = annotate(Model())

    def leave(_):
        raise SystemExit(3)

    model.layers[1].norm.weight.register_hook(leave)
    train(model)


@program()
def optimizer_that_fails(annotate):
    model, failures = annotate(Model()), []

    class Fragile(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            if failures:
                return super().step(closure)
            failures.append(1)
            raise FloatingPointError("not finite")

    optimizer = Fragile(model.parameters(), lr=0.1)
    for _ in range(3):
        try:
            train(model, optimizer, 1)
        except FloatingPointError as error:
            failures.append(str(error))
    return failures


@program()
def closure_that_fails(annotate):
    model = annotate(Model())
    train(model)
    torch.optim.LBFGS(model.parameters()).step(fail)


@program()
def output_that_cannot_be_looked_into(annotate):
    class Closed(dict):
        def __iter__(self):
            fail()

        items = keys = values = __len__ = __getitem__ = __bool__ = __iter__

    class Returns(nn.Module):
        def forward(self, x):
            return Closed(output=x * 2)

    dict.__getitem__(annotate(Returns())(x_of()), "output").sum().backward()
