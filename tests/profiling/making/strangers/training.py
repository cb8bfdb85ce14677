"""Ways to train."""

import copy

import torch
from torch import nn
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

from .table import Model, descend, program, sgd, train, x_of


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
def checkpointed_in_stretches(annotate):
    model = annotate(Model())
    x = x_of()
    checkpoint_sequential(nn.Sequential(*model.layers), 2, x, use_reentrant=False).sum().backward()
    return x.grad


@program()
def offloaded_activations(annotate):
    model = annotate(Model())
    with torch.autograd.graph.save_on_cpu():
        loss = model(x_of()).square().sum()
    loss.backward()


@program()
def packed_activations(annotate):
    model = annotate(Model())
    halves = torch.autograd.graph.saved_tensors_hooks(lambda one: one.bfloat16(), lambda one: one.float())
    with halves:
        loss = model(x_of()).square().sum()
    loss.backward()


@program()
def accumulated_and_clipped(annotate):
    model = annotate(Model())
    optimizer, norms = sgd(model), []
    for index in range(4):
        (model(x_of()).square().mean() / 2).backward()
        if index % 2:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return norms


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
def adversaries(annotate):
    maker, critic = annotate(Model()), annotate(Model())
    mine, other = sgd(maker), sgd(critic)
    for _ in range(2):
        descend(other, lambda: critic(maker(x_of()).detach()).sum(), 1)
        descend(mine, lambda: critic(maker(x_of())).sum().neg(), 1)


@program()
def teacher_and_student(annotate):
    student = annotate(Model())
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    optimizer = sgd(student)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = teacher(x_of()).softmax(-1)
        nn.functional.kl_div(student(x_of()).log_softmax(-1), wanted, reduction="batchmean").backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
    return teacher.state_dict()


@program()
def average_of_weights(annotate):
    model = annotate(Model())
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    train(model)
    averaged.update_parameters(model)
    return averaged(x_of())


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
def schedule_and_parameter_groups(annotate):
    model = annotate(Model())
    groups = [{"params": model.layers.parameters()}, {"params": model.head.parameters(), "lr": 0.01}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.01], total_steps=4)
    for _ in range(3):
        train(model, optimizer, 1)
        schedule.step()
    return schedule.get_last_lr()


@program()
def frozen_backbone(annotate):
    model = annotate(Model())
    model.layers.requires_grad_(False)
    train(model, torch.optim.Adam(one for one in model.parameters() if one.requires_grad))


@program()
def data_from_a_loader(annotate):
    model = annotate(Model())
    optimizer, data = sgd(model), TensorDataset(torch.randn(10, 4), torch.randint(4, (10,)))
    losses = []
    for x, wanted in DataLoader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@program()
def data_from_other_processes(annotate):
    model, data = annotate(Model()), TensorDataset(torch.arange(24.0).reshape(6, 4))
    loader = DataLoader(data, batch_size=3, num_workers=1, multiprocessing_context="fork")
    return [model(x).sum().item() for (x,) in loader]


@program()
def resumed(annotate):
    first = Model()
    optimizer = torch.optim.Adam(first.parameters())
    train(first, optimizer)
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict()))
    second = annotate(Model())
    second.load_state_dict(saved[0])
    resumed = torch.optim.Adam(second.parameters())
    resumed.load_state_dict(saved[1])
    train(second, resumed)
    return resumed.state_dict()


@program()
def policy_gradient(annotate):
    policy = annotate(Model())
    optimizer, state, logs = sgd(policy), torch.ones(1, 4), []
    for _ in range(4):
        chances = torch.distributions.Categorical(logits=policy(state))
        action = chances.sample()
        logs.append(chances.log_prob(action))
        state = nn.functional.one_hot(action, 4).float()
    (-torch.cat(logs).sum()).backward()
    optimizer.step()
    return state
