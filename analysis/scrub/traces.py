"""A copy of a PyTorch trace that contains only what the analysis reads; and what a trace would leak.

The part of each event that the reader uses is copied: numbers unchanged, names by their role. Everything else,
such as shapes, stacks, inputs and what surrounds the events, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from ..errors import NotAReport, UsageError
from ..readers.chrome_columns import CATEGORIES, LAUNCHES, RANGES, WORK
from ..readers.chrome_events import LARGEST_NS, Envelope, Event, TraceFile, opened
from ..readers.identity import Identity, identity, require_unchanged
from ..support.files import write_lines
from ..support.progress import advance
from ..support.text import printable
from .allowed import Role
from .copying import Copied, require_replaceable
from .leaks import Found, Leak, count_in
from .names import Names, thread_name
from .own_words import words_of
from .source import LONGEST_CAPTURE_NS

ROLES = {WORK: Role.KERNEL, LAUNCHES: Role.CALL, RANGES: Role.RANGE}
# How torch.profiler's handlers name traces: after the host.
_FILE_OF_HOST = re.compile(r"(.+?)[_.]\d+\.\d+\.pt\.trace\.json(?:\.gz)?")
_WRAPPED = re.compile(r"(thread -?\d+) \((.*)\)\s*")
_PUBLIC_TRACKS = re.compile(
    r"(?:GPU|stream|thread|process) ?-?\d+|Spans|Traces|PyTorch Profiler(?: \(\d+\))?|-?\d+"
)
_NAMING = ("process_name", "thread_name")
_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "hccl", "xccl")
# Beyond any clock; and more decimal places than are ever needed: a few bytes can ask for gigabytes of zeros.
_LARGEST_US, _DIGITS = LARGEST_NS // 1000, 30
_DEVICE_FACTS = ("id", "totalGlobalMem", "computeMajor", "computeMinor", "numSms")
_ENCODE = msgspec.json.Encoder().encode


def copy(report: Path, target: Path, *, rename_ranges: bool = False) -> Copied:
    """Write the shared copy of a PyTorch trace.

    Raises NotAReport if the trace cannot be read, and UsageError if the target cannot be written.
    """
    before = identity(report)
    require_replaceable(target, report)
    names = Names(rename_ranges=rename_ranges, own_words=host_words(report))
    under_way = TraceCopy(report, names)
    try:
        write_lines(_checked(under_way.lines(), report, before), target)
    except OSError as error:
        raise UsageError(f"{printable(str(target))} cannot be written: {error.strerror}.") from error
    return Copied(under_way.rows, dict(names.cut), len(names.renaming.letters) if names.renaming else 0)


def _checked(lines: Iterator[str], report: Path, before: Identity) -> Iterator[str]:
    """Yield lines; raise NotAReport, so that nothing is put in place, if the report changed meanwhile."""
    yield from lines
    require_unchanged(report, before)


class TraceCopy:
    """One copy of a trace under way."""

    def __init__(self, report: Path, names: Names) -> None:
        self.report, self.names, self.rows = report, names, 0
        self.base_us = _base_us(report)

    def lines(self) -> Iterator[str]:
        """Yield the copy piece by piece."""
        file = TraceFile(self.report)
        yield '{"traceEvents":[\n'
        for events in file.blocks():
            advance(len(events))
            kept = [_ENCODE(shared).decode() for event in events if (shared := self.event(event))]
            if kept:
                yield (",\n" if self.rows else "") + ",\n".join(kept)
                self.rows += len(kept)
        around = _ENCODE(self.around(file.envelope)).decode()
        yield f"\n],{around[1:]}\n" if len(around) > 2 else "\n]}\n"

    def event(self, event: Event) -> dict[str, Any] | None:
        """Return what may be shared of an event; None if that is nothing."""
        if event.ph == "M" and event.name in _NAMING:
            named = self.track_name(event.args.name)
            return {"ph": "M", "name": event.name, **self.place(event), "args": {"name": named}}
        if not _is_read(event):
            return None
        role = ROLES[CATEGORIES[event.cat][0]]
        # Nothing is appended to operators' names here, as nsys's have it.
        name = self.names.bare(event.name) if role is Role.RANGE else self.names.rules[role](event.name) or ""
        times = {"ts": self.time(event.ts), "dur": self.time(event.dur, moved=False)}
        known = {key: value for key, value in times.items() if value is not None}
        return {"ph": "X", "cat": event.cat, "name": name, **self.place(event), **known, "args": _numbers(event)}

    def place(self, event: Event) -> dict[str, Any]:
        """Return the process and the thread, or the GPU and the stream."""
        places = {"pid": event.pid, "tid": event.tid}
        return {key: self.track(value) for key, value in places.items() if value is not None}

    def track(self, value: Any) -> Any:
        """Return a number unchanged, and a word only if it is a common one."""
        is_public = not isinstance(value, str) or _PUBLIC_TRACKS.fullmatch(value)
        return value if is_public else self.names.numbered("track", value)

    def track_name(self, name: Any) -> str:
        """Return what may be shared of a thread's or a process's name."""
        text = name if isinstance(name, str) else ""
        if wrapped := _WRAPPED.fullmatch(text):
            return f"{wrapped[1]} ({thread_name(wrapped[2]) or ''})"
        return text if _PUBLIC_TRACKS.fullmatch(text) else thread_name(text) or ""

    def time(self, written: msgspec.Raw, *, moved: bool = True) -> msgspec.Raw | None:
        """Return microseconds as they are written, counted from the first event if they count from 1970."""
        text = bytes(written).decode("ascii", "replace").strip('" ')
        if not text or text == "null":
            return None
        with suppress(ArithmeticError):
            value = Decimal(text) - (self.base_us if moved else 0)
            if abs(value) < _LARGEST_US:
                return msgspec.Raw(f"{value if value.adjusted() > -_DIGITS else 0:f}".encode())
        raise NotAReport(f"{self.report} is damaged: it has {text[:40]!r} instead of a time. Record it again.")

    def around(self, envelope: Envelope) -> dict[str, Any]:
        """Return the part that may be shared of what surrounds the events."""
        facts = envelope.distributed if isinstance(envelope.distributed, dict) else {}
        kept = {key: facts[key] for key in ("rank", "world_size") if isinstance(facts.get(key), int)}
        if str(facts.get("backend")).lower() in _BACKENDS:
            kept["backend"] = facts["backend"]
        schema = {"schemaVersion": envelope.schema} if isinstance(envelope.schema, int) else {}
        shared = {"distributedInfo": kept} if kept else {}
        return {**schema, **shared, **self.devices(envelope)}

    def devices(self, envelope: Envelope) -> dict[str, Any]:
        """Return the GPUs of the machine, under the name that the trace has for them."""
        found = {"deviceProperties": envelope.devices, "computeProperties": envelope.old_devices}
        return {
            key: [self.device(one) for one in devices if isinstance(one, dict)]
            for key, devices in found.items()
            if isinstance(devices, list)
        }

    def device(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of a GPU's model."""
        numbers = {key: facts[key] for key in _DEVICE_FACTS if isinstance(facts.get(key), int)}
        name = facts.get("name")
        return {**numbers, **({"name": self.names.rules[Role.GPU](name)} if isinstance(name, str) else {})}


