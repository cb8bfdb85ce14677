"""The ranges `optimizer` and `step` that annotation opens by itself."""

from contextlib import suppress

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import optimizers
from torch import nn

from tests.profiling.making.hearing import Heard, heard_from, leaf


@pytest.fixture(autouse=True)
def _no_training_yet(monkeypatch):
    monkeypatch.setattr(optimizers, "_training", optimizers._Training())


def trained(program, model, optimizer=torch.optim.SGD):
    """Annotate a model, train it by a program, and return the paths of the automatic ranges and the model's."""
    with annotate.annotate_modules(model, depth=0):
        return heard_from(lambda: program(model, optimizer(model.parameters(), lr=0.1)))


def steps(model, optimizer, count=3):
    for _ in range(count):
        optimizer.zero_grad()
        model(leaf()).sum().backward()
        optimizer.step()


STEP = ["step", "step/Linear", "step/Linear", "step/optimizer"]
FIRST = ["Linear", "Linear", "optimizer"]


def test_steps_are_numbered():
    model, heard = nn.Linear(4, 4), Heard()
    with annotate.annotate_modules(model):
        steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
        with annotate.listen(heard):
            steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    assert [payload for payload in heard.payloads if payload is not None] == [1, 2]


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ("epoch", ["optimizer", "step"]),
        ("step", ["optimizer"]),
        ("train_step 3", ["optimizer"]),
        ("optimizer", []),
        ("forward", ["optimizer"]),
    ],
)
def test_ranges_of_the_program_come_first(name, opened):
    def program(model, optimizer):
        with annotate.range(name):
            steps(model, optimizer)

    heard = trained(program, nn.Linear(4, 4))
    names = {part for path in heard for part in path.removeprefix(name).split("/")}
    assert sorted(names - {"Linear", ""}) == opened


class Fails(torch.optim.SGD):
    def step(self, closure=None):
        raise ArithmeticError


def of_another_model(model, _):
    other = nn.Linear(4, 4)
    steps(other, torch.optim.SGD(other.parameters(), lr=0.1))


def after_one_that_raised(model, optimizer):
    for _ in range(2):
        with suppress(ArithmeticError):
            steps(model, Fails(model.parameters(), lr=0.1), 1)
        optimizer.step()


def second_is_skipped(model, optimizer):
    for index in range(3):
        model(leaf()).sum().backward()
        if index != 1:
            optimizer.step()


def by_two_optimizers(model, first):
    second = torch.optim.Adam(model.parameters())
    for optimizer in (first, second, first):
        steps(model, optimizer, 1)


