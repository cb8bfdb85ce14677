"""`nvtx-kernels record`: any Python program under the recorder, as it is."""

import os
import subprocess
import sys
import webbrowser
from importlib import metadata
from pathlib import Path

import pytest
import torch
from nvtx_kernels.profiling import record as command
from nvtx_kernels.profiling.record import main as record_command
from nvtx_kernels.profiling.record import parser, split

import nvtx_kernels as nk
import nvtx_kernels.__main__ as nvtx_kernels_command
from nvtx_kernels.__main__ import main
from tests.analysis.making.checks import said as answered
from tests.profiling.making import forked
from tests.profiling.making.recordings import REPOSITORY, range_names

PROGRAM = """
import sys, torch
def train(steps):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    train(int(sys.argv[2]))
    sys.exit(3)
"""


def record(folder, *words):
    (folder / "train.py").write_text(PROGRAM)
    return forked.run("-m", "nvtx_kernels", "record", *words, cwd=folder)


@pytest.mark.parametrize("program", [("train.py",), pytest.param(("-m", "train"), marks=pytest.mark.slow)])
def test_a_program_is_recorded_as_it_is(tmp_path, program):
    ran = record(tmp_path, *program, "--steps", "2")
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "report.sqlite, " in ran.stderr
    assert "1 step after 1 of warm-up (steps of SGD). Next: nvtx-kernels rank report.sqlite" in ran.stderr
    names = range_names(tmp_path / "report.sqlite")
    assert names.count("forward") == names.count("backward") == names.count("optimizer") == 2
    assert names.count("Sequential") == names.count("Sequential 0") == 4


def test_a_program_that_ends_by_an_error_before_its_first_step_is_told_that_alone(tmp_path, monkeypatch):
    folder = _with_program(tmp_path, "import torch\nimport no_such_module\n")
    run = forked.run("-m", "nvtx_kernels", "record", "train.py", cwd=folder)
    first, *traceback = run.stderr.splitlines()
    ended = "the program ended with ModuleNotFoundError before its first step"
    assert first.endswith(f" no work: {ended}. Next: record again once it trains")
    assert traceback[-1] == "ModuleNotFoundError: No module named 'no_such_module'"
    monkeypatch.chdir(tmp_path)
    status, _, errors = answered(nvtx_kernels_command, "report.sqlite")
    assert (status, errors) == (1, f"error: report.sqlite has no work: {ended}. Record again once it trains\n")


def test_work_without_a_step_before_an_error_is_no_missing_step_boundary(tmp_path, monkeypatch, capsys):
    with pytest.raises(ZeroDivisionError):
        recorded(tmp_path, monkeypatch, "import torch; torch.ones(3) + 1; 1 / 0")
    assert "The program ended with ZeroDivisionError before its first step." in capsys.readouterr().err


def _with_program(folder, text):
    (folder / "train.py").write_text(text)
    return folder


def recorded(folder, monkeypatch, program, *words, arguments=()):
    """Record a program in this process, in its folder, and return the status."""
    monkeypatch.chdir(folder)
    Path("train.py").write_text(program)
    try:
        return record_command([*words, "train.py", *arguments])
    except SystemExit as ending:
        return ending.code


@pytest.mark.parametrize(("words", "count"), [(("--no-modules",), 0), (("--modules",), 2), (("--depth", "0"), 0)])
def test_modules_have_ranges_unless_they_are_not_wanted(tmp_path, monkeypatch, words, count):
    words = ("-o", "r.sqlite", "--warmup", "0", *words)
    assert recorded(tmp_path, monkeypatch, PROGRAM, *words, arguments=("--steps", "1")) == 3
    assert range_names(tmp_path / "r.sqlite").count("Sequential 0") == count


CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = torch.nn.Linear(4, 4)
    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)
