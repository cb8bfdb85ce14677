"""Calls of modules in a trace with stacks: what their ranges are called, and which ran without gradient.

PyTorch numbers the modules of a class in the order in which a trace calls them, so `Linear_7` is another layer in
another program, and `Linear_*` all of them. Here a module is named below the module that calls it, by its class:

- alone of its class there: `LlamaAttention`;
- of several modules with modules inside: `LlamaDecoderLayer 0`, an index, which screens collapse;
- of several without: `Linear #2`, an ordinal, which stays: `q_proj` is not `o_proj`.

Both count in the order of the trace's numbers. A module that no module calls, as where a checkpoint computes
forward again, has the name that it has below its first caller, if another call has one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..errors import AGAIN, TooTangled
from ..trace import Bools, Int32s, Int64s, Spots
from ..vocabulary import collapsed
from .columns import Interner

_NUMBERED = re.compile(r"(.+)_(\d+)", re.DOTALL)
_INDEX = re.compile(r"(?<= )\d+(?=/|$)")
_INDEX_ABOVE = re.compile(r"(?<= )\d+(?=/)")
NOBODY = -1
# Modules nest no deeper than this in a path; a module that calls itself would without end.
MOST_DEPTH = 64
# As many ranges may nest on one thread.
MOST_OPEN = 1_000
DAMAGED = f"the times are damaged. {AGAIN}"


def innermost_calls(spots: Spots, is_call: Bools) -> Int64s:
    """Return the innermost other call around each interval on its thread, its position, or -1: int64 (spots,).

    Of equal intervals the first is the outer one. Calls on one thread nest, or do not overlap; raises TooTangled
    where many do not.
    """
    holder = np.full(len(spots), NOBODY, np.int64)
    open_calls: list[tuple[int, int]] = []  # and their ends, outer before inner
    open_thread = NOBODY
    order = np.lexsort((-spots.end_ns, spots.start_ns, spots.thread))
    columns = (column[order].tolist() for column in (is_call, spots.thread, spots.start_ns, spots.end_ns))
    for row, opens, thread, start_ns, end_ns in zip(order.tolist(), *columns, strict=True):
        if thread != open_thread:
            open_calls = []
            open_thread = thread
        while open_calls and open_calls[-1][1] <= start_ns < end_ns:
            open_calls.pop()
        holder[row] = next((call for call, call_end in reversed(open_calls) if call_end >= end_ns), NOBODY)
        if opens:
            open_calls.append((row, end_ns))
            if len(open_calls) > MOST_OPEN:
                raise TooTangled(f"More than {MOST_OPEN:,} calls of modules are open on one thread: {DAMAGED}")
    return holder


def without_gradient(outermost: Spots, operators: Spots, sequence: Int64s) -> Bools:
    """Mark the calls that ran operators, but none with autograd's sequence number: bool (outermost,).

    In a trace without any such number, no call is marked.
    """
    numbered = operators.take(sequence >= 0)
    if not len(numbered) or not len(outermost):
        return np.zeros(len(outermost), np.bool_)
    first_ns = min(int(spots.start_ns.min()) for spots in (outermost, operators))
    span = max(int(outermost.end_ns.max()), int(operators.start_ns.max())) - first_ns + 1

    def counted(spots: Spots) -> Int64s:
        """Count those that begin in each call."""
        moments = np.sort(spots.thread * np.int64(span) + spots.start_ns - first_ns)
        thread = outermost.thread * np.int64(span)
        begun_before = np.searchsorted(moments, thread + outermost.start_ns - first_ns, "left")
        begun_by_end = np.searchsorted(moments, thread + outermost.end_ns - first_ns, "right")
        count: Int64s = begun_by_end - begun_before
        return count

    marked: Bools = (counted(numbered) == 0) & (counted(operators) > 0)
    return marked


@dataclass(slots=True)
class Module:
    """A module of a trace: its process, what the trace calls it, and the modules that it calls, in their order."""

    process: int
    traced: str
    class_name: str = ""
    number: int = 0
    shape: str = ""
    calls: dict[int, None] = field(default_factory=dict)  # positions in `ModuleTree.modules`

    def __post_init__(self) -> None:
        match = _NUMBERED.fullmatch(self.traced)
        self.class_name = self.traced
        if match:
            self.class_name = match[1]
            self.number = int(match[2][:15])


class ModuleTree:
    """The modules of a trace, and the chains of calls that led to them.

    Modules are positions in `modules`. A place is a module below the place of its caller: (place, module), -1
    where no module calls.
    """

    def __init__(self, modules: list[Module], places: list[tuple[int, int]]) -> None:
        self.modules = modules
        self.places = places
        self.caller = [NOBODY] * len(modules)  # the first of each, if there is any
        for above, module in places:
            if above != NOBODY:
                caller = places[above][1]
                self.modules[caller].calls[module] = None
                if self.caller[module] == NOBODY:
                    self.caller[module] = caller
        self._names: dict[int, dict[int, str]] = {}

    def name(self, caller: int, module: int) -> str:
        """Return a module's name below a caller, or below its first caller if none is given."""
        caller = self.caller[module] if caller == NOBODY else caller
        if caller not in self._names:
            siblings = self._outermost() if caller == NOBODY else [*self.modules[caller].calls]
            self._names[caller] = self._named(siblings)
        return self._names[caller][module]

    def _outermost(self) -> list[int]:
        """Return the modules that no module calls, in the order of their first calls."""
        tops = dict.fromkeys(module for above, module in self.places if above == NOBODY)
        return [module for module in tops if self.caller[module] == NOBODY]

    def _named(self, siblings: list[int]) -> dict[int, str]:
        """Return the names of modules that one module calls, or none; equal ones of several processes are one."""
        of_class: dict[tuple[int, str], list[int]] = defaultdict(list)
        for place in sorted(siblings, key=lambda sibling: self.modules[sibling].number):
            module = self.modules[place]
            of_class[module.process, module.class_name].append(place)
        names = {}
        for (_, class_name), members in of_class.items():
            has_inner = any(self.modules[member].calls for member in members)
            for position, member in enumerate(members):
                ordinal = f" {position}" if has_inner else f" #{position + 1}"
                names[member] = class_name + (ordinal if len(members) > 1 else "")
        return names

    def paths(self) -> Iterator[tuple[int, str, str, int]]:
        """Yield each place's outermost module and its name, the path of names below it, and its own module.

        Paths are joined by `/`, empty for the outermost module itself, and no longer than MOST_DEPTH names.
        """
        paths: list[tuple[int, str, str, int] | None] = []
        for above, module in self.places:
            around = paths[above] if above != NOBODY else None
            if above == NOBODY:
                paths.append((module, self.name(NOBODY, module), "", 0))
            elif around is None or around[3] == MOST_DEPTH:
                paths.append(None)
            else:
                top, root, path, depth = around
                path = f"{path}/{self.name(self.places[above][1], module)}".lstrip("/")
                paths.append((top, root, path, depth + 1))
            place = paths[-1]
            if place is not None:
                top, root, path, _ = place
                yield top, root, path, module

    def tables(self) -> dict[str, dict[str, str]]:
        """Return each outermost module's table of classes and weights' shapes, as `vocabulary.modules` has it."""
        rows: dict[str, dict[str, Module]] = defaultdict(dict)
        for _, root, path, place in self.paths():
            of_root = rows[root if is_ordinal(root) else collapsed(root)]
            module = self.modules[place]
            if not path:
                continue
            first = of_root.setdefault(path, module)
            if first.shape != module.shape:
                of_root[path] = Module(first.process, first.traced)
        return {root: _table(of_root) for root, of_root in rows.items()}

    def traced(self) -> dict[str, str]:
        """Return the trace's own names of modules, by their paths from an outermost one, joined by `/`."""
        traced: dict[str, str] = {}
        for top, root, path, module in self.paths():
            if self.caller[top] == NOBODY:
                traced.setdefault(f"{root}/{path}" if path else root, self.modules[module].traced)
        return traced


