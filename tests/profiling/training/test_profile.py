"""One line around a training loop: phases, steps, and the loops that people write."""

import shlex
import sqlite3

import pytest
import torch
from nvtx_kernels.profiling import annotate, recorder
from nvtx_kernels.profiling.tool import NSYS_SESSION
from nvtx_kernels.profiling.training import Profile
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

import nvtx_kernels as nk
from nvtx_kernels import analysis
from tests.profiling.making.hearing import Heard
from tests.profiling.making.recordings import range_names, said_of

PHASES = ("forward", "backward", "optimizer", "gradient")
STEP = ["forward", "backward", "optimizer"]
RUN = "_engine_run_backward"
EVENTS = """SELECT named_ranges.name, start_ns FROM named_ranges UNION ALL SELECT text, at_ns FROM marks
            ORDER BY start_ns"""


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def net_and_sgd():
    model = net()
    return model, torch.optim.SGD(model.parameters())


def loss_of(*models):
    x = torch.ones(2, 4)
    for model in models:
        x = model(x)
    return x.square().mean()


def phases(path):
    """The names of the phases' ranges in the order of their beginning, and where the measured steps begin."""
    names = [name for name, _ in sqlite3.connect(path).execute(EVENTS)]
    marked = ["measure" if '"event": "measure"' in name else name for name in names]
    return [name for name in marked if name in (*PHASES, "measure")]


def steps(path):
    """Count the measured steps, as the analysis decides."""
    return analysis.rank(path).report.steps


def plain(model, optimizer, steps=3):
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulating(model, optimizer):
    for _ in range(2):
        for _ in range(2):
            loss_of(model).backward()
        optimizer.step()


def scaled(model, optimizer):
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        with torch.autocast("cpu"):
            loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def evaluating(model, optimizer):
    for _ in range(2):
        plain(model, optimizer, steps=1)
        with torch.no_grad():
            loss_of(model.eval())
        model.train()


def penalized(model, optimizer):
    """A loss that holds gradients of its own."""
    for _ in range(2):
        x = torch.ones(2, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        optimizer.step()


def skipping(model, optimizer):
    """A batch that does not fit is part of the step."""
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 3))
    plain(model, optimizer, steps=1)


def naming(model, optimizer):
    """The program's own ranges come first."""
    with annotate.range("step"):
        with annotate.range("forward"):
            loss = loss_of(model)
        loss.backward()
        with annotate.range("optimizer"):
            optimizer.step()


ACCUMULATED = ["forward", "backward", "forward", "backward", "optimizer"]
# What a GradScaler does after an update, which ended the step.
RESCALED = ["optimizer"]
PENALIZED = ["forward", "gradient", "backward", "optimizer"]
LOOPS = {
    plain: [*STEP, "measure", *STEP, *STEP],
    accumulating: [*ACCUMULATED, "measure", *ACCUMULATED],
    scaled: [*STEP, "measure", *RESCALED, *STEP, *RESCALED],
    evaluating: [*STEP, "measure", "forward", *STEP, "forward"],
    penalized: [*PENALIZED, "measure", *PENALIZED],
    skipping: ["measure", *STEP],
    naming: ["measure", *STEP],
}


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_phases_of_a_loop(path, loop):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    warmup = int(LOOPS[loop][0] != "measure")
    with Profile(model, optimizer, path, warmup=warmup) as profile:
        loop(model, optimizer)
    assert phases(path) == LOOPS[loop]
    updates = 2 if loop is scaled else LOOPS[loop].count("optimizer")
    assert profile.outcome.measured == steps(path) == updates - warmup
    assert ("ranges `step`" if loop is naming else "steps of AdamW") in profile.outcome.steps


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_compiled_before", [False, True], ids=["inside", "before"])
@pytest.mark.parametrize("loop", [plain, accumulating], ids=lambda loop: loop.__name__)
def test_phases_of_a_compiled_model(path, loop, is_compiled_before):
    torch.compiler.reset()
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    if is_compiled_before:
        loss_of(compiled).backward()
        model.zero_grad()
    optimizer = torch.optim.AdamW(model.parameters())
    with Profile(model, optimizer, path, warmup=1):
        loop(compiled, optimizer)
    assert phases(path) == LOOPS[loop]


