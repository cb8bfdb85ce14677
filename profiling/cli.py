"""The common part of the measuring commands: options that are lists, and how a command ends."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvtx_kernels.analysis.errors import UsageError as UsageError
from nvtx_kernels.analysis.presenters.output import add_output as add_output
from nvtx_kernels.analysis.support.arguments import CommandParser as CommandParser
from nvtx_kernels.analysis.support.arguments import Removed as Removed
from nvtx_kernels.analysis.support.files import discard_output

#: Packages that an installation without extras lacks, and the extra that brings each.
ADDED = {"torch": "profiling", "matplotlib": "plot"}
LAST_BYTES = 1 << 16


class CommandError(Exception):
    """The command failed; the text is a sentence for the user."""


def add_running(group: argparse._ActionsContainer, into: str) -> None:
    """Add the options of a sweep that appends its rows to a file."""
    add = group.add_argument
    add("--into", metavar="FILE", type=Path, default=Path(into), help="append rows to this file")
    add("--results", metavar="FILE", type=Path, nargs="+", help="measure nothing; show the rows of these files")
    add("--memory-fraction", type=share, metavar="F", help="share of the device's memory to use")
    add_limits(group)


def share(text: str) -> float:
    """Read a share of a whole; raises ArgumentTypeError for any other number."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share: use a number above 0 and up to 1")
    return value


def times(text: str) -> int:
    """Read how often to do something; raises ArgumentTypeError for less than once."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of times: use 1 or more")
    return value


def add_limits(group: argparse._ActionsContainer) -> None:
    """Add the options that limit what a sweep measures."""
    group.add_argument("--again", action="store_true", help="also measure what was measured before")
    group.add_argument("--budget", type=float, metavar="S", help="start no measurement after S seconds")


def add_longest(group: argparse._ActionsContainer) -> None:
    """Add the option that limits a configuration which runs in a process of its own."""
    group.add_argument("--longest", type=float, metavar="S", help="give up a configuration after S seconds")


def text_of(path: Path) -> str:
    """Return a file's text, or "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log, which may be long, that are not blank."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        lines = file.read(LAST_BYTES).decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-count:]


def list_of(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a function from an option's text to a list; `read` reads one word, or raises KeyError, ValueError."""

    def elements(text: str) -> list[Any]:
        try:
            return [read(word) for word in text.split(",")]
        except (KeyError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"{text} is not a valid list") from error

    return elements


def ended(parser: argparse.ArgumentParser, work: Callable[[], int], *, goes_on: bool = False) -> int:
    """Run a command, and return its exit status: 1 if it failed, 130 if it was interrupted.

    Wrong usage exits with 2, as argparse does. With `goes_on`, the same command continues what was interrupted.
    """
    name = parser.prog.rpartition(" ")[2]
    try:
        return work()
    except UsageError as error:
        parser.error(str(error))
    except CommandError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    except ModuleNotFoundError as error:
        if error.name in ADDED:
            sys.stderr.write(f"{name}: this needs {error.name}: pip install 'nvtx-kernels[{ADDED[error.name]}]'\n")
        elif error.name == "nvtx":
            sys.stderr.write(f"{name}: {error}\n")
        else:
            raise
        return 1
    except BrokenPipeError:  # `| head` has read enough
        discard_output()
        return 0
    except KeyboardInterrupt:
        advice = "; run the same command again to continue" if goes_on else ""
        sys.stderr.write(f"{name}: interrupted{advice}\n")
        return 130
