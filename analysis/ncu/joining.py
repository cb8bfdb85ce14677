"""Which launch of a report each launch in ncu's file is: the same one of its kernel, in the order of launches.

ncu runs the program again, so nothing but names and order joins the two. A kernel is joined where both have as
many launches of it, or where the file has whole steps of the report's; and only if the grids agree, where both say
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..kernel_names.short import short_name
from ..kernel_names.spelling import abridged, spelled_like
from ..report import Path
from ..support.text import fit
from ..support.units import counted
from ..vocabulary.modules import naming
from .counters import Launch
from .filters import function_name
from .wanted import Kernels


@dataclass(frozen=True, slots=True)
class Twin:
    """A kernel of the report, and the launches in ncu's file that are the same one of it, once a step."""

    row: int  # position in Work
    path: Path  # of ranges, indices collapsed
    blocks: int  # of the grid, 0 where the report does not say
    launches: tuple[Launch, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """The wanted kernels with their launches in ncu's file; `notes` say what could not be joined."""

    twins: tuple[Twin, ...]
    profiled: int  # launches in the file, of kernels of the report
    notes: tuple[str, ...]


def join(kernels: Kernels, launches: Sequence[Launch], steps: int) -> Joined:
    """Join the wanted kernels of a report with `steps` measured steps, and the launches in a file of ncu's."""
    twins_of: dict[str, list[Twin]] = defaultdict(list)
    grid, together = kernels.attribution.trace.work.grid, naming({}, {})
    for number in np.flatnonzero(kernels.requested).tolist():
        row = int(kernels.rows[number])
        twins_of[kernels.name(row)].append(Twin(row, together(kernels.paths[number]), int(grid[row])))
    launches_of, strangers = _by_name(twins_of, launches)
    joined, notes, rounds = [], [], set()
    for name, twins in twins_of.items():
        profiled = launches_of.get(name, [])
        period = _period(twins, profiled, steps)
        if problem := _problem(twins, profiled, period):
            notes.append(f"{short_name(name)}: {problem}")
            profiled = []
        elif period != len(twins):
            rounds.add(len(profiled) // period)
        joined += [
            replace(twin, launches=tuple(profiled[place::period]) if place < period else ())
            for place, twin in enumerate(twins)
        ]
    if rounds:
        counts = " or ".join(map(str, sorted(rounds)))
        notes.append(f"ncu's file has {counts} steps of these kernels, the report {steps}.")
    if strangers:
        are = counted(len(strangers), "launch in ncu's file is", "launches in ncu's file are")
        names = fit(", ".join(dict.fromkeys(short_name(launch.kernel) for launch in strangers[:200])), 120)
        notes.append(f"{are} of no kernel in these ranges ({names}).")
    return Joined(tuple(joined), sum(map(len, launches_of.values())), tuple(notes))


def _by_name(names: Iterable[str], launches: Iterable[Launch]) -> tuple[dict[str, list[Launch]], list[Launch]]:
    """Return the file's launches by the report's names for their kernels, and those of no such name.

    ncu abridges names. One that is unknown even so is taken by its function where one kernel alone has that.
    """
    report_names = set(names)
    launches = sorted(launches, key=lambda launch: (launch.process, launch.number))
    same_spelling = spelled_like({launch.kernel for launch in launches}, report_names)
    by_short = _unique(report_names, abridged)
    called = [
        same_spelling.get(launch.kernel) or by_short.get(abridged(launch.kernel), launch.kernel)
        for launch in launches
    ]
    by_function = _unique(report_names - set(called), function_name)
    launches_of: dict[str, list[Launch]] = defaultdict(list)
    strangers: list[Launch] = []
    for launch, name in zip(launches, called, strict=True):
        name = name if name in report_names else by_function.get(function_name(launch.kernel), "")
        (launches_of[name] if name else strangers).append(launch)
    return launches_of, strangers


def _unique(names: Iterable[str], short: Callable[[str], str]) -> dict[str, str]:
    """Return by its short form each name that shares it with no other one."""
    names_of: dict[str, list[str]] = defaultdict(list)
    for name in names:
        names_of[short(name)].append(name)
    return {form: sharing[0] for form, sharing in names_of.items() if len(sharing) == 1}


def _period(twins: Sequence[Twin], profiled: Sequence[Launch], steps: int) -> int:
    """Return after how many launches they repeat: after a step's, if steps are equal and the counts differ."""
    per_step, remainder = divmod(len(twins), steps or 1)
    if len(profiled) == len(twins) or remainder:
        return len(twins)
    first = [(twin.path, twin.blocks) for twin in twins[:per_step]]
    repeats = all((twin.path, twin.blocks) == first[place % per_step] for place, twin in enumerate(twins))
    return per_step if repeats else len(twins)


def _problem(twins: Sequence[Twin], profiled: Sequence[Launch], period: int) -> str:
    """Return why the launches cannot be joined, or "" if they can."""
    if not profiled or len(profiled) % period:
        return (
            f"{counted(len(twins), 'launch', 'launches')} in the report, {len(profiled):,} in ncu's file; its "
            "counters are left out."
        )
    grids = [(twins[place % period].blocks, launch.blocks) for place, launch in enumerate(profiled)]
    other = sum(ours != theirs for ours, theirs in grids if ours and theirs)
    have = counted(other, "launch has", "launches have")
    return f"{have} other grids in ncu's file; its counters are left out." if other else ""
