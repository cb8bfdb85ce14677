"""Loops as people write them, on a CPU: their steps and phases, by matrix products that they count themselves."""

import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch
from nvtx_kernels.analysis.attribution.steps import in_steps, measured_steps
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.vocabulary import PHASES
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.recorder import record
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


def with_compiled_autograd():
    model = net()
    optimizer, backward = sgd(model), torch.compile(lambda loss: loss.backward(), backend="eager")

    def iteration(profile):
        loss = model(X).square().mean()
        with torch._dynamo.config.patch(compiled_autograd=True):
            backward(loss)
        optimizer.step()

    return [model], iteration, 4, {"forward": 4 * 2, "backward": 4 * 3}


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


# Dynamo looks at `grad` of the loss, of which PyTorch warns.
COMPILED = pytest.param(with_compiled_autograd, marks=pytest.mark.filterwarnings("ignore"))
PROGRAMS = [preferences, rollouts, scaled, by_task, COMPILED, with_a_lost_end]


def in_measured_steps(path):
    """Attribute a report, and return it with the work of its measured steps alone."""
    attribution = opened(path).attribution
    return in_steps(attribution, np.arange(len(measured_steps(attribution))))


def products(path):
    """Return the matrix products of the measured steps by phase."""
    attribution = in_measured_steps(path)
    names, work = attribution.trace.names, attribution.trace.work
    calls = zip(work.name_id, attribution.phase, strict=True)
    return Counter(PHASES[phase] for name, phase in calls if names[name] in PRODUCTS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_steps_and_products_are_those_of_the_program(program, path):
    models, iteration, steps, expected = program()
    with Profile(models, None, path, warmup=1) as profile:
        for _ in range(5):
            iteration(profile)
    report = analysis.rank(path, per_step=True).report
    assert (report.steps, products(path)) == (steps, expected)
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


class Decoder(nn.Module):
    """A small decoder with a cache of keys and values, which counts its calls."""

    def __init__(self):
        super().__init__()
        self.embedding, self.keys, self.head = nn.Embedding(50, 8), nn.Linear(8, 24), nn.Linear(8, 50)
        self.calls = 0

    def forward(self, tokens, cache):
        self.calls += 1
        query, *made = self.keys(self.embedding(tokens)).chunk(3, -1)
        cache[:] = [torch.cat(pair, 1) for pair in zip(cache, made, strict=True)] if cache else made
        return self.head(nn.functional.scaled_dot_product_attention(query, *cache))


def generate(model, tokens=5):
    """Sample this many tokens after a prompt."""
    given, cache = torch.zeros(2, 6, dtype=torch.long), []
    for _ in range(tokens):
        given = torch.multinomial(model(given, cache)[:, -1].softmax(-1), 1)


def places(path, operator, per_step=True):
    """Return how often an operator was called, in measured steps or at all, by the innermost range around it."""
    attribution = in_measured_steps(path) if per_step else opened(path).attribution
    names, work, forest = attribution.trace.names, attribution.trace.work, attribution.forest
    nodes = [attribution.node[row] for row in range(len(work)) if names[work.name_id[row]] == operator]
    ranges = [attribution.ranges.name_id[forest.range[node]] if node >= 0 else -1 for node in nodes]
    return Counter(names[name] if name >= 0 else "" for name in ranges)


@pytest.mark.parametrize("calls_step", [True, False])
@pytest.mark.parametrize("has_gradient", [True, False])
def test_sampling_is_between_the_models_calls(calls_step, has_gradient, path):
    model = Decoder().eval()
    with torch.set_grad_enabled(has_gradient), Profile(model, None, path, warmup=1) as profile:
        torch.ones(4).cos()  # set-up
        for _ in range(3):
            generate(model)
            if calls_step:
                profile.step()
    report = analysis.rank(path, per_step=True).report
    counted = 10 if calls_step else 15
    assert model.calls == 15
    assert report.steps == (2 if calls_step else 1)
    assert products(path) == {"forward": 2 * counted}
    assert places(path, "aten::multinomial")["between the model's calls"] == counted
    assert not places(path, "aten::cos")


def test_the_last_of_calls_that_are_steps_lasts_as_long_as_its_last_operator(path):
    model = net()
    with torch.no_grad(), Profile(model, None, path, warmup=1):
        for _ in range(6):
            model(X)
    found = opened(path)
    assert found.report.account.steps_by == "ranges"
    assert found.partition.table.end_ns[-1] >= found.attribution.trace.launches.end_ns.max()


class Slow(Decoder):
    """One that takes a millisecond for each position."""

    def forward(self, tokens, cache):
        time.sleep(1e-3 * tokens.shape[-1])
        return super().forward(tokens, cache)


class Static(Slow):
    """One whose cache has a fixed size, with the place of the tokens as an argument."""

    def forward(self, tokens, cache, place):
        cache.extend([] if cache else [torch.zeros(2, 16, 8), torch.zeros(2, 16, 8)])
        time.sleep(1e-3 * tokens.shape[-1])
        query, *made = self.keys(self.embedding(tokens)).chunk(3, -1)
        for kept, new in zip(cache, made, strict=True):
            kept[:, place] = new
        return self.head(nn.functional.scaled_dot_product_attention(query, *cache))


def generate_static(model, tokens=5):
    given, cache, place = torch.zeros(2, 6, dtype=torch.long), [], torch.arange(6)
    for _ in range(tokens):
        given = model(given, cache, place=place)[:, -1:].argmax(-1)
        place = place[-1:] + 1


def speculate(model, draft):
    """Have a draft model propose three tokens, and the model verify them, four times."""
    given, cache, drafts = torch.zeros(1, 12, dtype=torch.long), [], []
    for _ in range(4):
        proposed = given
        for _ in range(3):
            proposed = draft(proposed, drafts)[:, -1:].argmax(-1)
        model(given if not cache else given.expand(1, 4), cache)
        given = proposed


def without_cache(model):
    given = torch.zeros(2, 6, dtype=torch.long)
    for _ in range(5):
        given = torch.cat([given, model(given, [])[:, -1:].argmax(-1)], 1)


@pytest.mark.parametrize(
    ("kinds", "run", "calls", "tokens", "least_ms"),
    [
        ([Slow], generate, 4, 4, (6, 4)),
        ([Static], generate_static, 4, 4, (6, 4)),
        ([Slow, Decoder], speculate, 3, None, (12, 12)),
        ([Slow], without_cache, None, None, None),
    ],
)
def test_prefill_and_decode_divide_a_step_that_generates(kinds, run, calls, tokens, least_ms, path):
    models = [kind().eval() for kind in kinds]
    with torch.no_grad(), Profile(models, None, path, warmup=0) as profile:
        for _ in range(3):
            run(*models)
            profile.step()
    rows = analysis.rank(path, per_step=True).report.account.rows
    assert [(row.decode_calls, row.tokens) for row in rows] == [(calls, tokens)] * 3
    for row in rows if calls else ():
        assert row.prefill_ns + row.decode_ns == row.own_ns
        assert (row.prefill_ns >= least_ms[0] * 1e6, row.decode_ns >= least_ms[1] * 1e6) == (True, True)


def test_sampling_after_the_last_call_is_in_the_programs_own_step(path):
    model = Decoder().eval()
    with torch.no_grad(), record(path, warmup=0), annotate.annotate_modules(model):
        for number in range(3):
            with annotate.range(f"step {number}"):
                generate(model)
            torch.ones(4).cos()
    assert analysis.rank(path, per_step=True).report.steps == 3
    assert places(path, "aten::multinomial") == {"between the model's calls": model.calls}
    assert places(path, "aten::cos", per_step=False) == {"between the model's calls": 2, "": 1}


def test_what_comes_before_the_first_call_of_a_model_is_in_no_step(path, capsys):
    with torch.no_grad(), Profile(model := Decoder().eval(), None, path):
        torch.ones(4).cos()
        generate(model)
    assert places(path, "aten::cos", per_step=False)
    assert not places(path, "aten::cos")
    report = analysis.rank(path, per_step=True).report
    [calls] = [row.instances for row in report.ranges if row.path == ("step", "forward")]
    assert calls == model.calls == 5
    sentence = "All from the first call of a model on counts as one step"
    assert sentence in " ".join(report.notes)
    assert sentence in capsys.readouterr().err


def test_a_program_that_trains_has_nothing_between_its_models_calls(path):
    model = net()
    optimizer = sgd(model)
    with Profile(model, optimizer, path, warmup=1):
        for _ in range(3):
            with torch.no_grad():
                model(model(X).cos())
            model(X).sum().backward()
            optimizer.step()
    names = {name for row in analysis.rank(path).report.ranges for name in row.path}
    assert "between the model's calls" not in names
