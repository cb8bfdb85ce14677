"""Programs as people write them, on a CPU: their steps, and the layers' calls, which they count themselves."""

from collections import Counter

import pytest
import torch
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.steps import evaluation_ns, measured_steps
from nvtx_kernels.profiling.annotate import annotate_modules
from nvtx_kernels.profiling.recorder import record
from nvtx_kernels.profiling.training import Profile
from torch import nn
from torch.nn.functional import mse_loss

from nvtx_kernels import analysis

calls = Counter()


class Linear(nn.Linear):
    """A layer that counts its own calls."""

    def forward(self, x):
        calls["linear"] += 1
        return super().forward(x)


def net(out=4):
    return nn.Sequential(Linear(4, 4), nn.Tanh(), Linear(4, out))


class FixedPoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cell, x, *weights):
        z = torch.zeros_like(x)
        for _ in range(3):
            z = cell(z) + x
        ctx.save_for_backward(*weights)
        return z

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient, *(torch.ones_like(weight) for weight in ctx.saved_tensors)


def implicit():
    cell, x = net(), torch.ones(2, 4)
    optimizer, solve = torch.optim.SGD(cell.parameters(), lr=0.01), FixedPoint.apply

    def iteration(profile):
        solve(cell, x, *cell.parameters()).sum().backward()
        optimizer.step()

    return [cell], optimizer, iteration, 6


def with_a_teacher():
    student, teacher, x = net(), net().eval(), torch.ones(2, 4)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)

    def iteration(profile):
        with torch.no_grad():
            target = teacher(x)
        mse_loss(student(x), target).backward()
        optimizer.step()

    return [student, teacher], optimizer, iteration, 4


def forces():
    model, where, target = net(1), torch.ones(2, 4), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def iteration(profile):
        at = where.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(at).sum(), at, create_graph=True)
        mse_loss(-slope, target).backward()
        optimizer.step()

    return [model], optimizer, iteration, 2


def maml():
    model, x = net(), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def iteration(profile):
        weights = dict(model.named_parameters())
        inner = torch.func.functional_call(model, weights, (x,)).square().mean()
        slopes = torch.autograd.grad(inner, [*weights.values()], create_graph=True)
        moved = {name: weight - slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
        torch.func.functional_call(model, moved, (x,)).square().mean().backward()
        optimizer.step()

    return [model], optimizer, iteration, 4


def adversaries():
    g, d, x = net(), net(1), torch.ones(2, 4)
    of_d, of_g = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (d, g))

    def iteration(profile):
        (d(g(x).detach()) - d(x)).mean().backward()
        of_d.step()
        (-d(g(x))).mean().backward()
        of_g.step()

    return [g, d], [of_d, of_g], iteration, 10


def policy():
    actor, x = net(), torch.ones(2, 4)
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.01)

    def iteration(profile):
        with torch.no_grad():
            seen = actor(actor(x))
        for _ in range(2):
            (actor(x) * seen).mean().backward()
            optimizer.step()
        profile.step()

    return [actor], optimizer, iteration, 8


def updates_in_backward():
    model, x = net(), torch.ones(2, 4)
    optimizers = {weight: torch.optim.SGD([weight], lr=0.01) for weight in model.parameters()}
    for weight in optimizers:
        weight.register_post_accumulate_grad_hook(lambda weight: optimizers[weight].step())
    return [model], None, lambda _: model(x).sum().backward(), 2


PROGRAMS = [implicit, with_a_teacher, forces, maml, adversaries, policy, updates_in_backward]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_steps_and_phases_are_those_of_the_program(program, path):
    models, optimizers, iteration, linears = program()
    with Profile(models, optimizers, path) as profile:
        calls.clear()
        for _ in range(5):
            iteration(profile)
    assert calls["linear"] == 5 * linears
    report = analysis.rank(path, per_step=True).report
    assert report.steps == 4
    made = Counter()
    for row in report.kernels:
        made[row.kernel, row.phase] += row.count
    assert made["aten::addmm", "forward"] == linears
    assert not made["aten::addmm", "backward"]
    assert sum(row.kernels for row in report.phases if row.phase == "backward") > 0
    assert sum(row.kernels for row in report.phases if row.phase == "optimizer") > 0


