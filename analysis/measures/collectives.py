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
    ("all_reduce", r"all_?reduce|barrier"), ("reduce_scatter", r"reduce_?scatter"), ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all"), ("broadcast", r"broadcast|bcast"), (SEND_RECV, r"send|recv"),
    ("reduce", r"reduce"), ("gather", r"gather"), ("scatter", r"scatter"),
)  # fmt: skip
COLLECTIVES = (*(name for name, _ in _PATTERNS), OTHER)

#: What of its bytes a collective moves over each GPU's link, among n ranks: the factors of "bus bandwidth" in
#: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, of all_to_all in that repository's
#: src/alltoall.cu. Bytes are those of the whole buffer: the larger of what a rank puts in and gets out.
_ALL_BUT_OWN = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
_WHOLE = frozenset(("broadcast", "reduce", SEND_RECV))

_OF_PYTORCH = re.compile(r"nccl:(\w+)")
_NO_RANGE = -1


@dataclass(frozen=True, slots=True)
class Collectives(Columns):
    """Columns by kernel: its collective (a position in COLLECTIVES), group, and bytes.

    `group` is a position in `Trace.names`, `ranks` how many it has, `message_bytes` the size of the whole buffer,
    and `bus_bytes` what of it each GPU's link carries; -1, 0, -1 and NaN where the report does not say.
    """

    collective: Int32s
    group: Int32s
    ranks: Int64s
    message_bytes: Int64s
    bus_bytes: NDArray[np.float64]


def collectives(trace: Trace, kernels: Int64s) -> Collectives:
    """Return what is known of these kernels, positions in `Work`, all of which communicate."""
    launch = trace.work.launch[kernels]
    collective = _by_name(trace, trace.work.name_id[kernels])
    around = _around(trace, launch)
    known = around != _NO_RANGE
    collective[known] = _by_name(trace, around[known])
    group, ranks = np.full(len(kernels), -1, np.int32), np.zeros(len(kernels), np.int64)
    size = np.full(len(kernels), -1, np.int64)
    if trace.messages is not None:
        told = trace.messages
        at = np.minimum(np.searchsorted(told.launch, launch), len(told) - 1)
        said = np.flatnonzero(told.launch[at] == launch)
        at = at[said]
        collective[said] = _by_name(trace, told.collective[at])
        group[said], ranks[said] = told.group[at], told.ranks[at]
        size[said] = np.maximum(told.sent_bytes[at], told.received_bytes[at])
    return Collectives(
        collective, group, ranks, size, np.where(size >= 0, size, np.nan) * _factors(collective, ranks)
    )


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


def _factors(collective: Int32s, ranks: Int64s) -> NDArray[np.float64]:
    factor = cache(bus_factor)
    pairs = zip(collective.tolist(), ranks.tolist(), strict=True)
    return np.array([factor(COLLECTIVES[kind], count) for kind, count in pairs], np.float64)


def _by_name(trace: Trace, name_id: Int32s) -> Int32s:
    distinct, at = np.unique(name_id, return_inverse=True)
    found = [COLLECTIVES.index(named(trace.names[name])) for name in distinct.tolist()]
    return np.array(found, np.int32)[at.reshape(-1)]


def _around(trace: Trace, launch: Int32s) -> Int32s:
    """Return the name of PyTorch's innermost range around each launch of NCCL, or -1."""
    found = np.full(len(launch), _NO_RANGE, np.int32)
    of_pytorch = _ids(trace, trace.ranges.name_id)
    ranges = trace.ranges.take(np.isin(trace.ranges.name_id, of_pytorch))
    rows = np.flatnonzero(launch >= 0)
    if len(ranges) and len(rows):
        calls, nesting = trace.launches.take(launch[rows]), Nesting(ranges)
        node = nesting.containing(calls.thread, calls.start_ns, calls.end_ns)
        inside = node >= 0
        found[rows[inside]] = ranges.name_id[nesting.forest.range[node[inside]]]
    return found


def _ids(trace: Trace, name_id: Int32s) -> list[int]:
    names: Iterable[int] = distinct(name_id).tolist()
    return [name for name in names if _OF_PYTORCH.match(trace.names[name])]
