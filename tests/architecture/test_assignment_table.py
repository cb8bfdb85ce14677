"""docs/questions.md under test: every command that the assignment's table names exists, with its options."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from nvtx_kernels.commands import COMMANDS

PAGE = Path(__file__).parents[2].joinpath("docs", "questions.md").read_text()
TABLE = PAGE.partition("| asked | command |")[2].partition("\n\n")[0]
LINES = re.findall(r"`nvtx-kernels ([^`]+)`", TABLE)


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_assignments_table_exists(line):
    name, *words = shlex.split(line)
    module = importlib.import_module(f"nvtx_kernels.{COMMANDS[name].module}")
    if words[:1] == ["--attention"]:
        module, words = importlib.import_module("nvtx_kernels.profiling.attention"), words[1:]
    parser = module.parser("nvtx-kernels")
    assert parser.parse_args(words)
