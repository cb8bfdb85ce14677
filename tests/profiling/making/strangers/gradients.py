"""Programs that use autograd in their own way."""

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vmap

from .table import Model, program, train, x_of


@program()
def retained_graph(annotate):
    loss = annotate(Model())(x_of()).sum()
    for _ in range(3):
        loss.backward(retain_graph=True)


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


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient * 2 + ctx.saved_tensors[0] * 0


@program()
def custom_function(annotate):
    model = annotate(Model())
    model.head.register_forward_hook(lambda module, args, output: Doubled.apply(output))
    train(model)


@program()
def function_differentiated_too_often(annotate):
    model, x = annotate(nn.Linear(4, 4)), x_of()
    (gradient,) = torch.autograd.grad(Doubled.apply(model(x).square()).sum(), x, create_graph=True)
    gradient.sum().backward()


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
def straight_through(annotate):
    class Rounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.code = nn.Embedding(3, 4)

        def forward(self, x):
            nearest = torch.cdist(x, self.code.weight).argmin(-1)
            return x + (self.code(nearest) - x).detach()

    train(annotate(nn.Sequential(nn.Linear(4, 4), Rounded(), nn.Linear(4, 2))))


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
def written_into_where_it_is_needed(annotate):
    model = annotate(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()))
    output = model(x_of())
    output.add_(1)
    output.sum().backward()


@program()
def gradients_per_sample(annotate):
    model = annotate(Model().eval())
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    loss = lambda weights, x: functional_call(model, weights, (x,)).sum()  # noqa: E731
    return vmap(grad(loss), in_dims=(None, 0))(weights, torch.ones(3, 4))


@program()
def ensemble(annotate):
    models = [annotate(nn.Linear(4, 2)) for _ in range(3)]
    weights, buffers = stack_module_state(models)
    call = lambda weights, buffers: functional_call(models[0], (weights, buffers), (torch.ones(2, 4),))  # noqa: E731
    return vmap(call)(weights, buffers)


@program()
def forward_mode(annotate):
    model = annotate(Model().eval())
    return jvp(model, (x_of().detach(),), (torch.ones(4, 4),)), jacrev(model)(torch.ones(1, 4))


@program()
def dual_numbers(annotate):
    model = annotate(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x_of().detach(), torch.ones(4, 4))
        return tuple(torch.autograd.forward_ad.unpack_dual(model(dual)))


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
def checked_gradients(annotate):
    model = annotate(nn.Sequential(nn.Linear(2, 2), nn.Tanh()).double())
    return torch.autograd.gradcheck(model, torch.ones(1, 2, dtype=torch.double, requires_grad=True))


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
def truncated_through_time(annotate):
    cell, state = annotate(nn.GRUCell(4, 4)), torch.zeros(4, 4)
    for _ in range(3):
        state = cell(x_of(), cell(x_of(), state))
        state.sum().backward()
        state = state.detach()
    return state


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
