"""Which GPU kernels did each annotated part of a PyTorch model spend its time in: one command for everything.

nvtx-kernels rank report.sqlite
nvtx-kernels view balance report.sqlite
nvtx-kernels run --record report.sqlite
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .commands import COMMANDS, listing

PROG = "nvtx-kernels"
VIEW = "view"


def parser() -> argparse.ArgumentParser:
    """Return the parser; the arguments after the command belong to the command."""
    this = argparse.ArgumentParser(
        PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"commands (each has --help):\n{listing()}\n  {VIEW:<14} one view: {PROG} view NAME REPORT",
    )  # fmt: skip
    this.add_argument("command", metavar="COMMAND", choices=(*COMMANDS, VIEW), help="what to do, see below")
    this.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="arguments of the command")
    this.add_argument("--version", action=_Version, nargs=0, help="print the version")
    this.add_argument(
        "--print-completion", action=_Completion, metavar="SHELL", help="print a completion script for a shell"
    )
    return this


class _Version(argparse.Action):
    """Print the version, which takes long to find, and so only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib import metadata

        try:
            version = metadata.version("nvtx-kernels")
        except metadata.PackageNotFoundError:
            version = "(a checkout that is not installed)"
        print(parser.prog, version)  # noqa: T201
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that is named first; return its exit status."""
    asked = parser().parse_args(arguments)
    if asked.command == VIEW:
        return _view(asked.rest)
    status: int = _module(asked.command).main(asked.rest, prog=f"{PROG} {asked.command}")
    return status


def _view(words: Sequence[str]) -> int:
    """Show one view: `view NAME REPORT` is `rank --view NAME REPORT`."""
    asks_help = not words or words[0] in ("-h", "--help")
    status: int = _module("rank").main(["--help"] if asks_help else ["--view", *words], prog=f"{PROG} rank")
    return status


def _module(command: str) -> Any:
    return import_module(f"nvtx_kernels.{COMMANDS[command].module}")


class _Completion(argparse.Action):
    """Print the completion of all commands, which shtab derives from their parsers."""

    def __call__(self, this: argparse.ArgumentParser, _: object, shell: Any, option: str | None = None) -> None:
        try:
            import shtab
        except ImportError:
            this.error(f"{option} needs shtab: pip install 'nvtx-kernels[completion]'")
        print(shtab.complete(_whole(), shell))  # noqa: T201
        this.exit()


def _whole() -> argparse.ArgumentParser:
    """Return one parser that contains those of all commands."""
    this = argparse.ArgumentParser(PROG)
    commands = this.add_subparsers()
    for name, command in COMMANDS.items():
        parts = getattr(_module(name), "parser", None)
        parents = [parts(f"{PROG} {name}")] if parts else []
        commands.add_parser(name, help=command.what, parents=parents, add_help=not parents)
    return this


if __name__ == "__main__":
    sys.exit(main())
