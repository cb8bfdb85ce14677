"""docs/first_minutes.md under test: its program, its commands after the installation, and what they answer."""

import contextlib
import re
from pathlib import Path

import pytest

import nvtx_kernels.__main__
from tests.analysis.making import checks
from tests.profiling.making import forked

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first_minutes.md").read_text()
BLOCKS = re.findall(r"```(python)?\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = BLOCKS[0][1].splitlines()
PROGRAM = next(text for language, text in BLOCKS if language == "python")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Status, output and complaints of every `nvtx-kernels` command of the page, in order, beside the program.

    `record` has a process of its own, as it becomes the program.
    """
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("first")
    (folder / "train.py").write_text(PROGRAM)
    record, *others = [line.split()[1:] for line in COMMANDS if line.startswith("nvtx-kernels")]
    done = forked.run("-m", "nvtx_kernels", *record, cwd=folder)
    with contextlib.chdir(folder):
        said = {words[0]: checks.said(nvtx_kernels.__main__, *words) for words in others}
    return {record[0]: (done.returncode, done.stdout, done.stderr), **said}


def test_it_takes_four_commands_or_fewer():
    assert len(COMMANDS) <= 4


def test_every_command_succeeds(ran):
    assert {name: status for name, (status, *_) in ran.items()} == {"record": 0, "report.sqlite": 0}


def test_recording_says_what_the_page_says(ran):
    line = next(text for _, text in BLOCKS if text.startswith("report.sqlite")).strip()
    size = re.compile(r"[\d.]+ KiB")
    assert size.sub("", ran["record"][2].splitlines()[-1]) == size.sub("", line)


def test_the_question_is_answered(ran):
    answer = " ".join(ran["report.sqlite"][1].split())
    assert "A step takes" in answer
    assert "of operators" in answer or "in operators" in answer


def test_the_modules_are_ranked(ran):
    # Which ones take longest, the machine decides.
    assert re.search(r"^Sequential\.\d (Linear|GELU) ", ran["report.sqlite"][1], re.MULTILINE)
