"""Programs that use autograd in their own way."""

import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, jvp, vmap

from .table import Model, program, train, x_of


@program()
def double_backward(annotate):
    model, x = annotate(Model()), x_of()
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    (gradient.norm() - 1).square().backward()
    return gradient


@program()
def hessian_times_a_vector(annotate):
    model = annotate(Model())
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(model(x_of()).square().sum(), parameters, create_graph=True)
    return torch.autograd.grad(gradients, parameters, [torch.ones_like(one) for one in gradients])


@program()
def gradients_of_some(annotate):
    model, x = annotate(Model()), x_of()
    inner = model.layers[0](x)
    output = model.head(model.layers[1](inner))
    return torch.autograd.grad(output.sum(), [inner, model.head.bias], allow_unused=True), inner


class ReversedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x.view_as(x), x.detach()

    @staticmethod
    def backward(ctx, gradient, unused):
        return -gradient if unused is None else None


@program()
def reversed_gradient(annotate):
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = Model(), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(ReversedGradient.apply(self.body(x))[0])

    train(annotate(Adapted()))


@program()
def in_place_and_views(annotate):
    class Writes(nn.Module):
        def forward(self, x):
            y = x.clone()
            y[:, 0].mul_(2)
            y[1:].add_(y[:-1].clone())
            first, second = y.chunk(2, dim=1)
            return y.t(), first, second.relu()

    model, x = annotate(Writes()), x_of()
    whole, first, second = model(x)
    whole.mul_(0.5)
    (whole.sum() + first.square().sum() + second.sum()).backward()
    return x.grad


@program()
def gradients_per_sample(annotate):
    model = annotate(Model().eval())
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    loss = lambda weights, x: functional_call(model, weights, (x,)).sum()  # noqa: E731
    return vmap(grad(loss), in_dims=(None, 0))(weights, torch.ones(3, 4))


@program()
def forward_mode(annotate):
    model = annotate(Model().eval())
    return jvp(model, (x_of().detach(),), (torch.ones(4, 4),)), jacrev(model)(torch.ones(1, 4))


@program()
def learning_to_learn(annotate):
    model = annotate(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = dict(model.named_parameters())
    for _ in range(2):
        loss = functional_call(model, weights, (x_of(),)).square().mean()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
    functional_call(model, weights, (x_of(),)).square().mean().backward()
    optimizer.step()


@program()
def backward_within_forward(annotate):
    class Corrected(nn.Module):
        def __init__(self):
            super().__init__()
            self.energy = nn.Linear(4, 1)

        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (force,) = torch.autograd.grad(self.energy(x).square().sum(), x, create_graph=True)
            return x - 0.1 * force

    train(annotate(nn.Sequential(nn.Linear(4, 4), Corrected(), nn.Linear(4, 4))))


@program()
def anomalies_looked_for(annotate):
    model = annotate(Model())
    with torch.autograd.detect_anomaly(check_nan=True):
        (model(x_of()) / 0).log().sum().backward()


@program()
def no_gradients(annotate):
    model = annotate(Model().eval())
    with torch.no_grad():
        one = model(x_of())
    with torch.inference_mode():
        other = model(x_of())
    with torch.set_grad_enabled(False):
        return one, other.clone(), model(x_of()), torch.is_inference(other)
