"""What NCCL's own NVTX ranges carry, as nsys exports it: communicator, ranks, bytes, and the root or the peer.

NCCL registers a schema for each kind of payload (NVTX_PAYLOAD_SCHEMA_ENTRIES: the fields' names, types and
offsets), and NVTX_EVENTS.binaryData has a header and the payload. A kernel is of the operations that its thread
called since its last launch of NCCL's: of one alone, or of several of one kind and communicator that were
grouped into it.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..trace import KERNEL, Launches, Messages, Work, fitting

ENTRIES_TABLE = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
# The domain's id, the schema's, and the sizes of the payload and of all of it; two fields are reserved.
_HEADER = struct.Struct("<I4xI4xQQ")
# NVTX's types of numbers (nvToolsExtPayload.h).
_FORMATS = {
    type_: f"<{form}"
    for form, types in {"i": (5, 15), "I": (6, 16), "q": (7, 9, 17), "Q": (8, 10, 18, 22)}.items()
    for type_ in types
}
COMMUNICATOR = "NCCL communicator ID"
BYTES = "Message size [bytes]"
RANKS = "No. of ranks"
ROOT = "Root"
PEER = "Peer rank"
MOST_BYTES = 1 << 48
MOST_RANKS = 1 << 24
EXCHANGES = frozenset({"ncclsend", "ncclrecv"})
#: Operations whose bytes are those of one rank's share.
SHARES = ("ncclallgather", "ncclreducescatter", "ncclalltoall", "ncclgather", "ncclscatter")
UNDECIDED = "The bytes of {} of NCCL's kernels are left out: several kernels were launched for several operations."
UNREADABLE = "The payloads of {} of NCCL's ranges cannot be read and are left out."


class Field(NamedTuple):
    """A field of a schema: the schema's domain and id, and its name, type and offset."""

    domain: int
    schema: int
    name: str
    type: int
    offset: int


class PayloadEvent(NamedTuple):
    """A range with a payload; `thread` is nsys's global id."""

    start_ns: int
    thread: int
    name: str
    payload: bytes


class _Operation(NamedTuple):
    name: str
    communicator: int
    bytes: int
    root_or_peer: int


class Payloads:
    """Reads payloads by the schemas' fields; schemas that processes describe differently are left out."""

    def __init__(self, fields: Iterable[Field]) -> None:
        #: By a schema's domain and id, the format and the offset of each field.
        self._schemas: dict[tuple[int, int], dict[str, tuple[str, int]]] = defaultdict(dict)
        differing = set()
        for entry in fields:
            key = (entry.domain, entry.schema)
            place = (_FORMATS.get(entry.type, ""), entry.offset)
            if self._schemas[key].setdefault(entry.name, place) != place:
                differing.add(key)
        for key in differing:
            del self._schemas[key]

    def numbers(self, payload: bytes) -> dict[str, int] | None:
        """Return the numbers of a payload by the names of its fields; None where no schema describes it."""
        if len(payload) < _HEADER.size:
            return None
        domain, schema, size, _ = _HEADER.unpack_from(payload)
        places = self._schemas.get((domain, schema))
        content = payload[_HEADER.size :]
        if places is None or size > len(content):
            return None
        return {
            name: struct.unpack_from(form, content, offset)[0]
            for name, (form, offset) in places.items()
            if form and 0 <= offset <= len(content) - struct.calcsize(form)
        }


