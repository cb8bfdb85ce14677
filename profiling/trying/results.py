"""What a run is asked for, and what it writes: lines of JSON, each at once, in case it is killed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass
class Job:
    """One run of a program.

    `record` writes a report to `report`; `screen` goes through `plan`, arms between which the program runs as it
    is; `run` counts `steps` after `warm_up`. The levers of `on` are on, those of `watched` are counted and, by a
    plan, switched. With `rounds`, it runs the plan's arms that have something to change this often. A screen ends
    after `seconds`. With a `launcher`, torchrun starts the program with these options. Where levers were named by
    the user (`is_named`), those for a GPU are tried without one, too.
    """

    kind: Literal["record", "screen", "run"]
    program: list[str]
    launcher: list[str] = field(default_factory=list)
    is_module: bool = False
    on: list[str] = field(default_factory=list)
    watched: list[str] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)
    rounds: int = 0
    is_named: bool = False
    warm_up: int = 6
    steps: int = 20
    seconds: float = 0.0
    report: str = ""


@dataclass
class Switched:
    """The arm that is on from here on, "" for none."""

    arm: str


@dataclass
class Block:
    """Steps of one arm in a row: their times, ns, and those of the steps before them that were left out, s."""

    arm: str
    step_ns: list[float]
    settling_s: list[float]


@dataclass
class LeverFacts:
    """What a lever saw to change and what it did, where, and what is wrong with it.

    `most_share` is the most that it could save of a step, None where that is not known.
    """

    saw: int
    did: int
    place: str = ""
    trouble: str = ""
    most_share: float | None = None


#: A lever that can save less than this share of a step is not run.
LEAST_SHARE = 0.01


def is_worth_a_run(facts: LeverFacts | None) -> bool:
    """Return whether a lever has something to change that may save time."""
    if facts is None or not facts.saw:
        return False
    return facts.most_share is None or facts.most_share >= LEAST_SHARE


@dataclass
class Seen:
    """The levers at the end of warm-up, and how long the program took until then, s."""

    levers: dict[str, LeverFacts]
    seconds: float = 0.0


@dataclass
class Ending:
    """A run's end: why it failed ("" if it did not), the arm that was on, its steps, and what was computed.

    `raised` has exceptions in models' calls by the arm that was on, `refused` what the program may not do.
    """

    error: str = ""
    arm: str = ""
    steps: int = 0
    step_ns: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    weights: float = 0.0
    memory_bytes: int | None = None
    warm_up_s: float = 0.0
    device: str = ""
    raised: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    levers: dict[str, LeverFacts] = field(default_factory=dict)


Line = Switched | Block | Seen | Ending
_KINDS = {kind.__name__: kind for kind in (Switched, Block, Seen, Ending)}


def write_line(file: int, line: Line) -> None:
    """Append a line to an open file."""
    os.write(file, json.dumps({type(line).__name__: asdict(line)}).encode() + b"\n")


@dataclass
class Written:
    """All that a run has written."""

    arm: str = ""
    blocks: list[Block] = field(default_factory=list)
    seen: dict[str, LeverFacts] = field(default_factory=dict)
    seen_after_s: float = 0.0
    ending: Ending | None = None


def read_lines(path: Path) -> Written:
    """Return the results that a run wrote, also one that was killed meanwhile."""
    written = Written()
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            ((kind, facts),) = json.loads(text).items()
        except ValueError:  # cut off
            break
        _add(written, _KINDS[kind](**_with_levers(facts)))
    return written


def _with_levers(facts: dict[str, Any]) -> dict[str, Any]:
    if "levers" in facts:
        facts["levers"] = {name: LeverFacts(**of_lever) for name, of_lever in facts["levers"].items()}
    return facts


def _add(written: Written, line: Line) -> None:
    match line:
        case Switched(arm):
            written.arm = arm
        case Block():
            written.blocks.append(line)
        case Seen(levers, seconds):
            written.seen, written.seen_after_s = levers, seconds
        case Ending():
            written.ending, written.arm = line, line.arm
