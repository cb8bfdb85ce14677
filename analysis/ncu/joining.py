"""Which launch of a report each launch in ncu's file is: the same one of its kernel, in the order of launches.

ncu runs the program again, so nothing but names and order joins the two. A kernel is joined where both have as
many launches of it, or where the file has whole steps of the report's; and only if the grids agree, where both say
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..kernel_names.short import short_name
from ..kernel_names.spelling import abridged, spelled_like
from ..report import Path
from ..summary.selection import collapsed_path
from ..support.text import fit
from .choosing import function_name
from .counters import Launch
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
    profiled: Mapping[str, int]  # launches in the file, by the report's name of the kernel
    notes: tuple[str, ...]


def join(kernels: Kernels, launches: Sequence[Launch], steps: int) -> Joined:
    """Join the wanted kernels of a report, in so many measured steps, and the launches in a file of ncu's."""
    ours = _ours(kernels)
    theirs, strange = _theirs(ours, launches)
    twins, notes, rounds = [], [], set()
    for name, mine in ours.items():
        there = theirs.get(name, [])
        period = _period(mine, there, steps)
        if problem := _problem(mine, there, period):
            notes.append(f"{short_name(name)}: {problem}")
            there = []
        elif period != len(mine):
            rounds.add(len(there) // period)
        twins += [
            replace(one, launches=tuple(there[at::period]) if at < period else ()) for at, one in enumerate(mine)
        ]
    notes += [f"ncu's file has {_numbers(rounds)} steps of these kernels, the report {steps}."] if rounds else []
    notes += _strange(strange)
    return Joined(tuple(twins), {name: len(there) for name, there in theirs.items()}, tuple(notes))


def _ours(kernels: Kernels) -> dict[str, list[Twin]]:
    """Return the wanted kernels by name, in the order of their launches."""
    found: dict[str, list[Twin]] = defaultdict(list)
    grid = kernels.attribution.trace.work.grid
    for row, path, wanted in zip(kernels.rows.tolist(), kernels.paths(), kernels.wanted.tolist(), strict=True):
        if wanted:
            found[kernels.name(row)].append(Twin(row, collapsed_path(path), int(grid[row])))
    return found


def _theirs(ours: Iterable[str], launches: Iterable[Launch]) -> tuple[dict[str, list[Launch]], list[Launch]]:
    """Return the file's launches by the report's names for their kernels, and those of no such name.

    ncu abridges names. One that is unknown even so is taken by its function where one kernel alone has that.
    """
    known = set(ours)
    launches = sorted(launches, key=lambda one: (one.process, one.number))
    called = spelled_like({one.kernel for one in launches}, known)
    in_short = _unique(known, abridged)
    named = [called.get(one.kernel) or in_short.get(abridged(one.kernel), one.kernel) for one in launches]
    by_function = _unique(known - set(named), function_name)
    found: dict[str, list[Launch]] = defaultdict(list)
    strange: list[Launch] = []
    for one, name in zip(launches, named, strict=True):
        name = name if name in known else by_function.get(function_name(one.kernel), "")
        (found[name] if name else strange).append(one)
    return found, strange


def _unique(names: Iterable[str], short: Callable[[str], str]) -> dict[str, str]:
    """Return by its short form each name that no other one shares it with."""
    forms: dict[str, list[str]] = defaultdict(list)
    for name in names:
        forms[short(name)].append(name)
    return {form: found[0] for form, found in forms.items() if len(found) == 1}


def _period(mine: Sequence[Twin], there: Sequence[Launch], steps: int) -> int:
    """Return after how many launches they begin anew: a step's, where each is alike and the counts are unequal."""
    each, rest = divmod(len(mine), steps or 1)
    if len(there) == len(mine) or rest:
        return len(mine)
    alike = all(
        (one.path, one.blocks) == (mine[at % each].path, mine[at % each].blocks) for at, one in enumerate(mine)
    )
    return each if alike else len(mine)


def _problem(mine: Sequence[Twin], there: Sequence[Launch], period: int) -> str:
    """Return why launches cannot be joined; empty where they can."""
    if not there or len(there) % period:
        return f"{len(mine):,} launches in the report, {len(there):,} in ncu's file; its counters are left out."
    grids = [(mine[at % period].blocks, one.blocks) for at, one in enumerate(there)]
    other = sum(a != b for a, b in grids if a and b)
    return f"{other:,} launches have other grids in ncu's file; its counters are left out." if other else ""


def _numbers(counts: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(counts)))


def _strange(launches: Sequence[Launch]) -> list[str]:
    if not launches:
        return []
    names = ", ".join(dict.fromkeys(short_name(one.kernel) for one in launches[:200]))
    return [f"{len(launches):,} launches in ncu's file are of no kernel in these ranges ({fit(names, 120)})."]
