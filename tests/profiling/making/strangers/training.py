"""Ways to train."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from .table import Model, program, sgd, train, x_of


@program()
def plain(annotate):
    train(annotate(Model()))


@program()
def checkpointed(annotate):
    train(annotate(Model(checkpointed=False)))


@program()
def checkpointed_with_reentrance(annotate):
    train(annotate(Model(checkpointed=True)))


@program()
def packed_activations(annotate):
    model = annotate(Model())
    halves = torch.autograd.graph.saved_tensors_hooks(lambda one: one.bfloat16(), lambda one: one.float())
    with halves:
        loss = model(x_of()).square().sum()
    loss.backward()


@program()
def mixed_precision(annotate):
    model = annotate(Model())
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    for index in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x_of()).square().sum() * (float("inf") if index == 1 else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


@program()
def scaler_that_is_off(annotate):
    model = annotate(Model())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", enabled=False)
    with torch.autocast("cpu", enabled=False):
        loss = model(x_of()).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@program()
def lbfgs(annotate):
    model = annotate(Model().eval())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = model(x_of()).square().sum()
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(2)]


@program()
def optimizer_in_backward(annotate):
    model = annotate(Model())
    optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        model(x_of()).square().sum().backward()


@program()
def data_from_other_processes(annotate):
    model, data = annotate(Model()), TensorDataset(torch.arange(24.0).reshape(6, 4))
    loader = DataLoader(data, batch_size=3, num_workers=1, multiprocessing_context="fork")
    return [model(x).sum().item() for (x,) in loader]
