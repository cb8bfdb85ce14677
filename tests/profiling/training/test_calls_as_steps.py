"""Programs that only infer, in a block of `nk.profile` in which nothing ended a step: a call is the unit."""

import pytest
import torch
from nvtx_kernels.analysis.views.verdict import verdict
from nvtx_kernels.profiling.training import Profile
from torch import nn

from nvtx_kernels import analysis

X = torch.randn(8, 16)


class Token(nn.Module):
    """A model that is called with the positions of a text."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, ids):
        return self.head(self.embedding(ids))


def net():
    """Return a model of two layers."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report.sqlite"


def recorded(path, run, model, **options):
    """Return the report of a block in which a model runs without gradient."""
    with torch.no_grad(), Profile(model, None, path, **options):
        run(model)
    return analysis.rank(path, per_step=True).report


def batches(model):
    """Call a model six times, each time with a batch."""
    torch.ones(4).cos()
    for _ in range(6):
        model(X).argmax(-1)


def test_alike_calls_of_a_model_are_its_steps(path):
    report = recorded(path, batches, net(), warmup=1)
    account = report.account
    assert (account.steps_by, account.per, len(account.rows)) == ("ranges", "Sequential", 5)
    assert verdict(report).startswith("A call takes ")
    assert "each call of `Sequential` counts as one (5 calls" in verdict(report)
    assert not any("counts as one step" in note for note in report.notes)


def test_the_first_calls_are_warm_up_by_the_rules_of_steps(path):
    assert len(recorded(path, batches, net()).account.rows) == 3


@pytest.mark.parametrize("calls", [1, 2])
def test_few_calls_are_one_step_from_the_first_on(path, calls):
    report = recorded(path, lambda model: [model(X) for _ in range(calls)], net(), warmup=0)
    assert (report.steps, report.account.steps_by) == (1, "named")
    assert "All from the first call of a model on counts as one step" in " ".join(report.notes)


def test_a_program_that_generates_keeps_its_block_and_is_told_by_token(path):
    def generate(model):
        model(torch.zeros(1, 8, dtype=torch.long))
        for _ in range(5):
            model(torch.zeros(1, 1, dtype=torch.long))

    account = recorded(path, generate, Token().eval(), warmup=0).account
    assert (len(account.rows), account.rows[0].tokens) == (1, 5)


def test_the_recorder_says_that_calls_may_be_steps(path, capsys):
    recorded(path, batches, net(), warmup=1)
    assert "counts as one step, or each call if they are similar; call step()" in capsys.readouterr().err
