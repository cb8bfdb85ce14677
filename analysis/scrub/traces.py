"""A copy of a PyTorch trace: only the parts that the analysis reads, and in texts only public words.

Of each event that the reader uses, the part that it uses is copied. Everything else, such as shapes, inputs and
what surrounds the events, is left out. Of stacks, only calls of modules and optimizers' updates are copied, by the
words of their classes: other frames hold paths, which name people and programs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from ..errors import NotAReport
from ..readers.chrome_columns import (
    CATEGORIES,
    FORWARD_TO_BACKWARD,
    LAUNCHES,
    MEMORY_EVENT,
    OVERHEAD,
    RANGES,
    SYNCS,
    WORK,
    three_sizes,
)
from ..readers.chrome_events import LARGEST_NS, Args, Envelope, Event, TraceFile
from ..readers.safety import identity, require_unchanged
from ..readers.stack_frames import FRAME, MODULE, UPDATE, kind_of, range_name
from ..support.files import write_lines
from ..support.progress import advance
from .allowed import Role
from .copying import LONGEST_CAPTURE_NS, Unknown
from .names import Names, thread_name
from .words import words_of

ROLES = {
    WORK: Role.KERNEL,
    **dict.fromkeys((LAUNCHES, OVERHEAD, SYNCS), Role.CALL),
    RANGES: Role.BARE_RANGE,
}
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
_ENVELOPE = ("traceEvents", "schemaVersion", "deviceProperties", "computeProperties", "distributedInfo")
_ENCODE = msgspec.json.Encoder().encode
# The sizes of inputs are read, and stay behind: they tell the sizes of a model.
_SIZES = "Input Dims"
_ARGS = {field.encode_name for field in msgspec.structs.fields(Args)} - {_SIZES}
_EVENT = {field.encode_name for field in msgspec.structs.fields(Event)}


class SharedTrace:
    """What may be shared of a PyTorch trace, with names by `names`."""

    def __init__(self, report: Path, *, keep: Sequence[str] = (), of_copy: bool = False) -> None:
        of_host = _FILE_OF_HOST.fullmatch(report.name)
        own_words = words_of([of_host[1]]) if of_host else frozenset()
        self.report, self.before, self.events = report, identity(report), 0
        self.names = Names(own_words=own_words, keep=keep, of_copy=of_copy)
        # The microseconds to subtract from all times: zero, unless they count from 1970.
        written = (
            bytes(event.ts).strip(b'" ')
            for events in TraceFile(report).blocks()
            for event in events
            if _is_read(event)
        )
        numbers = [int(text.partition(b".")[0]) for text in written if re.fullmatch(rb"\d{1,18}(?:\.\d*)?", text)]
        first_us = min((number for number in numbers if number), default=0)
        self.base_us = first_us if first_us * 1000 > LONGEST_CAPTURE_NS else 0

    def write(self, target: Path) -> int:
        """Write the copy and return how many events it has; raise NotAReport if the report changes meanwhile."""
        write_lines(self._lines(), target)
        return self.events

    def _lines(self) -> Iterator[str]:
        file = TraceFile(self.report)
        yield '{"traceEvents":[\n'
        for events in self._expected(file.blocks()):
            advance(len(events))
            encoded = [_ENCODE(shared).decode() for event in events if (shared := self.event(event))]
            if encoded:
                yield (",\n" if self.events else "") + ",\n".join(encoded)
                self.events += len(encoded)
        around = _ENCODE(self.around(file.envelope)).decode()
        yield f"\n],{around[1:]}\n" if len(around) > 2 else "\n]}\n"
        require_unchanged(self.report, self.before)

    def _expected(self, blocks: Iterable[list[Event]]) -> Iterator[list[Event]]:
        """Yield blocks of events, of which the names are classified all at once."""
        for events in blocks:
            read = [event for event in events if event.ph == "X" and event.cat in CATEGORIES]
            self.names.expect((ROLES[CATEGORIES[event.cat][0]], event.name) for event in read)
            yield events

    def event(self, event: Event) -> dict[str, Any] | None:
        """Return the shareable part of an event, or None."""
        if event.ph == "M" and event.name in _NAMING:
            named = self.track_name(event.args.name)
            return {"ph": "M", "name": event.name, **self.place(event), "args": {"name": named}}
        times = {"ts": self.time(event.ts), "dur": self.time(event.dur, moved=False)}
        written_times = {key: value for key, value in times.items() if value is not None}
        if event.cat == FORWARD_TO_BACKWARD and event.ph in ("s", "f") and isinstance(event.id, int):
            return {"ph": event.ph, "cat": event.cat, "id": event.id, **self.place(event), **written_times}
        is_allocation = _is_allocation(event)
        if not (_is_read(event) or is_allocation):
            return None
        name = MEMORY_EVENT
        if event.cat == FRAME:
            name = self.frame(event.name)
        elif not is_allocation:
            name = self.names.shared(ROLES[CATEGORIES[event.cat][0]], event.name) or ""
        args = {key: self.detail(value) for key, value in _details(event)}
        kind = {"ph": "i"} if is_allocation else {"ph": "X", "cat": event.cat}
        return {**kind, "name": name, **self.place(event), **written_times, "args": args}

    def frame(self, name: str) -> str:
        """Return the shareable name of a module's call, or of an update: no path, only public words."""
        if kind_of(name) == UPDATE:
            return f"torch/optim/{self.names.in_words(range_name(name).split('#')[1].split('.')[0])}.py(0): step"
        class_name, _, number = name.removeprefix(MODULE).rpartition("_")
        return f"{MODULE}{self.names.in_words(class_name)}_{number if number.isdecimal() else 0}"

    def detail(self, value: Any) -> Any:
        """Return the shareable part of one of an event's arguments: numbers and public words."""
        if isinstance(value, list):
            return [self.detail(item) for item in value]
        if isinstance(value, str):
            return value if value.isdecimal() else self.names.in_words(value)
        return value if isinstance(value, int | float) else None

    def place(self, event: Event) -> dict[str, Any]:
        """Return the process and the thread, or the GPU and the stream: a word only if it is a common one."""
        places = {key: value for key, value in (("pid", event.pid), ("tid", event.tid)) if value is not None}
        return {
            key: self.names.in_words(value)
            if isinstance(value, str) and not _PUBLIC_TRACKS.fullmatch(value)
            else value
            for key, value in places.items()
        }

    def track_name(self, name: Any) -> str:
        """Return the shareable part of a thread's or a process's name."""
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
        rank_facts = {key: facts[key] for key in ("rank", "world_size") if isinstance(facts.get(key), int)}
        if str(facts.get("backend")).lower() in _BACKENDS:
            rank_facts["backend"] = facts["backend"]
        shared: dict[str, Any] = {"schemaVersion": envelope.schema} if isinstance(envelope.schema, int) else {}
        shared |= {"distributedInfo": rank_facts} if rank_facts else {}
        for key, devices in (("deviceProperties", envelope.devices), ("computeProperties", envelope.old_devices)):
            if isinstance(devices, list):
                shared[key] = [self.device(device) for device in devices if isinstance(device, dict)]
        return shared

    def device(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of a GPU's model."""
        numbers = {key: facts[key] for key in _DEVICE_FACTS if isinstance(facts.get(key), int)}
        name = facts.get("name")
        return {**numbers, **({"name": self.names.gpu(name)} if isinstance(name, str) else {})}

    def unknown(self) -> Iterator[Unknown]:
        """Yield the possibly private parts of a trace; a shared copy has none."""
        yield Unknown("times", "(they are dates)", int(self.base_us > 0))
        counts: Counter[tuple[str, str]] = Counter()
        file = TraceFile(self.report, decoder=msgspec.json.Decoder(list[dict[str, Any]]))
        for events in file.blocks():
            advance(len(events))
            for event in events:
                args = event.get("args")
                counts.update(("events", f'"{key}"') for key in event.keys() - _EVENT)
                counts.update(
                    ("args", f'"{key}"') for key in (args.keys() - _ARGS if isinstance(args, dict) else ())
                )
        for events in self._expected(TraceFile(self.report).blocks()):
            for event in events:
                shared = self.event(event)
                if shared is None:
                    counts["events that are not read", event.cat] += 1
                    continue
                names = {"names": (event.name, shared.get("name", ""))}
                if event.ph == "M":
                    names = {"names of threads": (event.args.name or "", shared["args"]["name"])}
                has_details = event.ph == "X" or _is_allocation(event)
                details = _details(event) if has_details else ()
                names |= {key: (value, shared["args"][key]) for key, value in details}
                names |= {key: (getattr(event, key), value) for key, value in self.place(event).items()}
                counts.update((where, str(old)) for where, (old, new) in names.items() if old != new)
        yield from (Unknown(where, text, number) for (where, text), number in counts.items())
        yield from (Unknown("the trace", f'"{key}"', 1) for key in file.keys_around if key not in _ENVELOPE)


def _is_read(event: Event) -> bool:
    return event.ph == "X" and (event.cat in CATEGORIES or (event.cat == FRAME and kind_of(event.name) > 0))


def _details(event: Event) -> Iterator[tuple[str, Any]]:
    """Yield an event's arguments that are copied."""
    sizes = three_sizes(bytes(event.args.grid))
    grid = list(sizes) if any(sizes) else None
    for key, value in msgspec.to_builtins(msgspec.structs.replace(event.args, dims=None, grid=grid)).items():
        if value is not None:
            yield key, value


def _is_allocation(event: Event) -> bool:
    return event.ph != "X" and event.name == MEMORY_EVENT