def test_closures_run_outside_the_optimizers_range(path):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    with Profile(model, optimizer, path, warmup=0):
        optimizer.step(closure)
    assert phases(path) == ["measure", "optimizer", "forward", "backward", "optimizer"]


@pytest.mark.parametrize("named", [True, False])
def test_two_models_of_one_class_have_two_names(path, named):
    g, d = net(), net()
    optimizer = torch.optim.SGD([*g.parameters(), *d.parameters()], 0.1)
    with nk.profile({"G": g, "D": d} if named else [g, d], optimizer, path, warmup=0):
        loss_of(g, d).backward()
        optimizer.step()
    names = ("G", "D") if named else ("Sequential", "Sequential#2")
    of_models = [name for name in range_names(path) if name in (*names, "Sequential 0")]
    in_order = [*names, *names[::-1]]  # of forward, and of backward
    assert of_models == [name for model in in_order for name in (model, "Sequential 0")]


def test_the_last_of_several_optimizers_ends_the_step(path):
    models = [net(), net()]
    optimizers = [torch.optim.SGD(model.parameters()) for model in models]
    with Profile(models, optimizers, path, warmup=1) as profile:
        for _ in range(2):
            for model, optimizer in zip(models, optimizers, strict=True):
                loss_of(model).backward()
                optimizer.step()
    assert phases(path).count("optimizer") == 4
    assert profile.outcome.measured == steps(path) == 1


def test_models_called_in_one_another_share_a_forward(path):
    generator, critic = net(), net()
    with Profile([generator, critic], None, path, warmup=0):
        loss_of(generator, critic).backward()
        torch.optim.SGD(generator.parameters()).step()
    assert phases(path) == ["measure", *STEP]


def test_an_exception_leaves_a_report_and_no_half_step(path):
    model, optimizer = net_and_sgd()
    profile = Profile(model, optimizer, path, warmup=1)

    def run():
        with profile:
            plain(model, optimizer, steps=2)
            loss_of(model).backward()
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        run()
    assert phases(path)[-2:] == ["forward", "backward"]
    assert (profile.outcome.measured, steps(path)) == (1, 1)
    assert (profile.outcome.measured, said_of(path)["interrupted_by"]) == (1, "ZeroDivisionError")


def test_without_a_model_steps_follow_each_other(path, capsys):
    model = net()
    with Profile(None, None, path, warmup=1) as profile:
        plain(model, torch.optim.SGD(model.parameters()))
    step = ["backward", "optimizer"]
    assert phases(path) == [*step, "measure", *step, *step]
    assert profile.outcome.measured == steps(path) == 2
    assert "No model was given: its phases are backward and optimizer" in capsys.readouterr().err


def test_next_command_can_be_copied_where_the_path_has_a_space(tmp_path):
    path = tmp_path / "my run.sqlite"
    model = net()
    with Profile(model, None, path, warmup=0) as profile:
        model(torch.ones(2, 4)).sum().backward()
        profile.step()
    assert shlex.split(profile.outcome.next) == ["nvtx-kernels", "rank", str(path)]


def test_steps_by_hand(path):
    model = net().eval()
    with Profile(model, None, path, warmup=1) as profile:
        for _ in range(3):
            with torch.no_grad():
                model(torch.ones(2, 4))
            profile.step()
    assert phases(path) == ["forward", "measure", "forward", "forward"]
    assert steps(path) == 2
    assert profile.outcome.steps == "2 steps after 1 of warm-up (calls of step())"


def test_measured_steps_are_as_many_as_asked_for_and_written_at_once(path):
    model, optimizer = net_and_sgd()
    with Profile(model, optimizer, path, warmup=2, steps=3) as profile:
        plain(model, optimizer, steps=6)
        assert path.exists()
    assert phases(path) == [*STEP * 2, "measure", *STEP * 3]
    assert profile.outcome.measured == steps(path) == 3


def test_a_block_without_an_optimizer_is_one_step(path):
    model = net()
    with Profile(model, None, path, warmup=0) as profile:
        loss_of(model).backward()
    assert phases(path) == ["measure", "forward", "backward"]
    assert steps(path) == 1
    assert profile.outcome.steps.startswith("1 step (the whole block")


