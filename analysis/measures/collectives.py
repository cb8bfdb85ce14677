"""Which collective each kernel that communicates is of, in which process group, and how many bytes it carries.

What a trace says of the kernel comes first, then PyTorch's range around its launch (`nccl:all_to_all`), then the
kernel's name: NCCL's `SendRecv` kernel serves all_to_all and gathering, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..attribution.nesting import Nesting
from ..support.small_numbers import distinct
from ..trace import Columns, Int32s, Int64s, Trace

OTHER = "other"
SEND_RECV = "send/recv"
#: Collectives, and what names of their kernels and PyTorch's names for them contain; the first that matches.
_PATTERNS = (
    ("all_reduce", r"all_?reduce|barrier"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?(?:to|2)_?all|a2a|dispatch|combine"),
    ("broadcast", r"broadcast|bcast"),
    (SEND_RECV, r"send|recv"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)
COLLECTIVES = (*(name for name, _ in _PATTERNS), OTHER)

#: What of its bytes a collective moves over each GPU's link, among n ranks: the factors of "bus bandwidth" in
#: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, of all_to_all in that repository's
#: src/alltoall.cu. Bytes are those of the whole buffer: the larger of what a rank puts in and gets out.
_ALL_BUT_OWN = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
_WHOLE = frozenset(("broadcast", "reduce", SEND_RECV))

_OF_PYTORCH = re.compile(r"nccl:(\w+)")
_NO_RANGE = -1
_LISTED = re.compile(r"\[(\d+(?:,\d+)*)\]$")


@dataclass(frozen=True, slots=True)
class Collectives(Columns):
    """Columns by kernel: its collective (a position in COLLECTIVES), group, and bytes.

    `group` is a position in `Trace.names`, `ranks` how many it has, `message_bytes` the size of the whole buffer,
    `bus_bytes` the part that each GPU's link carries, and `root_or_peer` a rank of the group; -1, 0, -1, NaN, -1
    where the report does not say.
    """

    collective: Int32s
    group: Int32s
    ranks: Int64s
    message_bytes: Int64s
    bus_bytes: NDArray[np.float64]
    root_or_peer: Int64s


def collectives(trace: Trace, kernels: Int64s) -> Collectives:
    """Return what is known of these kernels, positions in `Work`, all of which communicate."""
    launch = trace.work.launch[kernels]
    collective = _by_name(trace, trace.work.name_id[kernels])
    around = _around(trace, launch)
    in_range = around != _NO_RANGE
    collective[in_range] = _by_name(trace, around[in_range])
    group, ranks = np.full(len(kernels), -1, np.int32), np.zeros(len(kernels), np.int64)
    size, root_or_peer = np.full((2, len(kernels)), -1, np.int64)
    if trace.messages is not None:
        messages = trace.messages
        place = np.minimum(np.searchsorted(messages.launch, launch), len(messages) - 1)
        rows = np.flatnonzero(messages.launch[place] == launch)
        place = place[rows]
        collective[rows] = _by_name(trace, messages.collective[place])
        group[rows], ranks[rows] = messages.group[place], messages.ranks[place]
        size[rows] = np.maximum(messages.sent_bytes[place], messages.received_bytes[place])
        root_or_peer[rows] = messages.root_or_peer[place]
    factor, pairs = cache(bus_factor), zip(collective.tolist(), ranks.tolist(), strict=True)
    factors = np.array([factor(COLLECTIVES[kind], count) for kind, count in pairs], np.float64)
    bus_bytes = np.where(size >= 0, size, np.nan) * factors
    return Collectives(collective, group, ranks, size, bus_bytes, root_or_peer)


def named(text: str) -> str:
    """Return the collective that a name is of, or OTHER."""
    head = re.split(r"[(<]", text, maxsplit=1)[0].lower()
    return next((name for name, pattern in _PATTERNS if re.search(pattern, head)), OTHER)


def bus_factor(collective: str, ranks: int) -> float:
    """Return which part of a collective's bytes each GPU's link carries; NaN where that is not defined."""
    if collective in _WHOLE:
        return 1.0
    if ranks < 1 or not (collective == "all_reduce" or collective in _ALL_BUT_OWN):
        return float("nan")
    return (ranks - 1) / ranks * (2 if collective == "all_reduce" else 1)


def listed_ranks(group: str) -> int:
    """Return how many ranks a group's name lists in full, as `0 [0,1]` does; 0 where it lists none or not all."""
    ranks = _LISTED.search(group)
    return ranks[1].count(",") + 1 if ranks else 0


def _by_name(trace: Trace, name_id: Int32s) -> Int32s:
    distinct, back = np.unique(name_id, return_inverse=True)
    numbers = [COLLECTIVES.index(named(trace.names[name])) for name in distinct.tolist()]
    return np.array(numbers, np.int32)[back.reshape(-1)]


def _around(trace: Trace, launch: Int32s) -> Int32s:
    """Return the name of PyTorch's innermost range around each launch of NCCL, or -1."""
    names = np.full(len(launch), _NO_RANGE, np.int32)
    ids: Iterable[int] = distinct(trace.ranges.name_id).tolist()
    of_pytorch = [name for name in ids if _OF_PYTORCH.match(trace.names[name])]
    ranges = trace.ranges.take(np.isin(trace.ranges.name_id, of_pytorch))
    rows = np.flatnonzero(launch >= 0)
    if len(ranges) and len(rows):
        calls, nesting = trace.launches.take(launch[rows]), Nesting(ranges)
        node = nesting.containing(calls.thread, calls.start_ns, calls.end_ns)
        inside = node >= 0
        names[rows[inside]] = ranges.name_id[nesting.forest.range[node[inside]]]
    return names
