"""Command lines: a parser that answers what it does not understand in one line, with what may have been meant."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from .files import discard_output
from .text import printable

#: Groups of options that several commands share, and the topic of `nvtx-kernels help` that explains each.
TOPICS = {
    "what counts as a range": "ranges",
    "how to show it": "output",
    "settings of the model": "settings",
    "lists of settings": "sweeps",
}
#: The widest help, in columns, of a terminal of any width.
WIDEST = 78
#: A line that begins with a word in a column of its own, as `exit      0 done`.
LABELLED = re.compile(r" *\S+(?: \S+)*? {2,}(?=\S)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help in which an option has one line where it can, and no line is wider than the terminal."""

    def __init__(self, prog: str, *args: Any, **keywords: Any) -> None:
        super().__init__(prog, *args, **keywords)
        self._width = min(self._width, WIDEST)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}".rstrip()

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        room = width + len(indent)
        return "\n".join(textwrap.indent(filled(entry, room - len(indent)), indent) for entry in entries(text))


class CommandParser(argparse.ArgumentParser):
    """A parser with a short help, which answers a wrong option in one line and exits with 2.

    Help names the options of a group in `TOPICS`, and `nvtx-kernels help TOPIC` explains them. With `explains` it
    is the parser of such a topic.
    """

    def __init__(self, *args: Any, explains: bool = False, **keywords: Any) -> None:
        keywords.setdefault("formatter_class", HelpFormatter)
        super().__init__(*args, **keywords)
        self.explains = explains

    def format_help(self) -> str:
        """Return the help: usage without options, description, arguments, groups of options, epilog."""
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        for title, actions in self._sections():
            topic = TOPICS.get(title)
            if topic is None or self.explains:
                formatter.start_section(title)
                formatter.add_arguments(actions)
            else:
                formatter.start_section(f"{title} (explained by: nvtx-kernels help {topic})")
                formatter.add_text(" ".join(name for action in actions for name in action.option_strings))
            formatter.end_section()
        formatter.add_text(self.epilog)
        return "\n".join(part for part in (self._short_usage(), formatter.format_help()) if part)

    def _sections(self) -> list[tuple[str, list[argparse.Action]]]:
        """Return the groups that have something to show: `--help` alone is listed with the arguments."""
        groups = [(group.title or "", _shown(group._group_actions)) for group in self._action_groups]
        (_, arguments), (title, options), *others = groups
        if arguments and len(options) == 1:
            arguments, options = [*arguments, *options], []
        first = [("arguments", arguments), (title, options)]
        return [(title, actions) for title, actions in (*first, *others) if actions]

    def _short_usage(self) -> str:
        """Return the usage, with the arguments and options that a command needs alone; empty for a topic."""
        if self.explains:
            return ""
        formatter = self.formatter_class(prog=self.prog if self.usage else f"{self.prog} [options]")
        choices = [group for group in self._mutually_exclusive_groups if group.required]
        one_of = [action for group in choices for action in group._group_actions]
        needed = [action for action in self._actions if action.required or action in one_of]
        arguments = [action for action in self._actions if not action.option_strings and action not in needed]
        formatter.add_usage(self.usage, [*needed, *arguments], choices)
        return formatter.format_help()

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


def _shown(actions: Iterable[argparse.Action]) -> list[argparse.Action]:
    return [action for action in actions if action.help != argparse.SUPPRESS]


def entries(text: str) -> list[list[str]]:
    """Divide a help text into paragraphs, labelled entries, command lines and empty lines, each of its lines."""
    divided: list[list[str]] = []
    for line in text.strip("\n").splitlines():
        if divided and _continues(divided[-1][0], line):
            divided[-1].append(line)
        else:
            divided.append([line])
    return divided


def _continues(first: str, line: str) -> bool:
    """Return whether a line belongs to the entry that begins with `first`."""
    if not first.strip() or not line.strip() or LABELLED.match(line):
        return False
    if LABELLED.match(first):
        return _indent(line) > _indent(first)
    are_prose = not first.startswith("nvtx-kernels ") and not line.startswith("nvtx-kernels ")
    return are_prose and _indent(first) == _indent(line) == 0


def filled(lines: Sequence[str], width: int) -> str:
    """Return an entry of `entries` in lines of this width; those of a labelled one begin below its text."""
    label = LABELLED.match(lines[0])
    below = _indent(lines[1]) if len(lines) > 1 else len(label[0]) if label else _indent(lines[0])
    first = label[0] if label else " " * _indent(lines[0])
    text = " ".join([lines[0][len(first) :], *map(str.strip, lines[1:])])
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=" " * below,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


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
