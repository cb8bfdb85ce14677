"""Command lines: a parser that answers what it does not understand in one line, with what may have been meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from .files import discard_output
from .text import printable


class CommandParser(argparse.ArgumentParser):
    """A parser that prints one line for a wrong option, not its whole usage; the exit status is 2."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the options; an unknown one ends the command."""
        words = list(sys.argv[1:] if args is None else args)
        # Found first, for else argparse would only say what is missing where a required option is misspelt.
        if not any(action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in self._actions):
            for word in words[: words.index("--") if "--" in words else len(words)]:
                option = word.partition("=")[0]
                if option[:2] == "--" and not any(name.startswith(option) for name in self._option_string_actions):
                    self._refuse(option)
        options, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self._refuse(next((word for word in unknown if word.startswith("-")), unknown[0]))
        return options

    def _refuse(self, option: str) -> NoReturn:
        names = [
            name for action in self._actions if action.help != argparse.SUPPRESS for name in action.option_strings
        ]
        self.error(f"there is no {option}{did_you_mean(option, names)}")

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where the options are listed, and exit with 2."""
        self.exit(2, f"error: {printable(message.rstrip('.'))}; {self.prog} --help lists what there is.\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message; say so and exit with 2 where standard output is full, which argparse ignores."""
        if file is not sys.stdout:
            super()._print_message(message, file)
            return
        try:
            file.write(message)
            file.flush()
        except BrokenPipeError:  # `| head` has read enough
            discard_output()
        except OSError as error:
            discard_output()
            self.exit(2, f"error: The answer cannot be written to standard output: {error.strerror}.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            listed = f"; choose from {', '.join(choices)}"
            meant = listed if str(value).isdigit() else did_you_mean(str(value), choices) or listed
            raise argparse.ArgumentError(action, f"there is no {value!r}{meant}")


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return ` (did you mean …?)` with the word that is most like this one; empty if none is."""
    nearest = get_close_matches(word, list(words), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


class Removed(argparse.Action):
    """An option of earlier versions: it is in no help, and ends the command with what to use instead."""

    def __init__(self, option_strings: Sequence[str], dest: str, use: str, nargs: str | int = "?") -> None:
        super().__init__(option_strings, dest, nargs, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self.use = use

    def __call__(self, parser: argparse.ArgumentParser, _: Any, value: Any, option: str | None = None) -> None:
        """Print the replacement, in which `{}` stands for the option's value, and exit with 2."""
        parser.exit(2, f"error: {option} was removed; use: {self.use.format(printable(value or '…'))}\n")
