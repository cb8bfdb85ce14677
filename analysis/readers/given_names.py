"""Names of modules for a trace with stacks, from the file that `nk.names(model)` writes (`--names FILE`).

A trace has the classes of modules, not their attributes. The file lists the modules that each module calls, in the
order of their first calls. Below a module that is known, those of one class are given names in that order; where
the trace calls more or fewer of the class, they keep their classes' names, and a note counts them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from ..errors import NotAReport, UsageError
from ..trace import PUSH_POP, Trace
from ..vocabulary.modules import at
from .columns import Names
from .module_calls import MOST_DEPTH, Module, collapsed_table
from .safety import content_of

NO_MODULES = "The report has no calls of modules, so --names has nothing to name: record with with_stack=True."
NOT_CALLED = "--names: the report calls no {}, but {} has its names."
DEFINED = (
    "--names: {} has modules in the order of their definition. If forward calls them in another order, names are "
    "exchanged: write the file in `with nk.names(model):`, around a call."
)
UNNAMED = "--names: {} modules keep the names of their classes, because {} lists more or fewer of them."
LARGEST_BYTES = 64 << 20


#: By a model's name, a text by the paths of its modules.
Table = dict[str, dict[str, str]]


class GivenModule(msgspec.Struct):
    """A module of the file: its path in the model, its class, its range's name, and the path of its caller."""

    path: str
    class_name: str = msgspec.field(name="class")
    name: str = ""
    below: str = ""


class GivenNames(msgspec.Struct):
    """The file: the class of the model, and its modules, each below its caller, in the order of calls."""

    model: str
    modules: list[GivenModule]
    order: str = ""  # of calls, or of definition


_FILE = msgspec.json.Decoder(GivenNames)


def read_names(path: Path) -> GivenNames:
    """Read a file that `nk.names` wrote; raises UsageError if it cannot be, NotAReport for any other file."""
    try:
        return _FILE.decode(content_of(path, LARGEST_BYTES))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotAReport(f"{path} has no names of modules: {error}. Write it with nk.names(model).") from error


def with_names(trace: Trace, path: Path) -> Trace:
    """Return a trace whose modules have the names of the file, as far as they fit; a note reports the rest.

    Raises UsageError for a trace without modules, and as `read_names` does.
    """
    names = read_names(path)
    if not trace.provenance.trace_modules:
        raise UsageError(NO_MODULES)
    naming = _Naming(dict(trace.provenance.trace_modules), names)
    notes = [] if naming.roots else [NOT_CALLED.format(names.model, path.name)]
    notes += [DEFINED.format(path.name)] if names.order == "definition" else []
    notes += [UNNAMED.format(len(naming.unnamed), path.name)] if naming.unnamed else []
    ranges = trace.ranges
    numbered = Names(trace.names)
    name_id = ranges.name_id.copy()
    open_thread = -1
    open_calls = list[tuple[int, str]]()
    rows = np.flatnonzero(ranges.of_forward & (ranges.style == PUSH_POP))  # outer before inner
    columns = (
        rows.tolist(),
        *(column[rows].tolist() for column in (ranges.thread, ranges.end_ns, ranges.name_id)),
    )
    for row, thread, end_ns, name in zip(*columns, strict=True):
        if thread != open_thread:
            open_thread = thread
            open_calls = []
        while open_calls and open_calls[-1][0] < end_ns:
            open_calls.pop()
        place = f"{open_calls[-1][1]}/{trace.names[name]}" if open_calls else trace.names[name]
        open_calls.append((end_ns, place))
        name_id[row] = numbered(naming.name(place))
    models, attributes = naming.tables(trace.provenance.models)
    provenance = replace(trace.provenance, trace_modules=naming.traced(), models=models, attributes=attributes)
    ranges = replace(ranges, name_id=name_id)
    return replace(trace, ranges=ranges, names=numbered.all, provenance=provenance, notes=(*trace.notes, *notes))


@dataclass(slots=True)
class _Match:
    """A module of the trace that is one of the file: its root's place, and the file's module, None for a root."""

    root: str
    module: GivenModule | None


