"""docs/first_minutes.md under test: its program, its commands after the installation, and what they answer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first_minutes.md").read_text()
BLOCKS = re.findall(r"```(python)?\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = BLOCKS[0][1].splitlines()
PROGRAM = next(text for language, text in BLOCKS if language == "python")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every `nvtx-kernels` command of the page, run in order in one folder that holds the program."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("first")
    (folder / "train.py").write_text(PROGRAM)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from nvtx_kernels.__main__ import main; sys.exit(main())"
    )
    words = [line.split()[1:] for line in COMMANDS if line.startswith("nvtx-kernels")]
    return {
        one[0]: subprocess.run([sys.executable, "-c", code, *one], cwd=folder, capture_output=True, text=True)
        for one in words
    }


def test_it_takes_five_commands_or_fewer():
    assert len(COMMANDS) <= 5


def test_every_command_succeeds(ran):
    assert {name: done.returncode for name, done in ran.items()} == {"record": 0, "ask": 0, "rank": 0}


def test_recording_says_what_the_page_says(ran):
    line = next(text for _, text in BLOCKS if text.startswith("report.sqlite")).strip()
    size = re.compile(r"[\d.]+ KiB")
    assert size.sub("", ran["record"].stderr.splitlines()[-1]) == size.sub("", line)


def test_the_question_is_answered(ran):
    answer = ran["ask"].stdout.partition("(b)")[2].partition("(c)")[0]
    assert "aten::" in answer
    assert "forward" in answer


def test_the_modules_are_ranked(ran):
    assert "ward > Sequential > Sequential " in ran["rank"].stdout  # which ones take longest, the machine decides
