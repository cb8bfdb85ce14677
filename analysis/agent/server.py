"""Serve the reports of a folder to a coding agent over the Model Context Protocol, on stdin and stdout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import run
from ..errors import UsageError
from ..support.arguments import CommandParser

if TYPE_CHECKING:
    from mcp.server import MCPServer

EPILOG = "Claude, Cursor and others start it themselves: command `nvtx-kernels`, arguments `mcp FOLDER`."


def parser(prog: str = "python -m analysis.agent.server") -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(prog=prog, description=__doc__, epilog=EPILOG)
    parser.add_argument("folder", type=Path, help="the folder of reports; nothing outside it is read")
    return parser


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m analysis.agent.server") -> int:
    """Run the command until its input ends; return its exit status."""
    options = parser(prog).parse_args(arguments)
    return run(lambda: server(options.folder).run("stdio"))


def server(folder: Path) -> MCPServer:
    """Return a server whose tools read the reports of a folder.

    Raises UsageError without the extra `mcp`, or if `folder` is not a folder.
    """
    try:
        from mcp.server import MCPServer
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise UsageError("The server needs the protocol's library: pip install 'nvtx-kernels[mcp]'") from error
    from ..views.registry import VIEWS
    from .answers import QUESTIONS, Reports
    from .skill import page

    served = MCPServer("nvtx-kernels", instructions=page(), log_level="WARNING")
    reports = Reports(folder)
    views = "\n".join(f"{name}: {view.question}" for name, view in VIEWS.items())
    for name in QUESTIONS:
        question = getattr(reports, name)
        description = f"{question.__doc__}\n\nViews:\n{views}" if name == "view" else question.__doc__
        hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
        served.add_tool(question, name=name, description=description, annotations=hints)
    return served


if __name__ == "__main__":
    sys.exit(main())
