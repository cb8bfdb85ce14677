"""`nvtx-kernels benchmark --against 'after.py' before.py`: two programs in turn, undisturbed."""

import json
import math

import pytest
from nvtx_kernels.profiling import benchmark
from nvtx_kernels.profiling.cli import UsageError
from nvtx_kernels.profiling.program import status_of
from nvtx_kernels.profiling.training.against import compared_losses, loss_text, rule_of, step_of
from nvtx_kernels.profiling.training.step_ends import timed as timed_run

from tests.analysis.making.checks import said

PROGRAM = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1 if "--other" in sys.argv else 0.01)
for step in range(int(sys.argv[1])):
    time.sleep(float(sys.argv[2]))  # a loader between the steps
    loss = model(torch.ones(2, 4)).square().mean()
    if "--forward" not in sys.argv:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
if "--fail" in sys.argv:
    raise SystemExit("no data")
"""


def timed(words, warm_up, steps):
    """Time a run of a script in this process."""
    return timed_run(lambda: status_of(words), warm_up, steps)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize("words", [(), ("--forward",)])
def test_a_step_lasts_from_end_to_end_with_what_lies_between(program, words):
    found = timed([program, "100", "0.02", *words], 2, 4)
    assert (found["steps"], len(found["step_ns"]), found["status"]) == (6, 4, None)
    assert min(found["step_ns"]) >= 0.02e9
    assert found["losses"] == ([None] * 6 if words else pytest.approx(found["losses"]))


def test_losses_are_those_of_the_steps(program):
    a, b, other = (timed([program, "9", "0", *words], 1, 5)["losses"] for words in ((), (), ("--other",)))
    assert len(a) == 6
    assert loss_text(compared_losses([a], [b])) == "Losses: equal in 6 steps."
    assert compared_losses([a], [other])["differ_from"] == 2


def test_a_program_that_ends_early_has_the_steps_it_ran(program):
    found = timed([program, "4", "0"], 1, 20)
    assert (found["steps"], len(found["step_ns"]), found["status"]) == (4, 3, 0)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([[1.0, 2.0]], [[1.0, 2.0]], "Losses: equal in 2 steps."),
        ([[1.0, 2.0, 4.0]], [[1.0, 2.0, 4.004]], "Losses: differ from step 3 on, by up to 1e-03 of A's."),
        ([[1.0], [1.5]], [[2.0]], "step 1 on, by up to 1e+00 of A's. Those of A's own runs differ too, by 5e-01"),
        ([[math.nan]], [[math.nan]], "equal in 1 steps"),
        ([[1.0]], [[math.nan]], "differ from step 1 on"),
        ([[None]], [[1.0]], "Losses are not known"),
    ],
)
def test_losses_are_compared_step_by_step(a, b, text):
    assert text in loss_text(compared_losses(a, b))


@pytest.mark.parametrize(("steps", "step"), [([10, 11, 12], 11), ([10, 10, 10, 100], 10)])
def test_a_run_is_its_mean_step_unless_steps_differ_much(steps, step):
    assert step_of(steps) == step


@pytest.mark.parametrize("text", ["softmax > +5%", "step time > 5%", "total > +1ms"])
def test_a_rule_is_of_the_step_time(text):
    assert rule_of("step time > +5% beyond spread").exceeded(100, 6)
    with pytest.raises(UsageError, match=r"step time > \+5%"):
        rule_of(text)


WRONG = [
    (["--within", "2%", "{program}", "9", "0"], 2, "--within goes with --against"),
    (["--against", "{program}", "--sizes", "small", "{program}"], 2, "--sizes is not for --against"),
    (["--against", "{program}", "--within", "none", "{program}"], 2, "write --within 2%"),
    (["--against", "{program}"], 2, "write it and its arguments after all options"),
    (["--against", "{program}", "--fail-on", "loss > +1%", "{program}"], 2, "is about 'loss'"),
    (["--against", "{program} 9 0", "--warmup", "0", "{program}", "9", "0"], 2, "must be 1 or more"),
]


@pytest.mark.parametrize(("words", "status", "sentence"), WRONG)
def test_wrong_usage_is_one_sentence(program, words, status, sentence):
    ended, _, err = said(benchmark, *(word.format(program=program) for word in words))
    assert (ended, sentence in " ".join(err.split())) == (status, True)


@pytest.mark.slow
def test_a_program_twice_as_slow_violates_its_rule(program, tmp_path):
    words = ["--against", f"{program} 100 0.2 --other", "--budget", "1", "--warmup", "1", "--steps", "3"]
    out = tmp_path / "out.json"
    words += ["--fail-on", "step time > +50%", "-o", str(out), program, "100", "0.05"]
    status, _, err = said(benchmark, *words)
    found = json.loads(out.read_text())
    assert (status, "violated: step time > +50%" in err, found["rules"][0]["violated"]) == (3, True, True)
    assert (len(found["a"]["runs_ns"]), found["losses"]["differ_from"]) == (2, 2)
    assert found["change"] > 1


@pytest.mark.slow
def test_a_program_that_fails_is_told_with_its_last_words(program):
    status, _, err = said(benchmark, "--against", f"{program} 1 0 --fail", program, "1", "0", "--fail")
    assert (status, "ended with status 1" in err, "no data" in err) == (1, True, True)
