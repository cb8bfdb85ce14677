"""What the measuring commands share: options that are lists, and how a command ends."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from model.config import SIZES_OF_YEAR, YEAR


class UsageError(Exception):
    """What was asked for cannot be done; the text is a sentence for the user."""


class CommandError(Exception):
    """What was asked for failed; the text is a sentence for the user."""


def add_preset(this: argparse.ArgumentParser, *names: str) -> None:
    """Add the option that says which year's handout names the sizes, under these names."""
    this.add_argument(
        *names,
        dest="model_preset",
        choices=SIZES_OF_YEAR,
        help=f"the year whose handout names the sizes (default {YEAR}); the xl of 2026 is 2.7B",
    )


def list_of(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return what turns an option's text into a list; `read` reads one word, and raises KeyError or ValueError."""

    def elements(text: str) -> list[Any]:
        try:
            return [read(word) for word in text.split(",")]
        except (KeyError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"{text} is no such list") from error

    return elements


def ended(this: argparse.ArgumentParser, work: Callable[[], int]) -> int:
    """Do a command's work, and return its exit status: 1 for what failed, 130 when interrupted.

    Wrong usage exits with 2, as argparse does.
    """
    name = this.prog.rpartition(" ")[2]
    try:
        return work()
    except UsageError as error:
        this.error(str(error))
    except CommandError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted; the same command again goes on\n")
        return 130
