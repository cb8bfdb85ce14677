"""NCCL's payloads in nsys's exports, written by the layout of their header and their table of fields."""

import sqlite3
import struct
from contextlib import closing

import pyarrow.parquet as pq
import pytest
from nvtx_kernels.analysis import view
from nvtx_kernels.analysis.readers import read

import nvtx_kernels as nk
from tests.analysis.making.building import MAIN, Range, Work, alter, build, launched, thread
from tests.analysis.making.parquet_folders import as_parquet

NCCL, INIT, REDUCE, SHARE, PEER, ROOT = 1, 16777218, 16777223, 16777220, 16777225, 16777222
#: As nsys 2026.2 writes them: the first field's offset is NULL, and rows repeat per process.
ENTRIES = [
    (INIT, 0, 18, "NCCL communicator ID", None),
    (INIT, 1, 5, "No. of ranks", 8),
    (INIT, 2, 5, "Rank", 12),
    (INIT, 3, 5, "CUDA device", 16),
    (REDUCE, 0, 18, "NCCL communicator ID", None),
    (REDUCE, 1, 22, "Message size [bytes]", 8),
    (REDUCE, 2, 16777232, "Reduction operation", 16),
    (SHARE, 0, 18, "NCCL communicator ID", None),
    (SHARE, 1, 22, "Message size [bytes]", 8),
    (PEER, 0, 18, "NCCL communicator ID", None),
    (PEER, 1, 22, "Message size [bytes]", 8),
    (PEER, 2, 5, "Peer rank", 16),
    (ROOT, 0, 18, "NCCL communicator ID", None),
    (ROOT, 1, 22, "Message size [bytes]", 8),
    (ROOT, 2, 5, "Root", 16),
] * 2
COMMUNICATOR = 0xFEDCBA9876543210


def payload(schema, form, *fields):
    content = struct.pack(form, *fields).ljust(24 if schema != SHARE else 16, b"\0")
    return struct.pack("<IIIIQQ", NCCL, 0, schema, 0, len(content), 32 + len(content)) + content


def init(ranks=4):
    return payload(INIT, "<QIII", COMMUNICATOR, ranks, 0, 0)


def size(number, schema=REDUCE, communicator=COMMUNICATOR):
    return payload(schema, "<QQ", communicator, number)


def of_rank(rank, schema=ROOT):
    return payload(schema, "<QQi", COMMUNICATOR, 64, rank)


