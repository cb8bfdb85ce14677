"""Programs that fail, and some that go on."""

import torch
from torch import nn

from .table import Model, program, train


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
def wrong_shape(annotate):
    annotate(Model())(torch.ones(3, 5))


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
def interrupted(annotate):
    model = annotate(Model())

    def interrupt(*_):
        raise KeyboardInterrupt("by hand")

    train(model, steps=1)
    model.layers[1].register_forward_hook(interrupt)
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
