"""`nvtx-kernels benchmark train.py`: the phases of a program that is not ours, timed as it is."""

import json

import pytest
from nvtx_kernels.profiling import benchmark
from nvtx_kernels.profiling.annotate import range_stack
from nvtx_kernels.profiling.benchmark import main
from nvtx_kernels.profiling.study.program_times import BY_FORWARD, timed

from tests.analysis.making.checks import said

PROGRAM = """
import pathlib
import sys
import torch
import torch.cuda.nvtx as nvtx
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters())
for step in range(int(sys.argv[1])):
    with nvtx.range("computing"):
        for _ in range(2):  # two accumulated batches
            loss = model(torch.ones(2, 4)).sum()
            if "--forward" not in sys.argv:
                loss.backward()
    if "--update" in sys.argv:
        optimizer.step()
pathlib.Path(sys.argv[2]).write_text(f"{step + 1} steps")
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def shown(capsys, *words):
    """Time a program, and return the command's status, its tables' rows and what it says besides."""
    status = main([*map(str, words)])
    out, err = capsys.readouterr()
    document = json.loads(out) if out.startswith("{") else {"tables": [{"rows": []}]}
    return status, document["tables"][0]["rows"], out + err


def test_each_phase_of_the_steps_after_warm_up_is_timed(program, tmp_path, capsys):
    words = ("--warmup", "0,2", "--steps", 3, "--format", "json", program, 6, tmp_path / "done", "--update")
    status, rows, said = shown(capsys, *words)
    found = {(row["phase"], row["warmup"]): row["n"] for row in rows}
    phases = ("forward", "backward", "optimizer", "step")
    assert (status, found) == (0, {(phase, warm_up): 3 for phase in phases for warm_up in (0, 2)})
    assert range_stack.stack() == []
    assert "ran 5 steps, and was then stopped; what ends a step: steps of SGD" in said
    assert not (tmp_path / "done").exists()


def test_a_step_is_all_of_its_passes_and_longer_than_its_phases(program, tmp_path, monkeypatch):
    found = run(monkeypatch, program, 2, tmp_path / "done", "--update")
    assert (len(found.steps), found.status) == (2, 0)
    assert all(step["step"] >= step["forward"] + step["backward"] + step["optimizer"] for step in found.steps)
    assert (tmp_path / "done").read_text() == "2 steps"


@pytest.mark.parametrize(("words", "phases"), [((), ["forward", "backward"]), (("--forward",), ["forward"])])
def test_without_updates_each_forward_begins_a_step(program, tmp_path, monkeypatch, words, phases):
    found = run(monkeypatch, program, 2, tmp_path / "done", *words)
    assert (found.by, len(found.steps)) == (BY_FORWARD, 4)
    assert all([*step] == [*phases, "step"] for step in found.steps)


def run(monkeypatch, program, *words):
    from nvtx_kernels.profiling.program import status_of

    arguments = [str(word) for word in (program, *words)]
    return timed(lambda: status_of(arguments), 100)


WRONG = [
    (["--sizes", "small", "{program}"], 2, "--sizes is of the course's model"),
    (["--steps", "1,2", "{program}"], 2, "--steps is one number with a program"),
    (["--columns", "chairs", "{program}"], 2, "columns must be of times, first, rates, memory, not chairs"),
    (["nothere.py"], 2, "nothere.py is not a file"),
    (["{program}", "3", "{done}", "--update"], 1, "ran 3 steps, and --warmup 5 leaves none of them"),
    (["--steps", "0", "{program}"], 1, "--steps ≥ 1"),
]


@pytest.mark.parametrize(("words", "status", "sentence"), WRONG)
def test_what_cannot_be_timed_is_one_sentence(program, tmp_path, words, status, sentence):
    ended, _, err = said(benchmark, *(word.format(program=program, done=tmp_path / "done") for word in words))
    assert (ended, sentence in " ".join(err.split())) == (status, True)


def test_an_error_of_the_program_is_its_own(program, capsys):
    assert main([str(program)]) == 1
    error = capsys.readouterr().err
    assert "IndexError" in error
    assert "program_times.py" not in error
