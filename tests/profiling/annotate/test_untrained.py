"""Which modules a run names that no optimizer trains: teachers, networks of a loss, what is below a new head."""

import copy

import pytest
import torch
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.profiling.annotate import annotate_modules
from nvtx_kernels.profiling.annotate.untrained import untrained
from nvtx_kernels.profiling.recorder import record
from torch import nn
from torch.nn.functional import mse_loss

from nvtx_kernels import profile
from tests.profiling.making import forked

SIZE, STEPS, WARMUP = 8, 2, 3


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.last = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return self.last(self.first(x).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        return self.head(self.backbone(x))


class Teacher(Net):
    pass


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Net()
        self.teacher = Teacher()

    def forward(self, x):
        return mse_loss(self.student(x), self.teacher(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(SIZE, SIZE, bias=False)
        self.decoder = nn.Linear(SIZE, SIZE, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, x):
        return self.decoder(self.embedding(x))


class Adapted(nn.Module):
    """A frozen layer with a LoRA adapter."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(SIZE, SIZE).requires_grad_(False)
        self.down = nn.Linear(SIZE, 2, bias=False)
        self.up = nn.Linear(2, SIZE, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Wrapper(torch.optim.Optimizer):
    """Wraps an optimizer as Accelerate does."""

    def __init__(self, inner):
        self.optimizer = inner
        self.param_groups = inner.param_groups

    def step(self, closure=None):
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


def batch():
    return torch.randn(4, SIZE)


def updating(weights, kind=torch.optim.SGD):
    return kind(weights, 0.1)


def distilling(teacher=None, *, optimizer=lambda student: updating(student.parameters())):
    teacher, student = teacher or Teacher(), Net()

    def loss():
        x = batch()
        return mse_loss(student(x), teacher(x))

    return [teacher, student], [optimizer(student)], loss


def alone(model, *trained):
    weights = [weight for module in trained for weight in module.parameters()]
    return [model], [updating(weights)], lambda: model(batch()).sum()


def perceptual():
    generator, features = Backbone(), Teacher()
    return [generator, features], [updating(generator.parameters())], lambda: features(generator(batch())).sum()


def adversarial(*, is_rare=False):
    generator, discriminator = Backbone(), Teacher()
    optimizers = [updating(generator.parameters()), updating(discriminator.parameters())]
    updates = optimizers[:1] if is_rare else optimizers
    return [generator, discriminator], updates, lambda: discriminator(generator(batch())).sum(), optimizers


def of_copies(student):
    return updating([nn.Parameter(weight.detach().double()) for weight in student.parameters()])


def of_some_copies(student):
    """Return an optimizer that has copies of all weights but the head's, as those of mixed precision do."""
    copies = [nn.Parameter(weight.detach().double()) for weight in student.backbone.parameters()]
    return updating([*copies, *student.head.parameters()])


def with_temperature(student):
    return updating([*student.parameters(), nn.Parameter(torch.ones(()))])


def both():
    model = Both()
    return [model], [updating(model.student.parameters())], lambda: model(batch())


def below_a_head():
    net = Net()
    return alone(net, net.head)


def in_part():
    """Train a part of a module: what is beside it is not trained, but for a frozen layer."""
    net = Net()
    net.backbone.first.requires_grad_(False)
    return alone(net, net.head)


def in_turn():
    net = nn.Sequential(*(nn.Linear(SIZE, SIZE) for _ in range(4)))
    return alone(net, net[3])


def adapted():
    model = Adapted()
    return [model], [updating([*model.down.parameters(), *model.up.parameters()])], lambda: model(batch()).sum()


def tied():
    model = Tied()
    return alone(model, model.embedding)


CASES = {
    "a teacher": (distilling, ["Teacher"]),
    "a teacher in one model with the student": (both, ["Both/teacher"]),
    "a network of the loss": (perceptual, ["Teacher"]),
    "below the only trained head": (below_a_head, ["Net/backbone"]),
    "beside a frozen layer": (in_part, ["Net/backbone/last"]),
    "layers of a list": (in_turn, [f"Sequential/Sequential {number}" for number in range(3)]),
    "a wrapped optimizer": (
        lambda: distilling(optimizer=lambda net: Wrapper(updating(net.parameters()))),
        ["Teacher"],
    ),
    "a trained number beside": (lambda: distilling(optimizer=with_temperature), ["Teacher"]),
    "a frozen teacher": (lambda: distilling(copy.deepcopy(Teacher()).requires_grad_(False)), None),
    "a discriminator": (adversarial, None),
    "a discriminator that updates later": (lambda: adversarial(is_rare=True), None),
    "an adapter": (adapted, None),
    "tied weights": (tied, None),
    "an optimizer of copies": (lambda: distilling(optimizer=of_copies), None),
    "an optimizer of some copies": (lambda: distilling(optimizer=of_some_copies), None),
}


def train(updates, loss, steps):
    for _ in range(steps):
        loss().backward()
        for optimizer in updates:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("case", CASES)
def test_a_run_names_what_nothing_trains(tmp_path, case):
    program, expected = CASES[case]
    models, updates, loss, *_alive = program()
    with profile(models, path=tmp_path / "report.sqlite", warmup=WARMUP, steps=STEPS):
        train(updates, loss, WARMUP + STEPS + 1)
    assert read(tmp_path / "report.sqlite").provenance.run.get("untrained") == expected


def test_a_plain_recording_of_annotated_models_has_it(tmp_path):
    models, updates, loss = distilling()
    with (
        annotate_modules(models[0]),
        annotate_modules(models[1]),
        annotate_modules(models[0], name="again"),
        record(tmp_path / "report.sqlite", warmup=1, steps=STEPS, quiet=True),
    ):
        train(updates, loss, STEPS + 2)
    assert read(tmp_path / "report.sqlite").provenance.run["untrained"] == ["Teacher", "again"]
    assert untrained() == {}  # they are annotated no longer


def test_without_an_update_nothing_is_named(tmp_path):
    models, _, loss = distilling()
    with profile(models, path=tmp_path / "report.sqlite", warmup=0, steps=STEPS) as run:
        for _ in range(STEPS + 1):
            loss().backward()
            run.step()
    assert "untrained" not in read(tmp_path / "report.sqlite").provenance.run


def test_modules_that_fail_fail_no_program(tmp_path, capsys):
    class Failing(Teacher):
        def named_parameters(self, *_args, **_options):
            raise ValueError("not now")

    models, updates, loss = distilling()
    failing = Failing()
    with annotate_modules(failing), profile(models, path=tmp_path / "report.sqlite", warmup=1, steps=STEPS):
        train(updates, loss, STEPS + 2)
    assert "ValueError: not now" in capsys.readouterr().err
    run = read(tmp_path / "report.sqlite").provenance.run
    assert run["optimizer"] == "SGD"
    assert "untrained" not in run


COMPILED = """
import sys
import torch
from torch import nn
from torch._dynamo.utils import counters
from nvtx_kernels import profile

teacher, student = nn.Linear(8, 8), nn.Linear(8, 8)
optimizer = torch.optim.SGD(student.parameters(), 0.1)

def loss(x):
    return (student(x) - teacher(x)).square().mean()

compiled = torch.compile(loss, backend="aot_eager")

def step():
    compiled(torch.randn(4, 8)).backward()
    optimizer.step()
    optimizer.zero_grad()

with profile([teacher, student], path=sys.argv[1], warmup=3, steps=2):
    for number in range(8):
        step()
        if number == 2:
            frames = dict(counters["frames"])
assert dict(counters["frames"]) == frames, counters["frames"]
"""


def test_compiled_code_is_compiled_once(tmp_path):
    report = tmp_path / "report.sqlite"
    forked.run("-c", COMPILED, report, check=True)
    assert read(report).provenance.run["untrained"] == ["Linear"]