def _is_read(event: Event) -> bool:
    return event.ph == "X" and event.cat in CATEGORIES


def _numbers(event: Event) -> dict[str, Any]:
    """Return the numbers that an event's details are made of."""
    details = msgspec.to_builtins(event.args)
    return {key: value for key, value in details.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(one, int | float) for one in value)
    return isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal())


def _base_us(report: Path) -> int:
    """Return the microseconds to subtract from all times: zero, unless they count from 1970."""
    written = (
        bytes(event.ts).strip(b'" ')
        for events in TraceFile(report).blocks()
        for event in events
        if _is_read(event)
    )
    numbers = [int(text.partition(b".")[0]) for text in written if re.fullmatch(rb"\d{1,18}(?:\.\d*)?", text)]
    first = min((number for number in numbers if number), default=0)
    return first if first * 1000 > LONGEST_CAPTURE_NS else 0


def host_words(report: Path) -> dict[str, str]:
    """Return the private words in a trace's file name."""
    found = _FILE_OF_HOST.fullmatch(report.name)
    return words_of([(found[1], "host")]) if found else {}


_TOGETHER = 1 << 20


def leaks(report: Path) -> list[Leak]:
    """Find what a trace would leak: by its look anywhere in the file, and what a copy would not hold as it is.

    Raises NotAReport where the trace cannot be read.
    """
    found, seen = Found(), TraceCopy(report, Names(own_words=host_words(report)))
    for events in TraceFile(report).blocks():
        advance(len(events))
        named = [event for event in events if event.ph == "M" and event.name in _NAMING]
        found.add(
            "names of threads", "events", sum(seen.track_name(e.args.name) != (e.args.name or "") for e in named)
        )
    found.add("dates", "events", int(seen.base_us > 0))
    for text in _texts(report):
        found.add("facts about the machine", "the trace", len(_ABOUT_MACHINE.findall(text)))
        found.add("details of events", "events", len(_DETAILS.findall(text)))
        count_in(text, "events", found)
    return found.leaks()


# What surrounds events, or is in them, and is not read here.
_ABOUT_MACHINE = re.compile(
    r'"(?:traceName|hostname|baseTimeNanoseconds|trace_id|cupti_version|host_name|user)"\s*:'
)
_DETAILS = re.compile(
    r'"(?:Input Dims|Input Strides|Concrete Inputs|Call stack|Python id|Collective name|Process Group \w+)"\s*:'
)


def _texts(report: Path) -> Iterator[str]:
    """Yield a trace's text, some of it at a time, cut between objects; escapes of JSON undone."""
    with opened(report) as file:
        waiting = b""
        while more := file.read(_TOGETHER):
            waiting += more
            whole, bracket, rest = waiting.rpartition(b"}")
            if bracket or len(waiting) > 64 * _TOGETHER:
                yield _unescaped(whole or waiting)
                waiting = rest if whole else b""
        yield _unescaped(waiting)


def _unescaped(text: bytes) -> str:
    return text.decode("utf-8", "replace").replace("\\/", "/").replace("\\\\", "\\").replace('\\"', '"')
