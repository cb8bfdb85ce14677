"""What CUDA's calls waited for, and which events they recorded, by Kineto's events `cuda_sync` and `cuda_event`.

They are in a trace that was recorded with `_ExperimentalConfig(enable_cuda_sync_events=True)`. A `cuda_sync` has
the correlation id of the call that waits, or that lets a stream wait, and that stream. If it waits for an event,
Kineto adds which call recorded the event, and on which stream (libkineto's CuptiActivity.h). With CUDA 12.9 and
newer it does not know these (pytorch/pytorch#195068), and PyTorch's Cuspy does not write the stream. Since 2026
Kineto can write a `cuda_event` for each recorded event as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..trace import Columns, Int64s
from .chrome_columns import Table

#: CUPTI's stream where the whole device is waited for; newer Kineto writes -1.
NO_STREAM = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Synchronized(Columns):
    """Calls that wait, or that record events, by their correlation ids; event 0 means no event, stream -1 all.

    `kind` is of `chrome_columns.SYNC_TYPES`, and 0 where an event was recorded.
    """

    correlation: Int64s
    stream: Int64s
    event: Int64s
    kind: Int64s
    device: Int64s
    context: Int64s
    start_ns: Int64s
    end_ns: Int64s


def waits_of(table: Table) -> Synchronized:
    """Return the calls that waited, or that let a stream wait."""
    rows = _rows(table)
    return rows.take(rows.kind > 0)


def records_of(table: Table) -> Synchronized:
    """Return the calls that recorded an event, each once, as far as the trace tells on which stream."""
    rows = _rows(table)
    listed = rows.take(rows.kind == 0)
    waited_for = replace(
        rows,
        correlation=table["record"],
        stream=table["record_stream"],
        kind=np.zeros(len(rows), np.int64),
    )
    is_known = (rows.kind > 0) & (waited_for.correlation >= 0) & (waited_for.stream >= 0)
    records = Synchronized.joined([listed, waited_for.take(is_known)])
    _, first = np.unique(records.correlation, return_index=True)
    return records.take(np.sort(first))


def _rows(table: Table) -> Synchronized:
    stream = table["stream"]
    return Synchronized(
        table["correlation"],
        np.where(stream == NO_STREAM, -1, stream),
        table["event"],
        table["kind"],
        table["device"],
        table["context"],
        table["start"],
        table["end"],
    )
