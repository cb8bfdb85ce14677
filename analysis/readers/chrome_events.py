"""The events of a Chrome trace, as PyTorch's profiler writes it: read in blocks, so that any size fits in memory.

A trace is one JSON object, `{"schemaVersion": 1, …, "traceEvents": [{…}, …], "traceName": …}`, perhaps gzipped.
The array is cut between two events every few megabytes and each piece is decoded by itself; what surrounds
the array is decoded last, so a trace that breaks off is noticed. Kineto's traces of 2021 are the bare array.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import NotAReport
from ..support import arrow
from ..trace import Int64s
from . import GZIP_MAGIC, SQLITE_MAGIC
from .safety import opened_file, require_within

SEPARATORS = b" \t\r\n,"
_NEWLINE, _POINT = b"\n."
# So many that decoded events stay in the processor's cache: blocks of 8 MiB took a third longer.
BLOCK_BYTES = 1 << 20
# No single event, and nothing around the events, is larger in a sound trace.
LARGEST_BYTES = 64 << 20
# Beyond any clock in nanoseconds, with room to add two of them.
LARGEST_NS = 1 << 62

T = TypeVar("T")


class Args(msgspec.Struct, gc=False, frozen=True):
    """What is read of an event's `args`, in Kineto's order of keys, in which they are found soonest."""

    external: Any = msgspec.field(default=None, name="External id")
    device: Any = None
    stream: Any = None
    correlation: Any = None
    grid: msgspec.Raw = msgspec.Raw()  # decoded once where many are equal
    # Of an operator, with record_shapes=True; decoded only where of use.
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    strides: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Strides")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    forward: Any = msgspec.field(default=None, name="Fwd thread id")
    name: Any = None  # of a process or thread, where the event names one
    old_external: Any = msgspec.field(default=None, name="external id")
    collective: Any = msgspec.field(default=None, name="Collective name")
    sent: Any = msgspec.field(default=None, name="In msg nelems")
    received: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    group_size: Any = msgspec.field(default=None, name="Group size")
    # For a CUDA graph's work: its node, and PyTorch's own annotation of graphs (2.15).
    graph_node: Any = msgspec.field(default=None, name="graph node id")
    graph: Any = msgspec.field(default=None, name="graph id")
    module: Any = msgspec.field(default=None, name="module_fqn")
    phase: Any = msgspec.field(default=None, name="autograd_phase")
    original_stream: Any = None
    # Of a wait: the event, the call that recorded it, and on which stream; and of an event that is recorded.
    context: Any = None
    waited_event: Any = msgspec.field(default=None, name="wait_on_cuda_event_id")
    record: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    record_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    recorded_event: Any = msgspec.field(default=None, name="event_id")
    copied: Any = msgspec.field(default=None, name="bytes")  # of a copy
    task: Any = msgspec.field(default=None, name="Task Type")  # of an Ascend NPU's work, which has no category
    # Of an allocation, with profile_memory=True.
    bytes: Any = msgspec.field(default=None, name="Bytes")
    address: Any = msgspec.field(default=None, name="Addr")
    total_bytes: Any = msgspec.field(default=None, name="Total Allocated")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    memory_device: Any = msgspec.field(default=None, name="Device Id")


class Event(msgspec.Struct, gc=False):
    """One event; `ts` and `dur` are microseconds, kept as written, for a float cannot hold them."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    id: Any = None  # of a flow
    args: Args = Args()


class Envelope(msgspec.Struct):
    """What surrounds the events."""

    events: list[Any] = msgspec.field(name="traceEvents")
    schema: Any = msgspec.field(default=None, name="schemaVersion")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    old_devices: Any = msgspec.field(default=None, name="computeProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    base_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")  # to add to times


# A fixed text comes first: a search that begins by looking back takes forty times as long.
_BEGINS = re.compile(rb'"traceEvents"(?<!\\"traceEvents")\s*:\s*\[')
_BARE = b"["
_EVENTS = msgspec.json.Decoder(list[Event])
_ENVELOPE = msgspec.json.Decoder(Envelope)


