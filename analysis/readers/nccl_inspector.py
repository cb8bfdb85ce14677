"""What NCCL Inspector measured of a rank's collectives, joined to the kernels of its report.

Inspector, a profiler plugin of NCCL's, writes a JSON object a line: `coll_perf` has a collective's number in its
communicator, its bytes and its time, and `header` the communicator. Up to version 4.2 each line has a header, from
4.3 the line `dump_stats` before those of a dump has it for all (inspector_json.cc and inspector_json_reader.py in
https://github.com/NVIDIA/nccl, plugins/profiler/inspector). There is no time of day that a report has too, so the
kernels of a kind are found by their durations among the records of that kind. Records of small messages are left
out by default (NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES) and others may be dropped: their numbers tell where.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path as FilePath

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..errors import NotAReport, UsageError
from ..trace import KERNEL, Int32s, Int64s, Messages, Trace
from .chrome_events import opened
from .columns import Names
from .nccl_payloads import MOST_BYTES, MOST_RANKS
from .safety import allowed_bytes, require_within

#: Fewer kernels may fit somewhere by chance.
FEWEST = 8
ENDINGS = (".log", ".jsonl", ".log.gz", ".jsonl.gz")
JOINED = (
    "NCCL Inspector measured the bytes of {} of {} of NCCL's kernels; by its times their bus bandwidth is "
    "{:.1f} GB/s in the median."
)
UNPLACED = "NCCL Inspector's measurements are not joined to {}: {}."
NO_RECORDS = "it has no records of them"
SEVERAL = "several communicators have such records, and nothing says whose a kernel is"
NOT_OF_GPU = "the CPU timed its records (NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=1 records the GPU's times)"
IN_GRAPHS = "a launch has several of them, as in a CUDA graph"
TOO_FEW = f"there are fewer than {FEWEST}, too few to be found by their times"
NO_FIT = "the times of its records fit those of the kernels nowhere"
SIZES_DIFFER = "the times of its records fit at several places, whose bytes differ"
SENDS = "one may be of several sends and receives"
NO_RECORD = "it is not a record of NCCL Inspector, or names no communicator"
TOO_MANY = "{} has more than {:,} records of collectives: name a file of fewer steps."
CUT_OFF = "{} ends within a line: NCCL Inspector's records after that are missing."

#: How many bytes of each file tell whose it is.
HEAD_BYTES, BLOCK_BYTES = 1 << 16, 1 << 20
#: Records that are kept in memory: of 1,000 collectives a step, a thousand steps.
MOST_RECORDS = 1_000_000
#: The times of a kernel and a record are equal within these µs, or this share of the kernel's; records match if
#: this share of the compared ones is equal.
EQUAL_US, EQUAL_SHARE, MOST_OF_THEM = 10.0, 0.1, 0.95
#: How many kernels find the places that are then compared in full, and how many pairs are compared at most.
PROBES, MOST_PAIRS = 64, 1 << 28
_NCCL_KERNEL = re.compile(r"nccl\w*?Kernel_(\w+?)(?:_|\(|$)")
_SHARES = {"AllGather": (False, True), "ReduceScatter": (True, False)}  # whether what is sent, received is of all


class _Header(msgspec.Struct, gc=False, frozen=True):
    id: str
    rank: int
    n_ranks: int


class _Collective(msgspec.Struct, gc=False, frozen=True):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: float
    coll_timing_source: str = "kernel_gpu"  # lines of the first version lack it
    coll_busbw_gbs: float = 0.0


class _Line(msgspec.Struct, gc=False, frozen=True):
    header: _Header | None = None
    coll_perf: _Collective | None = None
    p2p_perf: msgspec.Raw = msgspec.Raw()
    dump_stats: msgspec.Raw = msgspec.Raw()
    proxy_trace: msgspec.Raw = msgspec.Raw()


_LINES = msgspec.json.Decoder(_Line)


class _UnplacedError(Exception):
    """Why records are not joined to the kernels of a kind."""


def _records(path: FilePath, notes: list[str], limit: int = 0) -> Iterator[tuple[_Header, _Collective | None]]:
    """Yield of each record of a file, or of its first bytes, the communicator and, if it is one, the collective.

    Raises NotAReport where a line is no record.
    """
    context: _Header | None = None
    for number, text_of_line in enumerate(_lines(path, notes, limit), 1):
        if not text_of_line.strip():
            continue
        try:
            line = _LINES.decode(text_of_line)
            header, collective = line.header or context, line.coll_perf
            if line.header:  # of the records of a dump only if it begins one
                context = line.header if line.dump_stats else None
            if header is None or not (collective or line.p2p_perf or line.dump_stats or line.proxy_trace):
                raise ValueError(NO_RECORD)
            int(header.id, 16)
            if not 0 <= header.rank < header.n_ranks < MOST_RANKS:
                raise ValueError("its rank is not in its communicator")
            if collective and not (
                0 <= collective.coll_msg_size_bytes < MOST_BYTES
                and 0 <= collective.coll_sn < 1 << 62
                and 0 <= collective.coll_exec_time_us < 1e12
            ):
                raise ValueError("a number is out of bounds")
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise NotAReport(f"Line {number} of {path} cannot be read as NCCL Inspector's: {error}.") from error
        if collective or line.p2p_perf:
            yield header, collective


def _lines(path: FilePath, notes: list[str], limit: int) -> Iterator[bytes]:
    """Yield the lines of a file, or of its first bytes; a last one that breaks off is noted, and left out.

    Raises NotAReport where the file cannot be read, unpacks to too much, or has a line without an end.
    """
    last, read_bytes = b"", 0
    try:
        most = limit or allowed_bytes(path) + 1
        with opened(path) as file:
            # Python sets aside as many bytes as are asked for.
            while read_bytes < most and (block := file.read(min(BLOCK_BYTES, most - read_bytes))):
                read_bytes += len(block)
                *lines, last = (last + block).split(b"\n")
                yield from lines
                last = last if last.strip() else b""
                if len(last) > BLOCK_BYTES:
                    raise NotAReport(f"{path} has a line of more than {BLOCK_BYTES:,} bytes: {NO_RECORD}.")
    except (OSError, EOFError, zlib.error) as error:
        raise NotAReport(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    require_within(path, read_bytes)
    if last.strip() and not limit:
        try:
            _LINES.decode(last)
        except (msgspec.DecodeError, UnicodeDecodeError):
            notes.append(CUT_OFF.format(path.name))
        else:
            yield last


def with_inspector(trace: Trace, path: FilePath) -> Trace:
    """Return a trace with the communicators and bytes that a file, or one in a folder, has of its kernels.

    Raises UsageError where no file is known to be of the report's rank, and NotAReport for a damaged one.
    """
    notes: list[str] = []
    of_kind: dict[str, dict[str, list[_Collective]]] = defaultdict(lambda: defaultdict(list))
    headers: dict[str, _Header] = {}
    exchanges = False
    for count, (header, collective) in enumerate(_records(_file_of(trace, path), notes)):
        if count == MOST_RECORDS:
            raise NotAReport(TOO_MANY.format(path, MOST_RECORDS))
        if headers.setdefault(header.id, header).rank != header.rank:
            raise NotAReport(
                f"{path} has the records of several ranks of a process: they cannot be distinguished."
            )
        if collective:
            of_kind[collective.coll][header.id].append(collective)
        exchanges |= collective is None

    work = trace.work
    if len(np.unique(work.device_id[work.kind == KERNEL])) > 1:
        raise UsageError("NCCL Inspector's files are joined to the report of one GPU, and this has several.")
    nccl = {number: match[1] for number, name in enumerate(trace.names) if (match := _NCCL_KERNEL.match(name))}
    rows = np.flatnonzero((work.kind == KERNEL) & np.isin(work.name_id, [*nccl]) & (work.launch >= 0))
    sized = trace.messages.launch[trace.messages.sent_bytes >= 0] if trace.messages else np.empty(0, np.int64)
    rows = rows[~np.isin(work.launch[rows], sized)]
    kind_of_row = np.array([nccl[name] for name in work.name_id[rows].tolist()], object)
    if exchanges:
        notes.append(UNPLACED.format("kernels of SendRecv", SENDS))
    joined: list[tuple[int, _Header, _Collective]] = []
    for kind in sorted({*kind_of_row.tolist()} - {"SendRecv"}):
        of_rows = rows[kind_of_row == kind]
        of_rows = of_rows[np.argsort(work.start_ns[of_rows], kind="stable")]
        try:
            launches = _joined(work.launch[of_rows], work.duration_ns[of_rows] / 1e3, of_kind[kind])
        except _UnplacedError as reason:
            notes.append(UNPLACED.format(f"kernels of {kind}", reason))
        else:
            (communicator,) = of_kind[kind]
            joined += [(launch, headers[communicator], collective) for launch, collective in launches]
    if joined:
        rate = float(np.median([collective.coll_busbw_gbs for *_, collective in joined]))
        notes.append(JOINED.format(len(joined), len(rows), rate))
    return _with_messages(replace(trace, notes=(*trace.notes, *notes)), joined)


def _file_of(trace: Trace, path: FilePath) -> FilePath:
    """Return the file of the report's rank: by its number in the largest communicator of the files' beginnings."""
    if not path.is_dir():
        return path
    files = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
    if not files:
        raise UsageError(f"{path} has no files of NCCL Inspector ({', '.join(ENDINGS)}).")
    if len(files) == 1:
        return files[0]
    headers = {file: {header for header, _ in _records(file, [], HEAD_BYTES)} for file in files}
    largest = max((header.n_ranks for of_file in headers.values() for header in of_file), default=0)
    rank = trace.provenance.run.get("rank", -1)
    fits = [
        file
        for file, of_file in headers.items()
        if any(header.n_ranks == largest and header.rank == rank for header in of_file)
    ]
    if len(fits) != 1:
        whose = f"{len(fits)} of them are of rank {rank}" if rank >= 0 else "the report does not say its rank"
        raise UsageError(f"{path} has {len(files)} files of NCCL Inspector, and {whose}: name one file.")
    return fits[0]


def _joined(
    launch: Int32s, kernel_us: NDArray[np.float64], of_communicators: dict[str, list[_Collective]]
) -> list[tuple[int, _Collective]]:
    """Return the launches of kernels of one kind, given in their order in time, with their records.

    Raises _UnplacedError where that is not known.
    """
    if not of_communicators:
        raise _UnplacedError(NO_RECORDS)
    if len(np.unique(launch)) < len(launch):
        raise _UnplacedError(IN_GRAPHS)
    if len(launch) < FEWEST:
        raise _UnplacedError(TOO_FEW)
    if len(of_communicators) > 1:
        raise _UnplacedError(SEVERAL)
    (collectives,) = of_communicators.values()
    if any(collective.coll_timing_source != "kernel_gpu" for collective in collectives):
        raise _UnplacedError(NOT_OF_GPU)
    of_number = {collective.coll_sn: collective for collective in collectives}
    first, count = min(of_number), max(of_number) - min(of_number) + 1
    if count > 64 * len(of_number) + 4096:
        raise _UnplacedError(NO_FIT)  # hardly any of these numbers has a record
    record_us, size = np.full(count, np.nan), np.full(count, -1, np.int64)
    rows = np.array([*of_number]) - first
    record_us[rows] = [collective.coll_exec_time_us for collective in of_number.values()]
    size[rows] = [collective.coll_msg_size_bytes for collective in of_number.values()]
    numbers = first + _begin(kernel_us, record_us, size) + np.arange(len(launch))
    return [
        (kernels_launch, of_number[number])
        for kernels_launch, number in zip(launch.tolist(), numbers.tolist(), strict=True)
        if number in of_number
    ]


def _begin(kernel_us: NDArray[np.float64], record_us: NDArray[np.float64], size: Int64s) -> int:
    """Return which record is of the first kernel; raises _UnplacedError where that is not known.

    `record_us` (NaN) and `size` (-1) have gaps where there are no records. Where several places fit, all of them
    must give the kernels the same bytes.
    """
    beyond = len(kernel_us) // 4  # the first and last kernels may have no records
    record_us = np.pad(record_us, beyond, constant_values=np.nan)
    size = np.pad(size, beyond, constant_values=-1)
    begins = np.arange(len(record_us) - len(kernel_us) + 1)
    probes = np.unique(np.linspace(0, len(kernel_us) - 1, min(len(kernel_us), PROBES)).astype(np.int64))
    if not len(begins):
        raise _UnplacedError(NO_FIT)
    windows = sliding_window_view(record_us, len(kernel_us))
    for kernels in (probes, np.arange(len(kernel_us))):
        if len(begins) * len(kernels) > MOST_PAIRS:
            raise _UnplacedError(NO_FIT)
        parts = np.array_split(begins, max(len(begins) * len(kernels) >> 20, 1))
        begins = np.concatenate(
            [part[_fit(kernel_us[kernels], windows[part[:, None], kernels])] for part in parts]
        )
    if not len(begins):
        raise _UnplacedError(NO_FIT)
    carried = np.full(len(kernel_us), -1, np.int64)
    for begin in begins.tolist():
        there = size[begin : begin + len(kernel_us)]
        if ((carried >= 0) & (there >= 0) & (carried != there)).any():
            raise _UnplacedError(SIZES_DIFFER)
        carried = np.where(carried < 0, there, carried)
    known = [(size[begin : begin + len(kernel_us)] >= 0).sum() for begin in begins.tolist()]
    return int(begins[int(np.argmax(known))]) - beyond


def _fit(kernel_us: NDArray[np.float64], record_us: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each row of records (places, kernels) whether they are of these kernels by their times."""
    near = np.abs(record_us - kernel_us) <= np.maximum(EQUAL_US, EQUAL_SHARE * kernel_us)
    compared = (~np.isnan(record_us)).sum(1)
    enough = compared >= np.maximum(len(kernel_us) / 2, FEWEST)
    fits: NDArray[np.bool_] = enough & (near.sum(1) >= MOST_OF_THEM * compared)
    return fits


def _with_messages(trace: Trace, joined: Sequence[tuple[int, _Header, _Collective]]) -> Trace:
    """Return the trace with what these launches carry; what was known of them before gives way."""
    if not joined:
        return trace
    names = Names(trace.names)
    columns = []
    for launch, header, collective in joined:
        sends_all, receives_all = _SHARES.get(collective.coll, (False, False))
        size, communicator = collective.coll_msg_size_bytes, names(f"communicator {int(header.id, 16):#x}")
        sizes = (size * header.n_ranks if is_of_all else size for is_of_all in (sends_all, receives_all))
        columns.append((launch, names(collective.coll), communicator, header.n_ranks, *sizes))
    launches, collective_name, group, ranks, sent, received = np.array(columns, np.int64).T
    numbers, unknown = (collective_name.astype(np.int32), group.astype(np.int32)), np.full(len(launches), -1)
    new = Messages(launches, *numbers, ranks, sent, received, unknown)
    if trace.messages:
        new = Messages.joined([trace.messages.take(~np.isin(trace.messages.launch, launches)), new])
    return replace(trace, names=names.all, messages=new.take(np.argsort(new.launch, kind="stable")))