def phases_of(path, name):
    """Return the phases of the kernels of this name in measured steps, with how often each was launched."""
    report = analysis.rank(path, per_step=True).report
    return {row.phase: row.count for row in report.kernels if row.kernel == name}


def ranges_of(path):
    """Return the paths of the ranges in measured steps."""
    return {" > ".join(row.path) for row in analysis.rank(path, per_step=True).report.ranges}


def test_updates_in_one_backward_are_one_where_models_are_annotated_alone(path):
    [model], _, iteration, _ = updates_in_backward()
    with annotate_modules(model), record(path):
        for _ in range(5):
            iteration(None)
    assert analysis.rank(path).report.steps == 4


class Tuned(nn.Module):
    """A layer that trains weights of its own inside its forward."""

    def __init__(self):
        super().__init__()
        self.fast, self.head = nn.Parameter(torch.ones(4)), Linear(4, 4)

    def forward(self, x):
        with torch.enable_grad():
            (x.detach() * self.fast).square().sum().backward()
        return torch.cos(self.head(x))


def test_a_backward_inside_a_models_call_is_backward_and_what_follows_is_forward(path):
    model, x = Tuned(), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
    with Profile(model, optimizer, path):
        for _ in range(3):
            torch.tan(model(x)).sum().backward()
            optimizer.step()
    assert phases_of(path, "aten::cos") == phases_of(path, "aten::tan") == {"forward": 1}
    assert "step > forward > Tuned > backward" in ranges_of(path)


class Penalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            at = ctx.saved_tensors[0].detach().requires_grad_()
            (slope,) = torch.autograd.grad(torch.cos(at).sum(), at, create_graph=True)
        return gradient * slope.detach()


def test_a_gradient_inside_a_backward_is_a_range_of_it(path):
    model, x = net(), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Profile(model, optimizer, path):
        for _ in range(3):
            Penalised.apply(model(x)).sum().backward()
            optimizer.step()
    assert phases_of(path, "aten::cos") == phases_of(path, "aten::sin") == {"backward": 1}
    assert "step > backward > gradient" in ranges_of(path)


@pytest.mark.parametrize(("is_of_a_loss", "phase"), [(False, "backward"), (True, "forward")])
def test_torch_func_grad_is_backward_unless_a_loss_is_made_of_it(is_of_a_loss, phase, path):
    model, x = net(1), torch.ones(2, 4)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    scale = torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD([scale], lr=0.01)

    def loss(weights, scale):
        return torch.cos(scale * torch.func.functional_call(model, weights, (x,))).mean()

    with Profile(model, optimizer, path) as profile:
        for _ in range(3):
            slopes = torch.func.grad(loss)(weights, scale if is_of_a_loss else scale.detach())
            if is_of_a_loss:
                sum(slope.sum() for slope in slopes.values()).backward()
                optimizer.step()
            else:
                profile.step()
    assert phase in phases_of(path, "aten::sin")
    assert "forward" in phases_of(path, "aten::cos")
    is_in_gradient = any("gradient" in row for row in ranges_of(path))
    assert is_in_gradient == is_of_a_loss


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(
    not hasattr(torch.fx.traceback, "annotate"), reason="older than 2.10: no ranges in compiled code"
)
def test_evaluation_of_a_compiled_model_is_in_no_step(path):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.ones(2, 4)
    optimizer, compiled = torch.optim.SGD(model.parameters(), lr=0.01), torch.compile(model)
    with Profile(model, optimizer, path):
        for number in range(5):
            compiled(x).sum().backward()
            optimizer.step()
            if number == 2:
                model.eval()
                with torch.no_grad():
                    compiled(x)
                    compiled(x)
                model.train()
    attribution = attribute(analysis.read(path))
    assert len(measured_steps(attribution)) == 4
    assert evaluation_ns(attribution) > 0
    assert any("of evaluation by Sequential (1 run) is in no step" in note for note in attribution.steps.notes)