@dataclass
class _Naming:
    """Which module of the file each of a trace is; places are paths of a trace's names, joined by `/`."""

    trace_modules: dict[str, str]
    names: GivenNames
    matches: dict[str, _Match] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._below: dict[str, list[str]] = defaultdict(list)
        for place in self.trace_modules:
            self._below[place.rpartition("/")[0]].append(place)
        self._listed: dict[str, list[GivenModule]] = defaultdict(list)
        for module in self.names.modules:
            self._listed[module.below].append(module)
        self._class = {place: Module(0, traced) for place, traced in self.trace_modules.items()}
        for place in sorted(self.trace_modules, key=lambda place: place.count("/")):
            if self._class[place].class_name == self.names.model and place not in self.matches:
                self.roots.append(place)
                self.matches[place] = _Match(place, None)
                self._match(place, place, "", 0)

    def _match(self, place: str, root: str, path: str, depth: int) -> None:
        """Give the modules that one calls those that the file lists below it, class by class."""
        listed = defaultdict[str, list[GivenModule]](list)
        called = defaultdict[str, list[str]](list)
        for module in self._listed[path]:
            listed[module.class_name].append(module)
        for inner in sorted(self._below[place], key=lambda inner: self._class[inner].number):
            called[self._class[inner].class_name].append(inner)
        for class_name, inside in called.items():
            if len(inside) != len(listed[class_name]):
                self.unnamed += inside
                continue
            for inner, module in zip(inside, listed[class_name], strict=True):
                self.matches[inner] = _Match(root, module)
                if depth < MOST_DEPTH:
                    self._match(inner, root, module.path, depth + 1)

    @cached_property
    def _by_end(self) -> dict[str, set[str]]:
        """The new names by each end of a place, for modules that a checkpoint calls from no other."""
        names: dict[str, set[str]] = defaultdict(set)
        for place in self.trace_modules:
            parts = place.split("/")
            for first in range(1, len(parts)):
                names["/".join(parts[first:])].add(self._own_name(place))
        return names

    def _own_name(self, place: str) -> str:
        match = self.matches.get(place)
        own_name = place.rpartition("/")[2]
        if match and match.module:
            return match.module.name or own_name
        return own_name

    def name(self, place: str) -> str:
        """Return the name of the module at a place, which may lack what is around it."""
        if place in self.trace_modules:
            return self._own_name(place)
        names = self._by_end.get(place, set())
        if len(names) == 1:
            return next(iter(names))
        return place.rpartition("/")[2]

    def _renamed(self, place: str, below: str = "") -> str:
        """Return a place with new names, without those of the place that it is below."""
        parts = place.split("/")
        first = below.count("/") + 1 if below else 0
        return "/".join(self._own_name("/".join(parts[: end + 1])) for end in range(first, len(parts)))

    def traced(self) -> dict[str, str]:
        """Return the trace's own names of modules, by their new paths."""
        return {self._renamed(place): traced for place, traced in self.trace_modules.items()}

    def tables(self, models: Mapping[str, Mapping[str, str]]) -> tuple[Table, Table]:
        """Return the tables `models` and `attributes` of a report, those of the named models by new names."""
        classes: Table = {name: dict(table) for name, table in models.items()}
        attributes: Table = {}
        for root in self.roots:
            outermost, _, below = root.partition("/")
            table = models.get(outermost) or models.get(re.sub(r"(?<= )\d+$", "*", outermost), {})
            if below:  # the model is named by itself, and not by what wraps it
                classes[outermost] = {
                    p: c for p, c in classes[outermost].items() if f"{p}/".find(f"{below}/") != 0
                }
            inside = [place for place in self.trace_modules if place.startswith(f"{root}/")]
            of_class = {
                self._renamed(place, root): at(table, place.partition("/")[2]) or self._class[place].class_name
                for place in inside
            }
            of_attribute = {
                self._renamed(place, root): self._attribute(place)
                for place in inside
                if (match := self.matches.get(place)) and match.module
            }
            name = root.rpartition("/")[2]
            classes[name] = collapsed_table(of_class)
            attributes[name] = collapsed_table(of_attribute)
        return classes, attributes

    def _attribute(self, place: str) -> str:
        """Return a module's path below the one that calls it; the index that its name has is a `*`."""
        module = self.matches[place].module
        assert module is not None
        attribute = module.path.removeprefix(f"{module.below}.") if module.below else module.path
        holders, dot, last = attribute.rpartition(".")
        if last.isdigit() and module.name.endswith(f" {last}"):
            return f"{holders}{dot}*"
        return attribute