@pytest.mark.parametrize("name", ["epoch 0", "batch loop", "forward-backward", "optimizer comparison", "main"])
def test_a_range_of_the_programs_own_around_its_loop_hides_no_step(path, name):
    model, optimizer = net_and_sgd()
    with Profile(model, optimizer, path), annotate.range(name):
        plain(model, optimizer, steps=4)
    assert (steps(path), range_names(path).count(name)) == (3, 1)
    assert ("step", name) in {row.path[:2] for row in analysis.rank(path).report.ranges}


def test_the_model_and_pytorch_are_as_they_were(path):
    model, optimizer = net_and_sgd()
    places = [(nn.Module, "__call__"), (torch.autograd.graph, RUN), (torch.autograd, RUN)]
    before = [getattr(*place) for place in places]
    for depth in (None, 0):
        with Profile(model, optimizer, path, depth=depth):
            plain(model, optimizer)
    assert [getattr(*place) for place in places] == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not _global_optimizer_pre_hooks


def test_modules_are_annotated_once_however_often(path):
    model, optimizer = net_and_sgd()
    with annotate.annotate_modules(model), Profile(model, optimizer, path, warmup=0):
        plain(model, optimizer, steps=1)
    assert range_names(path).count("Sequential 0") == 2  # forward and backward


@pytest.mark.parametrize("wrong", [{"model": "report.sqlite"}, {"optimizer": net()}, {"warmup": -1}, {"steps": 0}])
def test_what_cannot_be_profiled_is_refused(wrong):
    with pytest.raises((TypeError, ValueError), match="must be "):
        Profile(**wrong)


def test_an_optimizer_that_does_not_step_is_said(path, capsys):
    model, other = net(), net()
    with Profile(model, torch.optim.SGD(other.parameters()), path):
        plain(model, torch.optim.SGD(model.parameters()))
    assert "SGD.step() was never called" in capsys.readouterr().err
    assert steps(path) == 2


def test_a_report_that_cannot_be_written_is_said_at_once(tmp_path):
    with pytest.raises(recorder.TraceFileError, match="cannot write"), Profile(None, None, tmp_path / "no" / "r"):
        pass
    with Profile(None, None, tmp_path / "r.sqlite"):
        pass


def test_the_overview_is_shown_after_the_block(path, capsys):
    model, optimizer = net_and_sgd()
    with nk.profile(model, optimizer, path) as profile:
        plain(model, optimizer)
    said = capsys.readouterr()
    profile.show()
    assert said.err.splitlines()[-1].endswith(f"(steps of SGD). Next: nvtx-kernels rank {path}")
    assert "A step takes " in capsys.readouterr().out
    assert "<table>" in profile._repr_html_()


def test_where_only_warm_up_ran_it_is_shown(path, capsys):
    model, optimizer = net_and_sgd()
    with nk.profile(model, optimizer, path) as profile:
        plain(model, optimizer, steps=1)
    assert "--include-warmup" in capsys.readouterr().err
    profile.show()
    assert "forward" in capsys.readouterr().out


def test_under_nsys_it_annotates_and_leaves_the_recording_to_it(path, capsys, monkeypatch):
    monkeypatch.setenv(NSYS_SESSION, "1")
    model = net()
    heard = Heard()
    optimizer = torch.optim.SGD(model.parameters())
    with annotate.listen(heard), nk.profile(model, optimizer, path, warmup=1) as profile:
        plain(model, torch.optim.SGD(model.parameters()), steps=2)
    assert not path.exists()
    assert [one for one in heard.paths if "/" not in one] == ["warmup", "measure"]
    assert "measure/backward/Sequential/Sequential 0" in heard.paths
    assert heard.left_open() == []
    profile.show()
    assert "Next: nvtx-kernels rank REPORT.nsys-rep" in capsys.readouterr().out


def test_completion_offers_what_is_documented_and_nothing_else():
    offered = {
        nk.profile(net()): ["count_steps_of", "outcome", "page", "path", "rank", "ranking", "show", "step"],
        nk.integrations: ["hugging_face", "lightning"],
        nk.annotate: sorted(nk.annotate.__all__),
        nk: sorted(nk.__all__),
    }
    for what, names in offered.items():
        assert [name for name in dir(what) if not name.startswith("_")] == names
