"""Where does your training step spend its time? This shows it for every module: forward, backward and optimizer.

nvtx-kernels report.sqlite  where the time goes, what to change: start here
nvtx-kernels train.py       record a program that you can run, as it is
nvtx-kernels open report.sqlite  opens its page; nvtx-kernels fix: view fix
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import nvtx_kernels

from .analysis.support.arguments import CommandParser, HelpFormatter, did_you_mean
from .commands import COMMANDS, MACHINE, REMOVED, SHORT, listing
from .topics import TOPICS, explanation

PROG = "nvtx-kernels"
#: Endings of reports: a word with one is no misspelt command.
REPORTS = (".sqlite", ".nsys-rep", ".json", ".gz", ".parquet")


def parser() -> argparse.ArgumentParser:
    """Return the parser; the arguments after the command belong to the command."""
    parser = CommandParser(
        PROG,
        f"{PROG} [COMMAND] REPORT … | {PROG} COMMAND --help",
        __doc__,
        listing(),
        formatter_class=partial(HelpFormatter, max_help_position=28),
    )
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.add_argument(
        "--print-completion", action=_Completion, metavar="SHELL", help="print the completion of bash, zsh, …"
    )
    return parser


class _Version(argparse.Action):
    """Print the version, which takes long to find, and so only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        version = nvtx_kernels.__version__
        is_installed = version != "unknown"
        number = version if is_installed else "(a checkout that is not installed)"
        parser._print_message(f"{parser.prog} {number}\n", sys.stdout)
        parser.exit()


class _Completion(argparse.Action):
    """Print the completion of all commands, which shtab derives from their parsers."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _: object,
        shell: Any,
        option: str | None = None,
    ) -> None:
        import shtab

        if shell not in shtab.SUPPORTED_SHELLS:
            parser.error(f"{option} is for {', '.join(shtab.SUPPORTED_SHELLS)}, not for {shell!r}")
        every = argparse.ArgumentParser(PROG)
        commands = every.add_subparsers()
        for name, command in COMMANDS.items():
            make_parser = getattr(_module(command.module), "parser", None)
            parents = [make_parser(f"{PROG} {name}")] if make_parser else []
            commands.add_parser(name, help=command.what, parents=parents, add_help=not parents)
        parser._print_message(f"{shtab.complete(every, shell)}\n", sys.stdout)
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that is named first, rank the report or record the program that is; return its status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    name, words = options.command, options.words
    if name is None:
        parser().print_help()
        return 0
    if name == "help":
        return _explain(words)
    if name in SHORT:
        name, *before = SHORT[name]
        words = [*before, *words]
    elif name not in COMMANDS and name.endswith(".py"):
        name, words = "record", [name, *words]
    elif name not in COMMANDS and (name.endswith(REPORTS) or Path(name).exists()):
        name, words = "rank", [name, *words]
    if name in REMOVED:
        parser().exit(2, f"error: the command {name} was removed; use: {REMOVED[name]}\n")
    if name not in COMMANDS:
        parser().error(f"there is no command or report {name!r}{did_you_mean(name, COMMANDS)}")
    is_of_machine = name == "doctor" and not any(word in ("-h", "--help") or word[0] != "-" for word in words)
    module = _module(MACHINE if is_of_machine else COMMANDS[name].module)
    status: int = module.main(words, prog=f"{PROG} {name}")
    return status


def _explain(words: Sequence[str]) -> int:
    """Print the help of a topic, of a command or, without a word, of the program; return the status."""
    name = words[0] if words else "--help"
    if name in TOPICS:
        parser()._print_message(explanation(name), sys.stdout)
        return 0
    if name not in COMMANDS and words:
        parser().error(f"there is no topic or command {name!r}{did_you_mean(name, (*TOPICS, *COMMANDS))}")
    return main([*words, "--help"])


def _module(name: str) -> Any:
    return import_module(f"nvtx_kernels.{name}")


if __name__ == "__main__":
    sys.exit(main())