PROGRAMS = {
    steps: FIRST + STEP * 2,
    of_another_model: [],
    after_one_that_raised: [*FIRST, "optimizer", *STEP, "step/optimizer"],
    second_is_skipped: [*FIRST, "step", *["step/Linear"] * 4, "step/optimizer"],
    by_two_optimizers: [*FIRST, "step", *["step/Linear", "step/Linear", "step/optimizer"] * 2],
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_steps_begin_with_a_forward_and_end_with_the_first_optimizer(program):
    assert trained(program, nn.Linear(4, 4)) == PROGRAMS[program]


def test_step_that_raises_ends_at_the_next_forward():
    def program(model, optimizer):
        for _ in range(2):
            with suppress(ArithmeticError):
                steps(model, optimizer, 1)

    model, heard = nn.Linear(4, 4), Heard()
    with annotate.listen(heard), annotate.annotate_modules(model):
        program(model, Fails(model.parameters(), lr=0.1))
        assert heard.left_open() == ["optimizer"]
    assert heard.paths == FIRST * 2


def test_forward_and_backward_inside_an_optimizer_are_outside_its_range():
    def program(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = model(leaf()).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    def program_with_its_range(model, optimizer):
        with annotate.range("optimizer"):
            program(model, optimizer)

    def lbfgs(parameters, lr):
        return torch.optim.LBFGS(parameters, lr, max_iter=2)

    heard = trained(program, nn.Linear(4, 4), lbfgs)
    assert set(heard) == {"optimizer", "Linear"}
    assert heard[:4] == ["optimizer", "Linear", "Linear", "optimizer"]
    assert set(trained(program_with_its_range, nn.Linear(4, 4), lbfgs)) == {"optimizer", "optimizer/Linear"}


class Outer(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        parameters = list(parameters)
        super().__init__(parameters, {"lr": lr})
        self.inner = torch.optim.SGD(parameters, lr=lr)

    def step(self, closure=None):
        return self.inner.step()


class Derived(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("optimizer", [Outer, Derived])
def test_step_inside_a_step_is_part_of_it(optimizer):
    torch.optim.SGD([leaf()])  # from its first instance on, PyTorch tells of a class's steps
    assert trained(steps, nn.Linear(4, 4), optimizer) == FIRST + STEP * 2


class Graph:
    """In the place of PyTorch's, which needs a GPU."""

    def capture_begin(self):
        pass

    capture_end = replay = capture_begin


def training_marks(heard):
    return [mark for mark in heard.marks if mark.startswith(optimizers.TRAINING_MARK)]


def test_replays_of_a_graph_in_which_an_optimizer_stepped_are_its_updates(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    methods, heard = dict(vars(Graph)), Heard()
    model, graph = nn.Linear(4, 4), Graph()
    with annotate.annotate_modules(model), annotate.listen(heard):
        graph.capture_begin()
        steps(model, torch.optim.SGD(model.parameters()), 1)
        graph.capture_end()
        assert training_marks(heard) == []
        graph.replay()
        graph.replay()
    update = optimizers.TRAINING_MARK + '{"event": "update", "optimizer": "SGD"}'
    assert training_marks(heard) == [update] * 2
    assert vars(Graph) == methods


def test_updates_after_a_capture_that_could_not_begin_are_told(monkeypatch):
    def refuse(_graph):
        raise RuntimeError

    monkeypatch.setattr(Graph, "capture_begin", refuse)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    model, heard = nn.Linear(4, 4), Heard()
    with annotate.annotate_modules(model), annotate.listen(heard):
        with pytest.raises(RuntimeError):
            Graph().capture_begin()
        steps(model, torch.optim.SGD(model.parameters()), 1)
    assert training_marks(heard)


def test_nothing_is_left_on_optimizers_when_nobody_listens():
    from torch.optim import optimizer

    before = len(optimizer._global_optimizer_pre_hooks)
    model = nn.Linear(4, 4)
    with annotate.annotate_modules(model):
        with annotate.listen(Heard()):
            assert len(optimizer._global_optimizer_pre_hooks) == before + 1
        assert len(optimizer._global_optimizer_pre_hooks) == before


class Tokens(nn.Module):
    """Takes whatever it is given; its part takes the same."""

    def __init__(self, inner=None):
        super().__init__()
        self.embedding, self.inner = nn.Embedding(8, 4), inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs) if self.inner is not None else self.embedding.weight.sum()


def positions(run):
    heard = Heard()
    with annotate.listen(heard):
        run()
    begin = 'nvtx-kernels call: {"positions": '
    return [int(mark.removeprefix(begin)[:-1]) for mark in heard.marks if mark.startswith(begin)]


IDS, FLOATS = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 5)


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((IDS,), {}, [7]),
        ((FLOATS, IDS.int()), {}, [7]),
        ((), {"mask": IDS.bool(), "input_ids": IDS[:, :1], "attention_mask": IDS}, [1]),
        ((IDS[0], FLOATS, "text", None), {}, []),
        ((IDS[:, :0], IDS), {}, []),
    ],
)
def test_a_call_without_training_marks_the_positions_of_its_tokens(args, kwargs, expected):
    model = Tokens(Tokens()).eval()
    with annotate.annotate_modules(model):
        assert positions(lambda: model(*args, **kwargs)) == expected
        assert positions(lambda: torch.compile(model, backend="eager")(*args, **kwargs)) == expected
        model.train()
        assert positions(lambda: model(*args, **kwargs)) == []
        with torch.no_grad():
            assert positions(lambda: model(*args, **kwargs)) == expected
    assert positions(lambda: model(*args, **kwargs)) == []
