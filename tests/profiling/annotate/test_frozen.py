"""Which modules a run names as frozen: teachers and encoders that nothing changes, but no averages of weights."""

import copy

import pytest
import torch
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.profiling.annotate import annotate_modules, model_facts
from nvtx_kernels.profiling.annotate.frozen import frozen, sample
from nvtx_kernels.profiling.recorder import record
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils._python_dispatch import TorchDispatchMode

from nvtx_kernels import profile
from tests.profiling.annotate.test_untrained import SIZE, STEPS, WARMUP, Both, Net, Teacher, batch, train, updating


def distilling(teacher):
    student = Net()

    def loss():
        x = batch()
        return mse_loss(student(x), teacher(x))

    return [teacher, student], updating(student.parameters()), loss


def still(model):
    return model.requires_grad_(False)


def in_one_model():
    model = Both()
    still(model.teacher)
    return [model], updating(model.student.parameters()), lambda: model(batch())


def below_a_head():
    net = Net()
    still(net.backbone)
    return [net], updating(net.head.parameters()), lambda: net(batch()).sum()


def averaging():
    """Distil from an average of the student's weights."""
    teacher = still(Teacher())
    models, optimizer, loss = distilling(teacher)
    student = models[-1]

    def averaged():
        with torch.no_grad():
            for average, weight in zip(teacher.parameters(), student.parameters(), strict=True):
                average.lerp_(weight, 0.1)
        return loss()

    return models, optimizer, averaged


def replacing():
    """Replace the parameters of a frozen teacher in each step by those of the student."""
    teacher = still(Teacher())
    models, optimizer, loss = distilling(teacher)

    def replaced():
        teacher.head.weight = nn.Parameter(models[-1].head.weight.detach().clone(), requires_grad=False)
        teacher.backbone.first.weight = nn.Parameter(torch.rand(SIZE, SIZE), requires_grad=False)
        return loss()

    return models, optimizer, replaced


class Words(nn.Module):
    """Embeds words, of which few are used, and computes on them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, SIZE, padding_idx=0)
        self.head = nn.Linear(SIZE, SIZE)

    def forward(self, words):
        return self.head(self.table(words))


def averaging_words():
    """Distil from an average of weights most of which never change, as the rows of words that no batch has."""
    teacher, student = still(Words()), Words()
    teacher.load_state_dict(student.state_dict())

    def loss():
        with torch.no_grad():
            for average, weight in zip(teacher.parameters(), student.parameters(), strict=True):
                average.copy_(weight)
        words = torch.tensor([[0, 1, 2]])
        return (student(words) - teacher(words) - 1).square().sum()

    return [teacher, student], updating(student.parameters()), loss


def in_turns():
    """Train a discriminator that is frozen between its updates."""
    generator, discriminator = Net(), still(Teacher())
    optimizer = updating([*generator.parameters(), *discriminator.parameters()])

    def loss():
        discriminator.requires_grad_(True)
        discriminator(batch()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        discriminator.requires_grad_(False)
        return discriminator(generator(batch())).sum()

    return [generator, discriminator], optimizer, loss


def unfrozen_later():
    """Train the head alone in the first steps, as fine-tuning in stages does."""
    net = Net()
    still(net.backbone)
    passes = iter(range(100))

    def loss():
        net.backbone.requires_grad_(next(passes) >= 2)
        return net(batch()).sum()

    return [net], updating(net.parameters()), loss


def without_parameters():
    net = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU())
    return [net], updating(net.parameters()), lambda: net(batch()).sum()


def partly_frozen():
    net = Net()
    still(net.backbone.first)
    return [net], updating([*net.backbone.last.parameters(), *net.head.parameters()]), lambda: net(batch()).sum()


class OddWeight(nn.Parameter):
    """A parameter of a class of its own, as those that are spread over processes or quantized."""


def of_odd_parameters():
    teacher = Teacher()
    for layer in (teacher.head, teacher.backbone.first, teacher.backbone.last):
        layer.weight = OddWeight(layer.weight.detach(), requires_grad=False)
        layer.bias = OddWeight(layer.bias.detach(), requires_grad=False)
    return distilling(teacher)


def of_few_numbers():
    """Freeze modules of one number, and of none."""
    net = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.PReLU())
    still(net[2])
    return [net], updating(net[:2].parameters()), lambda: net(batch()).sum()


class Parallel(nn.Module):
    """Calls a model as `module`, as DataParallel does."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


