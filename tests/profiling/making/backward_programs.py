"""Programs whose backward is not plain: each returns a model and a function that trains it for some steps."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.profiling.making.hearing import in_threads

WIDTH, STEPS = 8, 3


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Layer(nn.Module):
    """A layer with work of its own between its modules, which may checkpoint its MLP."""

    reentrant = None

    def __init__(self):
        super().__init__()
        self.norm, self.mix, self.mlp = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), Mlp()

    def forward(self, x):
        mixed = self.mix(self.norm(x))
        x = x + mixed.tanh() * mixed.sigmoid()
        if self.reentrant is None:
            return x + self.mlp(x)
        return x + checkpoint(self.mlp, x, use_reentrant=self.reentrant)


class Net(nn.Module):
    """Layers that may be checkpointed, and a head."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(3)), nn.Linear(WIDTH, WIDTH)
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x)


class Implicit(torch.autograd.Function):
    """Calls a module, and runs autograd, in its backward."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = (ctx.module(x).tanh() * 2).sin()
        return torch.autograd.grad(y, x, gradient)[0], None


class ImplicitLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Implicit.apply(x, self.inner)


class Energy(nn.Module):
    """Runs a backward in its forward."""

    def __init__(self):
        super().__init__()
        self.inner, self.mlp = nn.Linear(WIDTH, WIDTH), Mlp()

    def forward(self, x):
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            (force,) = torch.autograd.grad(self.mlp(self.inner(z)).square().sum(), z)
        return self.inner(x) - 0.1 * force


class Branches(nn.Module):
    """Two branches whose modules are called in turn."""

    def __init__(self):
        super().__init__()
        self.left, self.right = Mlp(), Mlp()

    def forward(self, x):
        left = right = x
        for of_left, of_right in zip(self.left.children(), self.right.children(), strict=True):
            left, right = of_left(left), of_right(right)
        return left * right


def trained(model, device, step=None):
    """Return the model, and a function that runs steps of it: `step(model, x)`, or a mean and its backward."""
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run():
        for _ in range(STEPS):
            optimizer.zero_grad()
            x = torch.ones(4, WIDTH, device=device, requires_grad=True)
            (step or _plain)(model, x)
            optimizer.step()

    return model, run


def _plain(model, x):
    model(x).square().mean().backward()


def _conv(device):
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 4)
    return trained(nn.Sequential(*layers), device, lambda model, x: _plain(model, x.view(1, 1, 4, 8).relu()))


def _each(layer):
    """Put a module of its own into each layer, in place of `mix`."""
    model = Net()
    for one in model.layers:
        one.mix = layer()
    return model


def _checkpointed_inside(*, reentrant):
    model = Net()
    for layer in model.layers:
        layer.reentrant = reentrant
    return model


def _penalty(model, x):
    y = model(x).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    (y + gradient.square().sum()).backward()


def _second_derivative(model, x):
    with warnings.catch_warnings(action="ignore"):  # of a cycle of references
        model(x).sum().backward(create_graph=True)
    x.grad.square().sum().backward()


def _second_derivative_elsewhere(device):
    """The first backward makes its nodes on another thread, as a GPU's does; both threads count from zero."""
    ours, engines = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    def step(model, x):
        loss = model(x).tanh().sum()
        (gradient,) = engines.submit(partial(torch.autograd.grad, loss, x, create_graph=True)).result()
        gradient.square().sum().backward()
        loss = model(x).tanh().sum()
        with warnings.catch_warnings(action="ignore"):
            engines.submit(partial(loss.backward, create_graph=True)).result()
        x.grad.square().sum().backward()

    return trained(Net(), device, lambda model, x: ours.submit(step, model, x).result())


def _tensor_hooks(model, x):
    h = model.layers[0](x)
    h.register_hook(lambda gradient: gradient * gradient.cos())
    h = model.layers[1](h)
    h.register_hook(lambda gradient: (model.head(gradient).sum(), gradient)[1])
    model.head(h).sum().backward()


def _forward_in_threads(model, x):
    made = [None] * 3

    def run(number):
        made[number] = model.layers[number](x)

    in_threads(*(partial(run, number) for number in range(3)))
    model.head(sum(made)).sum().backward()


def _backward_elsewhere(model, x):
    in_threads(model(x).sum().backward)


def _at_once(model, x):
    together = threading.Barrier(2)

    def run(part):
        y = part(x.detach()).sum()
        together.wait()
        y.backward()

    in_threads(*(partial(run, part) for part in model))


def _failing(model, x):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, h):
            return h * 1

        @staticmethod
        def backward(_ctx, _gradient):
            raise ValueError

    with suppress(ValueError):
        model.head(Fails.apply(model.layers[0](x))).sum().backward()
    model.head(x).sum().backward()


def _func_grad(model, x):
    def loss(weights):
        return torch.func.functional_call(model, weights, (x,)).sum()

    for name, gradient in torch.func.grad(loss)(dict(model.named_parameters())).items():
        model.get_parameter(name).grad = gradient


#: By name: a function that makes a model and its training on a device.
PROGRAMS = {
    "plain": lambda device: trained(Net(), device),
    "conv": _conv,
    "checkpoint": lambda device: trained(Net(reentrant=False), device),
    "reentrant checkpoint": lambda device: trained(Net(reentrant=True), device),
    "checkpoint inside": lambda device: trained(_checkpointed_inside(reentrant=False), device),
    "reentrant checkpoint inside": lambda device: trained(_checkpointed_inside(reentrant=True), device),
    "penalty": lambda device: trained(Net(), device, _penalty),
    "second derivative": lambda device: trained(Net(), device, _second_derivative),
    "second derivative elsewhere": _second_derivative_elsewhere,
    "implicit": lambda device: trained(_each(ImplicitLayer), device),
    "energy": lambda device: trained(_each(Energy), device),
    "branches": lambda device: trained(Branches(), device),
    "tensor hooks": lambda device: trained(Net(), device, _tensor_hooks),
    "forward in threads": lambda device: trained(Net(), device, _forward_in_threads),
    "backward elsewhere": lambda device: trained(Net(), device, _backward_elsewhere),
    "at once": lambda device: trained(nn.ModuleList([Net(), Net()]), device, _at_once),
    "failing": lambda device: trained(Net(), device, _failing),
    "func grad": lambda device: trained(Net(), device, _func_grad),
}
