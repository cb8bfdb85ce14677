"""The topics of `nvtx-kernels help`: options that several commands share, each explained once."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from .analysis.support.arguments import CommandParser


class Topic(NamedTuple):
    """A topic: its first sentence, and a function that adds its options."""

    what: str
    add: Callable[[CommandParser], None]


def _module(name: str) -> Any:
    return import_module(f"nvtx_kernels.{name}")


def _add_ranges(parser: CommandParser) -> None:
    _module("analysis.cli").add_range_rules(parser)


def _add_output(parser: CommandParser) -> None:
    shape = _module("analysis.cli").add_shape(parser)
    _module("analysis.kernels").add_scheduler(shape)


def _add_settings(parser: CommandParser) -> None:
    _module("profiling.run").add_settings(parser)


def _add_sweeps(parser: CommandParser) -> None:
    studies = _module("profiling.study.studies")
    studies.add_lists(parser, "--preset")
    parser.epilog = studies.OF_SWEEPS


#: By name; `TOPICS` of `analysis.support.arguments` has the groups of options that they explain.
TOPICS = {
    "ranges": Topic(
        "What counts as a range, a phase and a step: options of all commands on reports.", _add_ranges
    ),
    "output": Topic("The form of an answer: options of all commands that print tables.", _add_output),
    "settings": Topic("Settings of the course's model: options of nvtx-kernels run.", _add_settings),
    "sweeps": Topic("Lists of settings: options of nvtx-kernels benchmark and nvtx-kernels nsys.", _add_sweeps),
}


def explanation(name: str) -> str:
    """Return the text of a topic; raises KeyError for an unknown one."""
    topic = TOPICS[name]
    parser = CommandParser(f"nvtx-kernels help {name}", description=topic.what, explains=True, add_help=False)
    topic.add(parser)
    return parser.format_help()