model = Net()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_what_backward_computes_again_is_no_model(tmp_path, monkeypatch):
    assert recorded(tmp_path, monkeypatch, CHECKPOINTED, "-o", "r.sqlite", "--warmup", "0") == 0
    names = range_names(tmp_path / "r.sqlite")
    assert (names.count("Net"), names.count("Linear")) == (6, 0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("no.py",), "no.py is not a file"),
        ((), "name a script"),
        (("-o", "/no/r.sqlite", "train.py"), "cannot write"),
        (("-o", "r.xlsx", "train.py"), "a recording is an SQLite file, not .xlsx"),
    ],
)
def test_what_cannot_be_recorded_is_said(tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    status, _, err = answered(command, *words)
    assert (status in (1, 2), sentence in err) == (True, True)


def test_options_of_ours_after_the_program_are_pointed_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import sys\nassert len(sys.argv) == 6  # it knows --steps")
    assert record_command(["train.py", "-o", "my file", "--steps", "3", "--flops"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("record: ")]
    right = "nvtx-kernels record -o 'my file' --flops train.py --steps 3"
    assert said == [f"record: -o 'my file' --flops is given to train.py. If it is for record, write: {right}"]


WORKS = "import torch\nfor _ in range(3):\n    torch.ones(3) + 1\n"


def test_the_page_is_opened_if_asked_for(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert recorded(tmp_path, monkeypatch, WORKS, "--open") == 0
    assert opened == [(tmp_path / "report.html").as_uri()]
    assert (tmp_path / "report.html").read_text().startswith("<!")


@pytest.mark.parametrize(("name", "written"), [("r.sqlite", "r.rank1.sqlite"), ("r_1.sqlite", "r_1.sqlite")])
def test_each_rank_writes_its_own_report(tmp_path, monkeypatch, name, written):
    monkeypatch.setenv("RANK", "1")
    assert recorded(tmp_path, monkeypatch, WORKS, "-o", name) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"train.py", written}
    with nk.profile(None, None, name) as p:
        torch.ones(3) + 1
    assert p.path.name == written


WAITS = """
import sys, time
from nvtx_kernels.profiling.recorder.trace_file import TraceFile
trace = TraceFile("report.sqlite")
print("recording", flush=True)
sys.stdin.read()
"""


def test_a_second_process_writes_another_report_and_says_so(tmp_path, monkeypatch, capsys):
    there = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    words, pipes = [sys.executable, "-c", WAITS], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, cwd=tmp_path, env=there, text=True, **pipes) as other:
        assert other.stdout.readline() == "recording\n"
        assert recorded(tmp_path, monkeypatch, WORKS) == 0
        other.communicate()
    written = f"report.pid{os.getpid()}.sqlite"
    assert (tmp_path / written).exists()
    assert not (tmp_path / "report.sqlite").exists()
    said = capsys.readouterr().err
    assert f"process {other.pid} records to report.sqlite: this one, to {written}" in said
    assert f"nvtx-kernels rank {written}" in said


SPAWNS = """
import torch

def work(rank):
    torch.ones(3) + rank

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=2)
    loader = torch.utils.data.DataLoader([1, 2, 3, 4], num_workers=1)
    list(loader)
"""


@pytest.mark.slow
def test_processes_that_the_program_starts_are_not_recorded_and_that_is_said(tmp_path):
    (tmp_path / "train.py").write_text(SPAWNS)
    ran = forked.run("-m", "profiling.record", "-o", tmp_path / "r.sqlite", tmp_path / "train.py")
    assert ran.returncode == 0
    assert "record: 2 processes that the program started were not recorded" in ran.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-o r.sqlite train.py -o x", (["-o", "r.sqlite"], ["train.py", "-o", "x"], False)),
        ("--no-modules -m pkg.train --modules", (["--no-modules"], ["pkg.train", "--modules"], True)),
        ("--output=r.sqlite train.py", (["--output=r.sqlite"], ["train.py"], False)),
    ],
)
def test_the_programs_words_are_its_own(words, expected):
    assert split(parser(), words.split()) == expected


def test_a_checkout_that_is_not_installed_has_the_command_too(monkeypatch, capsys):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "nvtx-kernels (a checkout that is not installed)\n")


def test_a_file_that_is_no_recording_stays_and_nothing_is_said_to_be_written(tmp_path):
    (tmp_path / "report.sqlite").write_text("somebody's")
    ran = record(tmp_path, "train.py", "", "2")
    last = f"cannot write {tmp_path / 'report.sqlite'}: that file is no recording, and stays. Name another one"
    assert ran.stderr.splitlines() == [f"record: {last}"]
    assert (ran.returncode, (tmp_path / "report.sqlite").read_text()) == (1, "somebody's")