class TraceFile:
    """A trace on disk, read `block_bytes` at a time; `envelope` is known once all blocks have been read.

    `decoder` makes events of their JSON.
    """

    def __init__(
        self, path: Path, *, block_bytes: int = BLOCK_BYTES, decoder: msgspec.json.Decoder[Any] = _EVENTS
    ) -> None:
        self.path = path
        self.block_bytes = block_bytes
        self.decoder = decoder
        self.envelope = Envelope(events=[])
        self.bytes_read = 0

    def blocks(self) -> Iterator[list[Any]]:
        """Yield the events in the file's order, some thousands at a time.

        Raises NotAReport for a file that is not a trace, and for one that is damaged or truncated.
        """
        try:
            with opened(self.path) as file:
                yield from self._blocks(file)
        except EOFError:
            raise self._broken_off() from None
        except (OSError, zlib.error) as error:
            raise NotAReport(f"{self.path} is damaged: {error}. Copy it again.") from error

    def _blocks(self, file: BinaryIO) -> Iterator[list[Any]]:
        header, waiting = self._header(file)
        while True:
            events, end = _hopefully_whole(self.decoder, waiting)
            if events is None:
                end, is_last = _cut_of(waiting)
                if is_last:
                    break
                events = self._decoded(self.decoder, b"[" + waiting[:end] + b"]") if end else []
            yield events
            # Twice as much where no event ends, or a long one would be looked through again and again.
            more = self._more(file, self.block_bytes if end else max(self.block_bytes, len(waiting)))
            if not more and not end:
                raise self._broken_off()
            waiting = (waiting[end:] + more).lstrip(SEPARATORS)
            if len(waiting) > LARGEST_BYTES:
                raise NotAReport(f"{self.path} is damaged: one of its events has no end. Copy or record it again.")
        yield self._decoded(self.decoder, b"[" + waiting[:end].rstrip(SEPARATORS) + b"]")
        after = self._more(file, LARGEST_BYTES)
        if header == _BARE:
            if (waiting[end:] + after)[1:].strip():
                raise NotAReport(f"{self.path} is damaged: more follows its events. Copy or record it again.")
            return
        if len(after) == LARGEST_BYTES:
            too_much = f"more than {LARGEST_BYTES >> 20} MiB follow its events. Copy or record it again."
            raise NotAReport(f"{self.path} is damaged: {too_much}")
        around = header + waiting[end:] + after
        self.envelope = self._decoded(_ENVELOPE, around)
        if len(_BEGINS.findall(around)) > 1 or self.envelope.events:
            raise NotAReport(
                f"{self.path} names traceEvents more than once, and programs differ in which of them they read. "
                "Record it again, or take one out."
            )

    def _more(self, file: BinaryIO, size: int) -> bytes:
        """Read on; raises NotAReport if the file unpacks to more than it may."""
        piece = file.read(size)
        self.bytes_read += len(piece)
        require_within(self.path, self.bytes_read)
        return piece

    def _header(self, file: BinaryIO) -> tuple[bytes, bytes]:
        """Return the text before the first event, and the text that was read after it."""
        head = b""
        # Twice as much each time, for it is searched from its beginning.
        while len(head) < LARGEST_BYTES and (more := self._more(file, max(self.block_bytes, len(head)))):
            head += more
            if (bare := head.lstrip()).startswith(_BARE):
                return _BARE, bare[len(_BARE) :]
            if not head.lstrip().startswith(b"{"):
                break
            if begins := _BEGINS.search(head):
                return head[: begins.end()], head[begins.end() :]
        if head.startswith(SQLITE_MAGIC):
            raise NotAReport(f"{self.path} is a packed SQLite export. Unpack it first: gunzip -k {self.path.name}")
        where = f" in its first {LARGEST_BYTES >> 20} MiB" if len(head) >= LARGEST_BYTES else ""
        raise NotAReport(
            f"{self.path} is not a trace of PyTorch's profiler: it has no traceEvents{where}. "
            "Of nsys's exports, the SQLite one is read: nsys export --type sqlite"
        )

    def _decoded(self, decoder: msgspec.json.Decoder[T], text: bytes) -> T:
        try:
            return _lenient(decoder, text)
        except msgspec.ValidationError as error:
            raise NotAReport(f"{self.path} is not a trace of PyTorch's profiler: {error}.") from error
        except (msgspec.DecodeError, RecursionError) as error:
            if "truncated" in str(error):
                raise self._broken_off() from error
            raise NotAReport(f"{self.path} is damaged: {error}. Copy or record it again.") from error

    def _broken_off(self) -> NotAReport:
        return NotAReport(
            f"{self.path} is truncated: its recording or copy did not finish. Copy or record it again."
        )