def messages_of(
    fields: Sequence[Field],
    events: Iterable[PayloadEvent],
    work: Work,
    launches: Launches,
    names: Sequence[str],
    number: tuple[Callable[[int], int], Callable[[str], int]],
) -> tuple[Messages | None, list[str]]:
    """Return the messages of NCCL's kernels, by launch, and notes; `number` numbers threads and names."""
    thread_number, name_number = number
    is_nccl = fitting(names, lambda name: name.lower().startswith("nccl"))
    rows = np.unique(work.launch[(work.kind == KERNEL) & is_nccl[work.name_id]])
    rows = rows[rows >= 0]
    payloads = Payloads(fields)
    ranks_of = dict[int, int]()
    unreadable = 0
    calls: dict[int, list[tuple[int, int, _Operation | int]]] = defaultdict(list)
    for row in rows.tolist():
        calls[int(launches.thread[row])].append((int(launches.start_ns[row]), 1, row))
    for event in events:
        numbers = payloads.numbers(event.payload)
        if numbers is None:
            unreadable += 1
        elif 0 < numbers.get(RANKS, 0) < MOST_RANKS:
            ranks_of[numbers.get(COMMUNICATOR, 0)] = numbers[RANKS]
        elif 0 <= numbers.get(BYTES, -1) < MOST_BYTES:
            root_or_peer = numbers.get(ROOT, numbers.get(PEER, -1))
            operation = _Operation(event.name, numbers.get(COMMUNICATOR, 0), numbers[BYTES], root_or_peer)
            calls[thread_number(event.thread)].append((event.start_ns, 0, operation))
    notes = [UNREADABLE.format(unreadable)] if unreadable else []

    carried: list[tuple[int, ...]] = []
    undecided = 0
    for of_thread in calls.values():
        for operations, launched in _batches(sorted(of_thread, key=lambda call: call[:2])):
            pairs = _pairs(operations, launched)
            undecided += len(launched) if operations and not pairs else 0
            for row, of_kernel in pairs:
                first = of_kernel[0]
                ranks = ranks_of.get(of_kernel[0].communicator, 0)
                group = f"communicator {first.communicator:#x}"
                numbers_of = name_number(first.name), name_number(group), ranks
                # -1 where the operations name no rank, several, or none of the group's.
                named = first.root_or_peer if len({call.root_or_peer for call in of_kernel}) == 1 else -1
                rank = named if 0 <= named < (ranks or MOST_RANKS) else -1
                carried.append((row, *numbers_of, *_sizes(of_kernel, ranks), rank))
    notes += [UNDECIDED.format(undecided)] if undecided else []
    if not carried:
        return None, notes
    launch, name, group_name, *figures = np.array(sorted(carried), np.int64).T
    return Messages(launch, name.astype(np.int32), group_name.astype(np.int32), *figures), notes


def _batches(calls: Iterable[tuple[int, int, _Operation | int]]) -> Iterator[tuple[list[_Operation], list[int]]]:
    """Yield operations that a thread called in a row, and the kernels that were launched before its next one."""
    operations = list[_Operation]()
    launched = list[int]()
    for _, _, call in calls:
        if isinstance(call, int):
            launched.append(call)
            continue
        if launched:
            yield operations, launched
            operations = []
            launched = []
        operations.append(call)
    yield operations, launched


def _pairs(operations: list[_Operation], launched: list[int]) -> list[tuple[int, list[_Operation]]]:
    """Return each launch with its operations; launches whose operations are unknown are left out."""
    if len(launched) == len(operations):
        return [(row, [operation]) for row, operation in zip(launched, operations, strict=True)]
    is_exchange = {operation.name.lower() for operation in operations} <= EXCHANGES
    kinds = {(operation.communicator, is_exchange or operation.name) for operation in operations}
    if len(launched) == len(kinds) == 1:
        return [(launched[0], operations)]
    return []


def _sizes(operations: Sequence[_Operation], ranks: int) -> tuple[int, int]:
    """Return how many bytes are sent and received, -1 where that is not known."""
    total = sum(operation.bytes for operation in operations)
    name = operations[0].name.lower()
    if name in EXCHANGES:
        sent = sum(operation.bytes for operation in operations if operation.name.lower() == "ncclsend")
        return sent, total - sent
    if name in SHARES:  # what is whole has a share of each rank
        if not ranks:
            return (-1, -1)
        return (total, total * ranks)
    return total, total
