"""Print how a coding agent uses nvtx-kernels: when to ask what, and how to read the answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.resources import files

from ..cli import run
from ..presenters.output import print_text
from ..support.arguments import CommandParser


def parser(prog: str = "python -m analysis.agent.skill") -> argparse.ArgumentParser:
    """Return the parser of the command line, which has no options."""
    return CommandParser(prog=prog, description=__doc__)


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.agent.skill") -> int:
    """Run the command; return its exit status."""
    parser(prog).parse_args(arguments)
    return run(lambda: print_text(page()))


def page() -> str:
    """Return the page, which is docs/agents.md, too."""
    return files(__package__).joinpath("agents.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
