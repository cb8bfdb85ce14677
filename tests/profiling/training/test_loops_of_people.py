"""Loops as people write them, on a CPU: their steps and phases, by matrix products that they count themselves."""

import threading
from collections import Counter

import pytest
import torch
from nvtx_kernels.profiling.training import Profile
from torch import nn
from torch.cuda import nvtx
from torch.nn.functional import mse_loss

from nvtx_kernels import analysis

PRODUCTS = ("aten::addmm", "aten::mm")


def net(out=4):
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, out))


def sgd(*models):
    return torch.optim.SGD([weight for model in models for weight in model.parameters()], lr=0.01)


X = torch.ones(2, 4)


def preferences():
    policy, reference, optimizer, asked = net(), net().eval(), None, []
    optimizer = sgd(policy)

    def iteration(profile):
        with torch.no_grad():
            asked.append(reference(X))
        for _ in range(2):
            mse_loss(policy(X), asked[-1]).backward()
            optimizer.step()

    return [policy, reference], iteration, 9, {"forward": 9 * 2 + 4 * 2, "backward": 9 * 3}


def rollouts():
    policy, reference = net(), net().eval()
    optimizer = sgd(policy)

    def iteration(profile):
        policy.eval()
        with torch.no_grad():
            before = reference(policy(policy(X)))
        policy.train()
        for _ in range(2):
            mse_loss(policy(X), before).backward()
            optimizer.step()
        profile.step()

    return [policy, reference], iteration, 4, {"forward": 4 * 10, "backward": 4 * 6}


def scaled():
    model, scaler, count = net(), torch.amp.GradScaler("cpu"), Counter()
    optimizer = sgd(model)

    def iteration(profile):
        count["iterations"] += 1
        loss = model(X).square().mean() * (torch.inf if count["iterations"] == 3 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return [model], iteration, 4, {"forward": 4 * 2, "backward": 4 * 3}


def by_task():
    body, heads = net(), [net(1), net(1)]
    optimizer, shared = sgd(body, *heads), [*body.parameters()]

    def iteration(profile):
        hidden = body(X)
        slopes = [torch.autograd.grad(head(hidden).sum(), shared, retain_graph=True) for head in heads]
        for weight, one, other in zip(shared, *slopes, strict=True):
            weight.grad = torch.cos(one + other)
        optimizer.step()

    return [body, *heads], iteration, 4, {"forward": 4 * 6, "backward": 4 * 2 * 5}


def with_a_lost_end():
    model, count = net(), Counter()
    optimizer = sgd(model)

    def iteration(profile):
        count["iterations"] += 1
        nvtx.range_push("step")
        if count["iterations"] != 3:
            model(X).sum().backward()
            optimizer.step()
            nvtx.range_pop()

    return [model], iteration, 3, {"forward": 3 * 2, "backward": 3 * 3}


PROGRAMS = [preferences, rollouts, scaled, by_task, with_a_lost_end]


def products(report):
    """Return the matrix products of the measured steps by phase."""
    counts = Counter()
    for row in report.kernels:
        counts[row.phase] += row.count if row.kernel in PRODUCTS else 0
    return {phase: round(count * report.steps) for phase, count in counts.items() if count}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_steps_and_products_are_those_of_the_program(program, path):
    models, iteration, steps, expected = program()
    with Profile(models, None, path, warmup=1) as profile:
        for _ in range(5):
            iteration(profile)
    report = analysis.rank(path, per_step=True).report
    assert (report.steps, products(report)) == (steps, expected)
    assert profile.outcome.measured == steps


def test_arithmetic_on_gradients_of_weights_is_in_no_phase(path):
    models, iteration, *_ = by_task()
    with Profile(models, None, path, warmup=1) as profile:
        for _ in range(3):
            iteration(profile)
    report = analysis.rank(path, per_step=True).report
    assert {row.phase for row in report.kernels if row.kernel == "aten::cos"} == {"other"}


def test_phases_that_the_program_opens_around_ours_are_one_row(path):
    model = net()
    optimizer = sgd(model)
    with Profile(model, optimizer, path, warmup=1):
        for _ in range(3):
            with nvtx.range("forward"):
                loss = model(X).sum()
            with nvtx.range("backward pass"):
                loss.backward()
            with nvtx.range("optimizer"):
                optimizer.step()
    rows = {" > ".join(row.path): row.instances for row in analysis.rank(path).report.ranges}
    assert {name for name in rows if name.count(">") == 1} == {
        "step > forward",
        "step > backward pass",
        "step > optimizer",
    }
    assert rows["step > forward"] == rows["step > backward pass"] == 2
    assert "step > backward pass > Sequential" in rows


def test_a_phase_that_only_annotation_opens_stays_beside_one_of_the_program(path):
    model = net()
    optimizer = sgd(model)
    with Profile(model, optimizer, path, warmup=1):
        for _ in range(3):
            with nvtx.range("forward"):
                loss = model(X).sum()
            loss.backward()
            optimizer.step()
    rows = {" > ".join(row.path) for row in analysis.rank(path).report.ranges}
    assert {"step > forward > Sequential", "step > backward > Sequential", "step > optimizer"} <= rows
    assert not any("forward > forward" in row for row in rows)


def test_steps_and_warm_up_that_the_program_opens_are_printed_and_counted(path):
    model = net()
    optimizer = sgd(model)

    def step():
        model(X).sum().backward()
        optimizer.step()

    with Profile(model, optimizer, path, warmup=3) as profile:
        with nvtx.range("warmup"):
            for _ in range(5):
                step()
        for _ in range(10):
            with nvtx.range("step"):
                step()
    assert analysis.rank(path, per_step=True).report.steps == 10
    assert profile.outcome.steps == "10 steps after 5 of warm-up (ranges `step`)"


def test_a_trace_of_a_thread_that_trains_is_not_all_backward(tmp_path):
    model = net()

    def train():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(3):
                model(X).sum().backward()
        profiler.export_chrome_trace(str(tmp_path / "trace.json"))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    found = {row.phase for row in analysis.rank(tmp_path / "trace.json").report.kernels if row.kernel in PRODUCTS}
    assert found == {"forward", "backward"}


def test_an_optimizer_that_never_updated_is_named(path, capsys):
    model = net()
    with Profile(model, None, path, warmup=1):
        optimizer = torch.optim.Adam(model.parameters())
        model(X).sum().backward()
    del optimizer
    sentence = "No step boundary was found: Adam.step() was never called. The whole run counts as one step"
    assert sentence in capsys.readouterr().err
    assert any(sentence in note for note in analysis.rank(path).report.notes)
