"""Options that are lists of words between commas, and what is wrong with options."""

import argparse
from collections.abc import Callable
from typing import Any


class UsageError(Exception):
    """What was asked for cannot be done; the text is a sentence for the user."""


def list_of(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return what turns an option's text into a list; `read` reads one word, and raises KeyError or ValueError."""

    def elements(text: str) -> list[Any]:
        try:
            return [read(word) for word in text.split(",")]
        except (KeyError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"{text} is no such list") from error

    return elements
