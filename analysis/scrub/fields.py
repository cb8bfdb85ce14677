"""What of a report may leave in a shared copy: a rule for each field. What has no rule does not leave.

```
Trace ─► SharedTrace ─► Trace     numbers stay, moments count from the first, texts go through `Names`
              └─► changes         what was replaced or left out, by field: `scrub --check` lists it
```

A field of a table that is not listed here cannot be copied at all: a new column needs a decision.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..kernel_names.categories import MEANINGS
from ..operators.calls import UNKNOWN_TYPE, type_of
from ..readers.columns import Interner
from ..readers.marks import (
    ARITHMETIC,
    CHOSEN,
    CallMark,
    DistributedInfo,
    FlopsMark,
    Peaks,
    RecordedMark,
    RunMark,
    TrainingMark,
    UnrecordedMark,
    fitting,
)
from ..trace import (
    BETWEEN_TEXTS,
    KERNEL,
    Allocations,
    CallNames,
    CallText,
    Captures,
    Copies,
    Domain,
    Fact,
    Frames,
    Launches,
    Line,
    Lines,
    Messages,
    Operators,
    Overhead,
    Process,
    Provenance,
    Ranges,
    Source,
    Spots,
    Thread,
    Trace,
    Waits,
    Work,
)
from ..vocabulary import is_operator
from .names import Names, Role

# No capture is this long, so a moment beyond it counts from 1970 and says when the program ran.
LONGEST_CAPTURE_NS = 10**17
#: The run's facts: the schema of its mark, and of PyTorch's facts. Of the former, fields without texts.
OF_RUN, WITHOUT_TEXTS = (RunMark, DistributedInfo), {"loaders"}
#: Facts that are a version, or a GPU's name.
FACT_ROLES = {
    **dict.fromkeys(
        ["nvtx-kernels", "python", "torch", "cuda", "cudnn", "nvtx", "driver", "capability"], Role.FACT
    ),
    "device_name": Role.GPU,
}
#: Fields of marks that are numbers, or have one of the schema's values.
OF_SCHEMA: Mapping[type[msgspec.Struct], set[str]] = {
    TrainingMark: {"event"},
    UnrecordedMark: {*UnrecordedMark.__struct_fields__} - {"dropped"},
    CallMark: {*CallMark.__struct_fields__},
    RecordedMark: {*RecordedMark.__struct_fields__},
}
_NUMBER = r"-?\d{1,19}(?:\.\d{0,20})?(?:e[+-]?\d{1,3})?"
#: A value of an operator's argument that is no text.
_VALUE = re.compile(rf"True|False|None|{_NUMBER}|\[(?:{_NUMBER}(?:, ?{_NUMBER})*)?\]")

Rule: TypeAlias = Callable[["SharedTrace", str, Any], Any] | Role
Rules: TypeAlias = Mapping[str, Rule]


class SharedTrace:
    """Makes the part of a trace that may leave, with texts by `names`; counts what it replaces or leaves out."""

    def __init__(self, trace: Trace, names: Names) -> None:
        self.original = trace
        self.names = names
        self.changes: Counter[tuple[str, str]] = Counter()
        first_ns = min((int(column.min()) for column in _moments(trace) if len(column)), default=0)
        self.epoch_ns = first_ns if first_ns > LONGEST_CAPTURE_NS else 0
        self.changes["times", "(they are dates)"] += self.epoch_ns > 0
        self.number: Interner[str] = Interner()
        #: By role, the number in the copy of each name of the report; -1 if it has no such role.
        self.numbers: dict[Role, NDArray[np.int32]] = {}
        self._number_names()

    def trace(self) -> Trace:
        """Return the part of the trace that may leave."""
        copy: Trace = _part(self, "trace", self.original)
        self.changes["surroundings", "(users, hosts, folders and commands)"] += len(self.original.surroundings)
        self.changes = +self.changes
        return copy

    def text(self, where: str, role: Role, text: str) -> str:
        """Return the part of a text that may leave."""
        shared = self.names.shared(role, text)
        self.changes[where, text] += shared != text
        return shared

    def _number_names(self) -> None:
        """Give the names in use their numbers, in the order of the report: a name of two roles becomes two."""
        names = self.original.names
        used = dict[Role, NDArray[np.bool_]]()
        for role, rows in self._uses():
            mask = used.setdefault(role, np.zeros(len(names), np.bool_))
            mask[rows[rows >= 0]] = True
        uses = [(role, number) for role, mask in used.items() for number in np.flatnonzero(mask).tolist()]
        self.names.expect((self._role(role, names[number]), names[number]) for role, number in uses)
        self.numbers = {role: np.full(len(names) + 1, -1, np.int32) for role in used}
        for role, number in sorted(uses, key=lambda use: use[1]):
            shared = self.text(f"names: {role.name.lower()}", self._role(role, names[number]), names[number])
            self.numbers[role][number] = self.number(shared)

    def _uses(self) -> Iterator[tuple[Role, NDArray[np.int32]]]:
        """Yield the names that each column of numbers of names has, with their role."""
        is_kernel = self.original.work.kind == KERNEL
        yield Role.KERNEL, self.original.work.name_id[is_kernel]
        yield Role.COPY, self.original.work.name_id[~is_kernel]
        yield Role.RANGE, self.original.ranges.name_id
        if self.original.messages:
            yield Role.WORDS, np.concatenate([self.original.messages.collective, self.original.messages.group])

    def _role(self, role: Role, name: str) -> Role:
        """Return how a name is looked at: work of a CPU is called as its operators, and modules as engines do."""
        on_cpu = self.original.provenance.unit_of_work == "CPU"
        if role is Role.KERNEL and on_cpu and is_operator(name):
            role = Role.RANGE
        return Role.MODULE if role is Role.RANGE and name in self.original.shortened else role

    def tree(self, where: str, value: Any, key: str = "") -> Any:
        """Return the parts of a fact that may leave: numbers, and texts, also those by which it is divided."""
        if isinstance(value, Mapping):
            return {self._key(where, name): self.tree(where, part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(where, part) for part in value]
        if isinstance(value, str):
            is_chosen = key in CHOSEN and re.fullmatch(CHOSEN[key], value)
            return value if is_chosen else self.text(where, FACT_ROLES.get(key, Role.PATH), value)
        return value if isinstance(value, int | float) else None

    def _key(self, where: str, name: str) -> str:
        """Return a path, an operator or a model; names of fields and of arithmetic stay."""
        is_fixed = name in Peaks.__struct_fields__ or ARITHMETIC.fullmatch(name)
        return name if is_fixed else self.text(where, Role.PATH, name)


def _number(_shared: SharedTrace, _where: str, value: Any) -> Any:
    return value


def _moment(shared: SharedTrace, _where: str, value: Any) -> Any:
    """Return moments as they count from the first, which stays where it is unless it is a date."""
    if not isinstance(value, tuple):
        return value - shared.epoch_ns
    return tuple(max(moment - shared.epoch_ns, 0) if shared.epoch_ns else moment for moment in value)


def _part(shared: SharedTrace, where: str, value: Any) -> Any:
    """Return the parts of a record that may leave, or of several."""
    if isinstance(value, list | tuple) and type(value) not in RULES:
        return type(value)(_part(shared, where, record) for record in value)
    if value is None:
        return None
    kind = next(kind for kind in type(value).__mro__ if kind in RULES)
    parts = {}
    for name, rule in RULES[kind].items():
        part = getattr(value, name)
        place = f"{where}.{name}".removeprefix("trace.")
        parts[name] = _texts(shared, place, part, rule) if isinstance(rule, Role) else rule(shared, place, part)
    return type(value)(**parts)


def _texts(shared: SharedTrace, where: str, texts: Any, role: Role) -> Any:
    """Return the parts of a text that may leave, or of several."""
    if isinstance(texts, str):
        return shared.text(where, role, texts)
    return type(texts)(shared.text(where, role, text) for text in texts)


def _named(role: Role) -> Rule:
    """Return the rule of a column of positions in names."""
    return lambda shared, _, column: shared.numbers[role][column] if len(column) else column


def _of_work(shared: SharedTrace, _where: str, _work: Any) -> Any:
    work = shared.original.work
    names = work.name_id.copy()
    for role, rows in ((Role.KERNEL, work.kind == KERNEL), (Role.COPY, work.kind != KERNEL)):
        if rows.any():
            names[rows] = shared.numbers[role][work.name_id[rows]]
    return names


def _run(shared: SharedTrace, where: str, run: Mapping[str, Any]) -> dict[str, Any]:
    facts_of_run: dict[str, Any] = {}
    for schema in OF_RUN:
        facts, _ = fitting(schema, dict(run))
        facts_of_run |= msgspec.to_builtins(facts) if facts else {}
    shared.changes.update((where, name) for name in run if name not in facts_of_run)
    return {
        name: facts_of_run[name] if name in WITHOUT_TEXTS else shared.tree(where, facts_of_run[name], name)
        for name in run
        if name in facts_of_run
    }


def _counted(
    shared: SharedTrace, where: str, counted: tuple[Mapping[str, Any], ...]
) -> tuple[dict[str, Any], ...]:
    return tuple(_known_counts(shared, where, counts) for counts in counted)


def _known_counts(shared: SharedTrace, where: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    names = [name for name in counts if name in FlopsMark.__struct_fields__]
    return {name: shared.tree(where, counts[name]) for name in names}


def _mark(shared: SharedTrace, where: str, mark: msgspec.Struct) -> msgspec.Struct | None:
    of_schema = OF_SCHEMA.get(type(mark), set())
    facts = {
        name: fact if name in of_schema else shared.tree(where, fact, name)
        for name, fact in msgspec.to_builtins(mark).items()
    }
    return fitting(type(mark), facts)[0]


def _facts(shared: SharedTrace, where: str, facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    return tuple(fact for fact in _part(shared, where, facts) if fact.mark is not None)


def _categories(shared: SharedTrace, where: str, categories: Mapping[str, str]) -> dict[str, str]:
    pairs = ((shared.text(where, Role.KERNEL, kernel), category) for kernel, category in categories.items())
    return {kernel: category for kernel, category in pairs if category in MEANINGS}


def _operator_calls(shared: SharedTrace, where: str, calls: tuple[CallText, ...]) -> tuple[CallText, ...]:
    def value(text: Any) -> Any:
        if isinstance(text, list):
            return list(map(value, text))
        if not isinstance(text, str):
            return text if isinstance(text, int | float) else None
        is_known = _VALUE.fullmatch(text) or type_of(text) is not UNKNOWN_TYPE
        return text if is_known else shared.text(where, Role.WORDS, text)

    def part(text: bytes) -> bytes:
        try:
            content = msgspec.json.decode(text) if text else None
        except (msgspec.DecodeError, UnicodeError):
            content = None
        return msgspec.json.encode(value(content)) if isinstance(content, list) else b""

    return tuple(
        (shared.text(where, Role.RANGE, name), BETWEEN_TEXTS.join(map(part, texts.split(BETWEEN_TEXTS))))
        for name, texts in calls
    )


def _numbers(names: str) -> Rules:
    return dict.fromkeys(names.split(), _number)


_SPOTS: Rules = {"start_ns": _moment, "end_ns": _moment, "thread": _number}
RULES: Mapping[type, Rules] = {
    Trace: {
        **dict.fromkeys(("work", "launches", "ranges", "operators", "frames", "pauses", "overhead"), _part),
        **dict.fromkeys(("captures", "messages", "memory", "waits", "copies", "calls", "lines"), _part),
        **dict.fromkeys(("threads", "processes", "domains", "provenance"), _part),
        **_numbers("graph_node has_events launch_times_known"),
        "names": lambda shared, _, __: list(shared.number),
        "notes": Role.NOTE,
        "shortfalls": Role.NOTE,
        "shortened": Role.MODULE,
        "categories": _categories,
        "operator_calls": _operator_calls,
        "frame_names": Role.FRAME,
        "facts": _facts,
    },
    Work: {
        **dict.fromkeys(("start_ns", "end_ns"), _moment),
        **_numbers("kind device_id stream_id process launch grid"),
        "name_id": _of_work,
    },
    Spots: _SPOTS,
    Launches: _SPOTS,
    Ranges: {**_SPOTS, **_numbers("domain seq style open_ended category"), "name_id": _named(Role.RANGE)},
    Overhead: {**_SPOTS, **_numbers("loads")},
    Frames: {**_SPOTS, **_numbers("name_id")},
    Operators: {**_SPOTS, **_numbers("call")},
    Allocations: {"at_ns": _moment, **_numbers("thread device_id process block bytes total_bytes")},
    Captures: {"of_work": _number, "at_ns": _moment, "thread": _number},
    Messages: {
        **_numbers("launch ranks sent_bytes received_bytes root_or_peer"),
        **dict.fromkeys(("collective", "group"), _named(Role.WORDS)),
    },
    Waits: _numbers("call stream event"),
    Copies: _numbers("work bytes from_pageable to_pageable"),
    CallNames: {"names": Role.WORDS, **_numbers("kind_of_name of_launch")},
    Fact: {"at_ns": _moment, "thread": _number, "mark": _mark},
    Line: {"file": Role.FILE, "line": _number, "function": Role.WORDS},
    Source: {"lines": _part, "backward": _part},
    Lines: {
        "sources": _part,
        **_numbers("of_launch before_launch"),
        **dict.fromkeys(("begun_ns", "span_ns"), _moment),
        "reason": Role.NOTE,
    },
    Thread: {**_numbers("process thread_id"), "name": Role.THREAD},
    Process: {"process_id": _number, "name": Role.THREAD},
    Domain: {**_numbers("process domain_id"), "name": Role.DOMAIN},
    Provenance: {
        "file": lambda *_: "",  # a copy has its own
        **dict.fromkeys(("tool", "schema", "unit_of_work"), Role.FACT),
        "gpus": Role.GPU,
        "gpu_operator": Role.RANGE,
        "run": _run,
        **dict.fromkeys(("models", "attributes", "trace_modules"), SharedTrace.tree),
        "counted": _counted,
        "names_joined": _number,
        "steps": Role.PATH,
    },
}


def _moments(trace: Trace) -> Iterator[NDArray[np.int64]]:
    """Yield the columns of moments of a trace's parts."""
    parts = (getattr(trace, name) for name in RULES[Trace])
    for part in parts:
        for name, rule in RULES.get(type(part), {}).items() if is_dataclass(part) else ():
            column = getattr(part, name)
            if rule is _moment and isinstance(column, np.ndarray):
                yield column
    yield np.array([fact.at_ns for fact in trace.facts], np.int64)
