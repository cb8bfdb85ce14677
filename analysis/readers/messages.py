"""What Kineto writes into kernels that communicate: the collective, its process group, and how much it carries.

The names of the arguments are those of PyTorch's torch/csrc/distributed/c10d/ParamCommsUtils.hpp, and of
libkineto's output_json.cpp before it: elements and their type; bytes are their product.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from ..trace import Int32s, Int64s, Messages
from .chrome_events import Args

#: Bytes of an element by the name of its type: c10::ScalarType's, and PyTorch's own spelling of it.
ELEMENT_BYTES = {
    "byte": 1,
    "char": 1,
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "short": 2,
    "int16": 2,
    "uint16": 2,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "int": 4,
    "int32": 4,
    "uint32": 4,
    "float": 4,
    "float32": 4,
    "long": 8,
    "int64": 8,
    "uint64": 8,
    "double": 8,
    "float64": 8,
    "complexhalf": 4,
    "complexfloat": 8,
    "complexdouble": 16,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2fnuz": 1,
    "float8_e4m3fnuz": 1,
    "float8_e8m0fnu": 1,
}
SIZES = ("ranks", "sent", "received")
#: More than any collective carries: a count beyond it is damaged.
_MOST = 1 << 48


class Message(NamedTuple):
    """One kernel's: `ranks` is 0, and bytes are -1, where the trace does not say."""

    collective: str
    group: str
    ranks: int
    sent: int
    received: int


def message_of(args: Args) -> Message:
    """Read a kernel's arguments."""
    size = ELEMENT_BYTES.get(str(args.dtype).lower(), 0)
    ranks = "" if args.group_ranks is None else args.group_ranks  # a list, or the text of one
    listed = (ranks if isinstance(ranks, str) else json.dumps(ranks)).replace(" ", "")
    group = " ".join(str(part) for part in (args.group, listed) if part not in (None, ""))
    return Message(
        collective=str(args.collective),
        group=group,
        ranks=max(_count(args.group_size), 0),
        sent=_bytes(args.sent, size),
        received=_bytes(args.received, size),
    )


def messages_of(work: Int64s, launch: Int32s, **columns: Int64s) -> Messages | None:
    """Return the messages by launch; `work` are rows of `launch`, the launch of each piece of work.

    Those of work without a launch are left out, and of several of one launch the first is kept.
    """
    launches, first = np.unique(launch[work].astype(np.int64), return_index=True)
    has_launch = launches >= 0
    rows = first[has_launch]
    if not len(rows):
        return None
    collective, group = (columns[key][rows].astype(np.int32) for key in ("collective", "group"))
    ranks, sent, received = (columns[key][rows] for key in SIZES)
    unknown = np.full(len(rows), -1, np.int64)
    return Messages(launches[has_launch], collective, group, ranks, sent, received, root_or_peer=unknown)


def _count(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)  # PyTorch's own annotation of CUDA graphs writes all arguments as text
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST
    return value if is_count else -1


def _bytes(elements: Any, size: int) -> int:
    count = _count(elements)
    return count * size if size and count >= 0 else -1