def nanoseconds(numbers: Sequence[msgspec.Raw]) -> Int64s:
    """Turn microseconds, as written in JSON (a number, or a string of one), into whole nanoseconds, exactly.

    A float64 cannot: microseconds since 1970 need all its digits. What is finer than a nanosecond is rounded.
    Raises ValueError for other text, or a time beyond any clock.
    """
    if (written_out := _of_three_digits(numbers)) is not None:
        return written_out
    texts = pc.ascii_trim(pa.array(map(bytes, numbers), pa.binary()).cast(pa.string()), '"')
    try:
        # As many digits as leave room for the product.
        exact = pc.multiply(pc.cast(texts, pa.decimal128(22, 3)), pa.scalar(1000, pa.int32()))
        result = np.asarray(pc.cast(exact, pa.int64()), np.int64)
    except pa.ArrowInvalid:
        return np.array([_rounded(text) for text in texts.to_pylist()], np.int64)
    if (np.abs(result) >= LARGEST_NS).any():
        raise ValueError("a time beyond any clock")
    return result


def _of_three_digits(numbers: Sequence[msgspec.Raw]) -> Int64s | None:
    """Read times that all have three digits after the point, as kineto writes them; None for any others."""
    data = np.frombuffer(b"\n".join([*numbers, b""]), np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    points = np.flatnonzero(data == _POINT)
    if len(ends) != len(points) or not np.array_equal(points + 4, ends):
        return None
    digits = data[(data != _NEWLINE) & (data != _POINT)]
    offsets = np.append(0, ends - 2 * np.arange(len(ends)) - 1).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    try:
        result = arrow.to_numpy(pa.Array.from_buffers(pa.string(), len(ends), buffers).cast(pa.int64()))
    except pa.ArrowInvalid:
        return None
    if (np.abs(result) < LARGEST_NS).all():
        return result
    return None


def _rounded(text: str) -> int:
    try:
        value = Decimal(text)
        if -LARGEST_NS // 1000 < value < LARGEST_NS // 1000:
            return int((value * 1000).to_integral_value())
    except InvalidOperation as error:
        raise ValueError(f"{text!r} instead of a time") from error
    raise ValueError("a time beyond any clock")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Yield an opened trace, unpacked; raises NotAReport and OSError as `opened_file` does."""
    with opened_file(path) as file:
        if file.peek(2)[:2] != GZIP_MAGIC:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked  # type: ignore[misc]


_JSON_LACKS = re.compile(rb"(?<=[:\[,\s])[-+]?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_CONTROL = bytes.maketrans(bytes(range(32)), b" " * 32)


def _lenient(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """Decode JSON, accepting what the profiler sometimes writes: nan, inf, control characters, invalid UTF-8."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
        return decoder.decode(_JSON_LACKS.sub(b"null", text))


def _hopefully_whole(decoder: msgspec.json.Decoder[Any], text: bytes) -> tuple[list[Any] | None, int]:
    """Return the events before the last `},`, and where they end; None if they are not whole events.

    In most traces that is between two events; if it is not, the text before is not valid JSON. Trying is much
    faster than counting brackets.
    """
    end = text.rfind(b"},") + 1
    if not end:
        return None, 0
    try:
        return decoder.decode(b"[" + text[:end] + b"]"), end
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, 0


_QUOTE = ord('"')
_DEPTH = np.zeros(256, np.int8)
_DEPTH[list(b"[{")] = 1
_DEPTH[list(b"]}")] = -1
_MARKS = _DEPTH != 0
_MARKS[_QUOTE] = True


def _cut_of(text: bytes) -> tuple[int, bool]:
    """Find where to cut a text that begins between two events, by brackets outside of strings.

    That is after its last whole event, or before the bracket that closes the array, which is the last cut.
    """
    # An escaped quote ends no string.
    data = np.frombuffer(text.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
    position = np.flatnonzero(_MARKS[data])
    mark = data[position]
    quote = mark == _QUOTE
    inside_string = np.cumsum(quote) % 2 == 1
    step = np.where(inside_string, 0, _DEPTH[mark])
    depth = np.cumsum(step)
    if (closes := np.flatnonzero(depth < 0)).size:
        return int(position[closes[0]]), True
    ends = np.flatnonzero((depth == 0) & (step < 0))
    return (int(position[ends[-1]]) + 1 if ends.size else 0), False
