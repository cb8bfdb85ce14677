"""Print how a coding agent uses nvtx-kernels, or write it into a folder of skills, with its card and its tasks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from operator import attrgetter
from pathlib import Path, PurePosixPath

from ..cli import run
from ..presenters.output import print_text
from ..support.arguments import CommandParser
from ..support.files import replace_file

#: The skill's name, which is also its folder's.
NAME = "nvtx-kernels"


def parser(prog: str = "python -m analysis.agent.skill") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog=prog, description=__doc__)
    text = f"write the folder {NAME} into this one, such as an agent's folder of skills"
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, help=text)
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.agent.skill") -> int:
    """Run the command; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: print_text(page()) if options.output is None else write(options.output))


def page() -> str:
    """Return the page, which is docs/agents.md, too."""
    return _folder().joinpath("SKILL.md").read_text(encoding="utf-8")


def write(output: Path) -> None:
    """Write the skill into its folder in `output`, and name the files on stderr."""
    for path, file in _files(_folder(), PurePosixPath(NAME)):
        target = output / path
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, file.read_bytes())
        sys.stderr.write(f"{target}\n")


def _folder() -> Traversable:
    return files(__package__).joinpath(NAME)


def _files(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    """Yield the files in a folder of the package, with their paths."""
    for entry in sorted(folder.iterdir(), key=attrgetter("name")):
        inner = path / entry.name
        if entry.is_dir():
            yield from _files(entry, inner)
        else:
            yield inner, entry


if __name__ == "__main__":
    sys.exit(main())
