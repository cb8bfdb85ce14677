"""`nvtx-kernels record`: any Python program under the recorder, as it is."""

import subprocess
import sys
from importlib import metadata

import pytest
from nvtx_kernels.profiling.record import parser, split

from nvtx_kernels.__main__ import main
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
    run = "from nvtx_kernels.__main__ import main; sys.exit(main())"
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); {run}"
    command = [sys.executable, "-c", code, "record", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("program", [("train.py",), pytest.param(("-m", "train"), marks=pytest.mark.slow)])
def test_a_program_is_recorded_as_it_is(tmp_path, program):
    ran = record(tmp_path, *program, "--steps", "2")
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "report.sqlite, " in ran.stderr
    assert "1 step after 1 of warm-up (steps of SGD). Next: nvtx-kernels rank report.sqlite" in ran.stderr
    names = range_names(tmp_path / "report.sqlite")
    assert (
        names.count("step") == names.count("forward") == names.count("backward") == names.count("optimizer") == 2
    )
    assert (names.count("Sequential"), names.count("Sequential 0")) == (4, 0)


@pytest.mark.slow
def test_modules_are_annotated_if_asked_for(tmp_path):
    record(tmp_path, "-o", "r.sqlite", "--modules", "--warmup", "0", "train.py", "--steps", "1")
    assert range_names(tmp_path / "r.sqlite").count("Sequential 0") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("no.py",), "no.py is not a file"),
        ((), "name a script"),
        (("-o", "/no/r.sqlite", "train.py"), "cannot write"),
    ],
)
def test_what_cannot_be_recorded_is_said(tmp_path, words, said):
    ran = record(tmp_path, *words)
    assert ran.returncode in (1, 2)
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-o r.sqlite train.py -o x", (["-o", "r.sqlite"], ["train.py", "-o", "x"], False)),
        ("--modules -m pkg.train --modules", (["--modules"], ["pkg.train", "--modules"], True)),
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