CASES = {
    "a teacher": (lambda: distilling(still(Teacher())), ["Teacher"]),
    "a teacher in one model with the student": (in_one_model, ["Both/teacher"]),
    "a wrapped teacher": (lambda: distilling(Parallel(still(Teacher()))), ["Parallel"]),
    "below the only trained head": (below_a_head, ["Net/backbone"]),
    "a layer": (partly_frozen, ["Net/backbone/first"]),
    "a module of one number": (of_few_numbers, ["Sequential/Sequential 2"]),
    "a teacher in half precision": (lambda: distilling(Cast(still(Teacher()).bfloat16())), ["Cast"]),
    "all is trained": (lambda: distilling(Teacher()), None),
    "an average of weights": (averaging, None),
    "an average of words": (averaging_words, None),
    "a discriminator that is frozen in turn": (in_turns, None),
    "weights that are replaced": (replacing, None),
    "a backbone that is trained later": (unfrozen_later, None),
    "modules without parameters": (without_parameters, None),
    "parameters of a class of their own": (of_odd_parameters, None),
}


class Cast(nn.Module):
    """Calls a model in bfloat16."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x.bfloat16()).float()


@pytest.mark.parametrize("case", CASES)
def test_a_run_names_what_is_frozen(tmp_path, case):
    program, expected = CASES[case]
    models, optimizer, loss = program()
    with profile(models, path=tmp_path / "report.sqlite", warmup=WARMUP, steps=STEPS):
        train([optimizer], loss, WARMUP + STEPS + 1)
    assert read(tmp_path / "report.sqlite").provenance.run.get("frozen") == expected


def test_a_plain_recording_of_annotated_models_has_it(tmp_path):
    models, optimizer, loss = distilling(still(Teacher()))
    with (
        annotate_modules(models[0]),
        annotate_modules(models[1]),
        record(tmp_path / "report.sqlite", warmup=1, steps=STEPS, quiet=True),
    ):
        train([optimizer], loss, STEPS + 2)
    assert read(tmp_path / "report.sqlite").provenance.run["frozen"] == ["Teacher"]
    assert frozen() == {}  # they are annotated no longer


def test_a_model_that_is_annotated_twice_is_named_until_both_are_removed():
    teacher = still(Teacher())
    with annotate_modules(teacher):
        with annotate_modules(teacher, name="again"):
            sample()
            assert frozen() == {"frozen": ["Teacher", "again"]}
        sample()
        assert frozen() == {"frozen": ["Teacher"]}
    sample()
    assert frozen() == {}


def test_a_model_that_is_gone_is_named_no_longer():
    teacher = still(Teacher())
    annotation = annotate_modules(teacher)
    sample()
    del teacher, annotation
    assert frozen() == {}


def test_samples_are_of_one_recording():
    teacher = still(Teacher())
    with annotate_modules(teacher):
        sample()
        assert frozen()
        assert frozen() == {}


def test_a_frozen_module_that_moves_or_changes_its_dtype_stays_frozen():
    teacher = still(Teacher())
    with annotate_modules(teacher):
        sample()
        teacher.double()
        assert frozen() == {"frozen": ["Teacher"]}


def test_weights_without_storage_fail_no_program(capsys):
    with torch.device("meta"):
        teacher = still(Teacher())
    with annotate_modules(teacher):
        sample()
        frozen()
    assert "Traceback" not in capsys.readouterr().err


def test_sampling_changes_no_weights():
    teacher = still(Teacher())
    before = copy.deepcopy(teacher.state_dict())
    with annotate_modules(teacher):
        sample()
        frozen()
    assert all(torch.equal(weight, before[name]) for name, weight in teacher.state_dict().items())
    assert not any(weight.requires_grad for weight in teacher.parameters())


class Seen(TorchDispatchMode):
    """Counts operators."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_a_mode_of_the_program_sees_no_sampling():
    teacher = still(Teacher())
    with annotate_modules(teacher), Seen() as seen:
        model_facts.begin()
        assert model_facts.model_facts() == {"frozen": ["Teacher"]}
    assert seen.count == 0