def is_ordinal(name: str) -> bool:
    """Return whether a module's name ends with an ordinal, such as `Linear #2`."""
    return bool(re.search(r" #\d+$", name))


def _table(rows: Mapping[str, Module]) -> dict[str, str]:
    """Return classes and shapes by paths; shapes that modules of one form do not share are left out."""
    shapes: dict[str, set[str]] = defaultdict(set)
    for path, module in rows.items():
        shapes[_INDEX.sub("*", path)].add(module.shape)
    return collapsed_table(
        {
            path: f"{module.class_name} {module.shape if len(shapes[_INDEX.sub('*', path)]) == 1 else ''}".rstrip()
            for path, module in rows.items()
        }
    )


def collapsed_table(values: Mapping[str, str]) -> dict[str, str]:
    """Return values by paths, with `*` for indices where all paths of that form have the same."""
    table: dict[str, str] = {}
    placed: set[str] = set()
    for index in (_INDEX, _INDEX_ABOVE, None):
        forms: dict[str, list[str]] = defaultdict(list)
        for path in values:
            forms[index.sub("*", path) if index else path].append(path)
        for form, paths in forms.items():
            if len({values[path] for path in paths}) == 1 and not placed.issuperset(paths):
                table[form] = values[paths[0]]
                placed.update(paths)
    return table


def module_tree(process: Int32s, traced: list[str], calls: Spots, around: Int64s) -> tuple[ModuleTree, Int32s]:
    """Return the modules of some calls, and each call's module: int32 (calls,).

    `traced` is what the trace calls each call's module, and `around` the position of the call around it, or -1.
    """
    number = Interner[tuple[int, str]]()
    module = [*map(number, zip(process.tolist(), traced, strict=True))]
    places = Interner[tuple[int, int]]()
    place = [NOBODY] * len(module)
    holder = around.tolist()
    for call in np.lexsort((-calls.end_ns, calls.start_ns)).tolist():  # of equal ones the first is the outer one
        above = place[holder[call]] if holder[call] != NOBODY else NOBODY
        place[call] = places((above, module[call]))
    return ModuleTree([Module(*key) for key in number], [*places]), np.array(module, np.int32)
