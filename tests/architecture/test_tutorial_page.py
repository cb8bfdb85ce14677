"""docs/tutorial.md under test: its program and its mended copy run, and its commands answer what the page says."""

import os
import re
from pathlib import Path

import pytest

from tests.profiling.making import forked

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"^```(python)?\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
PROGRAM, MENDED = (text for language, text in BLOCKS if language == "python")
#: Blocks of commands begin with one; blocks of what they print may contain some.
TYPED = [text for _, text in BLOCKS if text.startswith("nvtx-kernels ")]
COMMANDS = [line for text in TYPED for line in text.splitlines()]
#: The page's `try` may take minutes: here, one round of few steps, in place, as containers may refuse an overlay.
SHORTER = ["--steps", "4", "--rounds", "1", "--budget", "5", "--in-place"]

pytestmark = pytest.mark.slow


def mended(program):
    """Return the program with the method that the page writes in place of its own."""
    method = re.compile(r"    def __getitem__.*?(?=\n\n\n)", re.DOTALL)
    return method.sub(lambda _: MENDED.rstrip(), program)


def run(command, folder):
    """Run a command of the page in a folder, and return its status and all that it printed, on one line."""
    words = command.split()[1:]
    if words[0] == "try":
        words[1:1] = SHORTER
    here = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = forked.run("-m", "nvtx_kernels", *words, cwd=folder, env=here)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Status and words of every command of the page in order, in a folder with the page's two programs."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "train.py").write_text(PROGRAM)
    (folder / "after.py").write_text(mended(PROGRAM))
    return {command: run(command, folder) for command in COMMANDS}


def test_every_command_succeeds(said):
    assert {command: words for command, (status, words) in said.items() if status} == {}


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("nvtx-kernels before.sqlite", "while the program loads its next batch"),
        ("nvtx-kernels before.sqlite", "Make batches in DataLoader(num_workers=…)"),
        ("nvtx-kernels view idle before.sqlite", "(__getitem__)"),
        ("nvtx-kernels try ", "against"),
        ("nvtx-kernels compare ", "times as fast"),
        ("nvtx-kernels page ", "page.html"),
    ],
)
def test_an_answer_has_what_the_page_says_of_it(said, command, sentence):
    words = next(words for line, (_, words) in said.items() if line.startswith(command))
    assert sentence in words


def test_the_two_programs_differ_in_the_method_alone():
    before, after = PROGRAM.splitlines(), mended(PROGRAM).splitlines()
    assert [i for i, lines in enumerate(zip(before, after, strict=True), 1) if lines[0] != lines[1]] == [18, 19]


def test_the_line_that_the_page_names_is_in_the_method():
    assert "for pixel in row" in PROGRAM.splitlines()[17]
    assert "train.py:18" in PAGE