def report(folder, ranges, kernels, entries=ENTRIES):
    """Write a report of NCCL's ranges (name, start, payload) and of its kernels' launches, by their starts."""
    of_nccl = [Range(name, start, start + 5, domain=NCCL) for name, start, _ in ranges]
    calls = launched(*((start, start + 2) for start in kernels))
    names = [Work(**{**vars(work), "name": "ncclDevKernel_Generic"}) for work in calls["work"]]
    path = build(folder, ranges=of_nccl, launches=calls["launches"], work=names)
    with closing(sqlite3.connect(path)) as database:
        for _, start, blob in ranges:
            database.execute("UPDATE NVTX_EVENTS SET binaryData = ? WHERE start = ?", (blob, start))
        database.execute(
            "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, "
            "idx INTEGER, flags INTEGER, type INTEGER, name TEXT, description TEXT, "
            'arrayOrUnionDetail INTEGER, "offset" INTEGER)'
        )
        rows = [(NCCL, schema, idx, None, type_, name, None, None, at) for schema, idx, type_, name, at in entries]
        database.executemany("INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        database.commit()
    return path


def carried(path):
    """Return of each launch with a message its collective, ranks, and bytes sent and received."""
    messages = (trace := read(path)).messages
    if messages is None:
        return trace.notes
    assert {trace.names[group] for group in messages.group} == {f"communicator {COMMUNICATOR:#x}"}
    columns = (messages.launch, messages.ranks, messages.sent_bytes, messages.received_bytes)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {
        launch: (trace.names[name], *row) for name, (launch, *row) in zip(messages.collective, rows, strict=True)
    }


START = ("ncclCommInitRank", 1, init())
CASES = {
    "one operation, one kernel": (
        [START, ("ncclAllReduce", 10, size(4096))], [12], {0: ("ncclAllReduce", 4, 4096, 4096)},
    ),
    "a group of one, as PyTorch calls it": (
        [START, ("ncclReduceScatter", 10, size(64))], [40], {0: ("ncclReduceScatter", 4, 64, 256)},
    ),
    "a share without the number of ranks": (
        [("ncclAllGather", 10, size(64, SHARE))], [12], {0: ("ncclAllGather", 0, -1, -1)},
    ),
    "a group that is coalesced": (
        [START, ("ncclAllReduce", 10, size(8)), ("ncclAllReduce", 20, size(16))], [30],
        {0: ("ncclAllReduce", 4, 24, 24)},
    ),
    "as many kernels as operations": (
        [START, ("ncclAllReduce", 10, size(8)), ("ncclBroadcast", 20, size(16))], [30, 40],
        {0: ("ncclAllReduce", 4, 8, 8), 1: ("ncclBroadcast", 4, 16, 16)},
    ),
    "send and receive": (
        [("ncclSend", 10, size(8, PEER)), ("ncclRecv", 20, size(5, PEER))], [30], {0: ("ncclSend", 0, 8, 5)},
    ),
}  # fmt: skip
UNTOLD = {
    "another kind in a group": (
        [("ncclAllReduce", 10, size(8)), ("ncclBroadcast", 20, size(16)), ("ncclReduce", 25, size(1))], [30, 40],
        "The bytes of 2 of NCCL's kernels are left out: several kernels were launched for several operations.",
    ),
    "a schema that nobody describes": (
        [("ncclAllReduce", 10, size(8, schema=5))], [12],
        "The payloads of 1 of NCCL's ranges cannot be read and are left out.",
    ),
    "half a payload": (
        [("ncclAllReduce", 10, size(8)[:40])], [12],
        "The payloads of 1 of NCCL's ranges cannot be read and are left out.",
    ),
    "no payload but bytes": (
        [("ncclAllReduce", 10, b"\xff" * 9)], [12],
        "The payloads of 1 of NCCL's ranges cannot be read and are left out.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_is_of_the_operations_called_since_the_last_one(tmp_path, case):
    ranges, kernels, expected = CASES[case]
    path = report(tmp_path, ranges, kernels)
    assert carried(path) == expected
    assert carried(as_parquet(path, tmp_path / "report_pqtdir")) == expected


ONE_LAUNCH = {
    "a root": ([START, ("ncclBroadcast", 10, of_rank(2))], 2),
    "a peer": ([("ncclSend", 10, of_rank(3, PEER))], 3),
    "both ways with one peer": ([("ncclSend", 10, of_rank(1, PEER)), ("ncclRecv", 20, of_rank(1, PEER))], 1),
    "several peers": ([("ncclSend", 10, of_rank(1, PEER)), ("ncclRecv", 20, of_rank(2, PEER))], -1),
    "no root": ([START, ("ncclAllReduce", 10, size(64))], -1),
    "a rank that the group does not have": ([START, ("ncclBroadcast", 10, of_rank(4))], -1),
    "a negative rank": ([START, ("ncclBroadcast", 10, of_rank(-5))], -1),
}


@pytest.mark.parametrize("case", ONE_LAUNCH)
def test_root_or_peer_is_the_rank_that_all_operations_of_a_launch_name(tmp_path, case):
    ranges, rank = ONE_LAUNCH[case]
    path = report(tmp_path, ranges, [30])
    for written in (path, as_parquet(path, tmp_path / "report_pqtdir")):
        assert read(written).messages.root_or_peer.tolist() == [rank]


def test_names_stand_in_the_text_where_a_parquet_file_has_no_ids_of_strings(tmp_path):
    path = report(tmp_path, [START, ("ncclBroadcast", 10, of_rank(2))], [30])
    folder = as_parquet(path, tmp_path / "report_pqtdir")
    events = folder / "NVTX_EVENTS.parquet"
    pq.write_table(pq.read_table(events).drop_columns(["textId"]), events)
    assert carried(folder) == carried(path)
    events.unlink()
    assert read(folder).messages is None


def test_payload_cut_before_its_root_is_left_out_and_said(tmp_path):
    path = report(tmp_path, [START, ("ncclBroadcast", 10, of_rank(2)[:-8])], [12])
    assert "The payloads of 1 of NCCL's ranges cannot be read and are left out." in carried(path)


@pytest.mark.parametrize(("roots", "shown"), [((2, 2), 2), ((2, 3), None)])
def test_communication_shows_the_root_that_all_kernels_of_a_row_have(tmp_path, capsys, roots, shown):
    ranges = [("ncclBroadcast", at, of_rank(root)) for at, root in zip((10, 40), roots, strict=True)]
    path = report(tmp_path, [START, *ranges], [12, 42])
    rows = nk.communication(str(path))["communication"].to_dict("records")
    assert [row["root_or_peer"] if row["root_or_peer"] == row["root_or_peer"] else None for row in rows] == [shown]
    assert view.main(["communication", str(path)]) == 0
    assert "root" not in capsys.readouterr().out


@pytest.mark.parametrize("case", UNTOLD)
def test_what_cannot_be_told_is_left_out_and_said(tmp_path, case):
    ranges, kernels, note = UNTOLD[case]
    assert note in carried(report(tmp_path, ranges, kernels))


def test_offsets_are_those_of_the_tables(tmp_path):
    moved = [(INIT, 0, 18, "NCCL communicator ID", None), (INIT, 1, 5, "No. of ranks", 16)]
    moved += [(REDUCE, 0, 22, "Message size [bytes]", 0), (REDUCE, 1, 18, "NCCL communicator ID", 8)]
    first = payload(INIT, "<QQI", COMMUNICATOR, 0, 2)
    second = payload(REDUCE, "<QQ", 4096, COMMUNICATOR)
    path = report(tmp_path, [("ncclCommInitRank", 1, first), ("ncclAllReduce", 10, second)], [12], moved)
    assert carried(path) == {0: ("ncclAllReduce", 2, 4096, 4096)}


def test_communication_has_bytes_and_bus_bandwidth(tmp_path):
    path = report(tmp_path, [START, ("ncclAllReduce", 10, size(4096))], [12])
    table = nk.communication(str(path))["communication"]
    row = table[table["collective"] == "all_reduce"].iloc[0]
    assert row["bytes"] == 4096
    assert row["bus_bytes_per_s"] > 0


def test_threads_do_not_share_operations(tmp_path):
    path = report(tmp_path, [START, ("ncclAllReduce", 10, size(8))], [12])
    alter(path, f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET globalTid = {thread(100, 77)}")
    assert thread(100, 77) != MAIN
    assert carried(path) == ()
