"""NCCL Inspector's files, written as its documentation has them: joined to kernels rightly, or not at all."""

import gzip
import json
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis import kernels, view
from nvtx_kernels.analysis.errors import NotAReport, UsageError
from nvtx_kernels.analysis.measures.exchanges import collectives
from nvtx_kernels.analysis.readers import nccl_inspector, read
from nvtx_kernels.analysis.readers.nccl_inspector import with_inspector

from nvtx_kernels.__main__ import main
from tests.analysis.making import checks
from tests.analysis.making.building import Launch, Range, Work, build, process_of, thread

KERNEL = "ncclDevKernel_{}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HEADER = {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1}
ALL = 60  # collectives of the run, of which the report has some


def run_of(kind="AllReduce", count=ALL, seed=0):
    """Return the collectives of a run: kind, number, bytes, and time in µs, which noise makes all different."""
    generator = random.Random(seed)
    sizes = [generator.choice((1 << 20, 1 << 22, 1 << 24)) for _ in range(count)]
    return [(kind, 40 + n, size, round(size / 1e4 * generator.uniform(1, 3))) for n, size in enumerate(sizes)]


def record(collective, header=None, **fields):
    kind, number, size, time_us = collective
    perf = {"coll": kind, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": time_us,
            "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": size / time_us / 1e3,
            "coll_busbw_gbs": 1.75 * size / time_us / 1e3}  # fmt: skip
    metadata = {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
                "dump_timestamp_us": 1748030377748202, "hostname": "node0", "pid": 1639453}  # fmt: skip
    return {"header": HEADER | (header or {}), "metadata": metadata, "coll_perf": perf | fields}


def as_version_4_3(records):
    """Return records as one dump of version 4.3: their header once, in the line before."""
    stats = {"coll_records": len(records), "coll_dropped_total": 0, "p2p_records": 0, "p2p_dropped_total": 0}
    metadata = records[0]["metadata"] | {"inspector_output_format_version": "v4.3"}
    first = {"header": records[0]["header"] | {"comm_name": "unknown"}, "metadata": metadata, "dump_stats": stats}
    return [first, *({"coll_perf": each["coll_perf"]} for each in records)]


def written(path, records):
    text = "".join(json.dumps(each) + "\n" for each in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def report_of(folder, run, slower_us=3):
    """Return a report with a kernel for each collective, a little longer than Inspector's time."""
    main_thread, rows, now = thread(100), {"ranges": [], "launches": [], "work": []}, 1000
    for number, (kind, _, _, time_us) in enumerate(run):
        rows["launches"].append(Launch(number, now, now + 10, main_thread))
        end = now + 100 + (time_us + slower_us) * 1000
        rows["work"].append(Work(number, now + 100, end, KERNEL.format(kind), process=process_of(main_thread)))
        now = end + 1000
    rows["ranges"].append(Range("forward", 500, now, main_thread))
    return build(folder, **rows)


def joined(report, path):
    """Return the bytes of each kernel in the order of time (-1: unknown), and the notes."""
    trace = with_inspector(read(report), path)
    facts = collectives(trace, np.argsort(trace.work.start_ns))
    return facts.message_bytes.tolist(), trace, [note for note in trace.notes if "Inspector" in note]


@pytest.mark.parametrize("ending", [".log", ".jsonl.gz"])
@pytest.mark.parametrize("version", [list, as_version_4_3])
def test_kernels_get_the_bytes_and_communicator_of_their_records(tmp_path, version, ending):
    run = run_of()
    path = written(tmp_path / f"node0-pid7{ending}", version([record(each) for each in run]))
    carried, trace, notes = joined(report_of(tmp_path, run[20:35]), path)
    assert carried == [size for _, _, size, _ in run[20:35]]
    assert trace.names[trace.messages.group[0]] == "communicator 0x7f8c496ae9f661"
    assert set(trace.messages.ranks.tolist()) == {8}
    assert len(notes) == 1
    assert notes[0].startswith("NCCL Inspector measured the bytes of 15 of 15 of NCCL's kernels; by its times ")


@pytest.mark.parametrize(("kind", "sent", "received"), [("AllGather", 1, 8), ("ReduceScatter", 8, 1)])
def test_bytes_of_a_share_become_those_of_the_whole_buffer(tmp_path, kind, sent, received):
    run = run_of(kind)
    trace = joined(report_of(tmp_path, run[:9]), written(tmp_path / "a.log", map(record, run)))[1]
    assert trace.messages.sent_bytes.tolist() == [sent * size for _, _, size, _ in run[:9]]
    assert trace.messages.received_bytes.tolist() == [received * size for _, _, size, _ in run[:9]]


def test_two_kinds_of_collectives_are_joined_each_by_its_numbers(tmp_path):
    run = [each for pair in zip(run_of(), run_of("AllGather", seed=1), strict=True) for each in pair]
    carried, _, _ = joined(report_of(tmp_path, run[30:60]), written(tmp_path / "a.log", map(record, run)))
    assert carried == [size * (8 if kind == "AllGather" else 1) for kind, _, size, _ in run[30:60]]


def table_of(out, key):
    return next(table["rows"] for table in json.loads(out)["tables"] if table["key"] == key)


def test_communication_shows_the_bytes_and_summaries_hold_them(tmp_path):
    run = run_of()
    report, path = report_of(tmp_path, run[:20]), written(tmp_path / "a.log", map(record, run))
    shown = " ".join(checks.said(view, "communication", str(report))[1].split())
    assert "the sizes of messages are unknown" in shown
    measured = ("--nccl-inspector", str(path))
    out = checks.said(view, "communication", str(report), *measured, "--format", "json")[1]
    (row,) = table_of(out, "communication")
    assert row["bytes"] == sum(size for _, _, size, _ in run[:20])
    took_s = sum((time_us + 3) / 1e6 for *_, time_us in run[:20])
    assert row["bus_bytes_per_s"] == pytest.approx(1.75 * row["bytes"] / took_s)
    for rank in ("rank0", "rank1"):
        assert main(["summarize", str(report), "-o", str(tmp_path / f"{rank}.parquet"), *measured]) == 0
    out = checks.said(kernels, *(str(tmp_path / f"rank{rank}.parquet") for rank in (0, 1)), "--format", "json")[1]
    assert table_of(out, "collectives")[0]["bytes"] == row["bytes"]


REFUSED = {
    "several communicators": (lambda each: record(each, {"id": hex(1 + each[1] % 2)}), nccl_inspector.SEVERAL),
    "CPU's times": (lambda each: record(each, coll_timing_source="kernel_cpu"), nccl_inspector.NOT_OF_GPU),
    "other times": (lambda each: record(each, coll_exec_time_us=7 * each[3]), nccl_inspector.NO_FIT),
    "other kinds": (lambda each: record(each, coll="Broadcast"), nccl_inspector.NO_RECORDS),
    "equal times": (lambda each: record(each, coll_exec_time_us=500), nccl_inspector.SIZES_DIFFER),
    "too few kernels": (record, nccl_inspector.TOO_FEW),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_placed_is_said_in_one_sentence(tmp_path, case):
    change, reason = REFUSED[case]
    run = [(*each[:3], 500) for each in run_of()] if case == "equal times" else run_of()
    kernels = run[20 : 27 if case == "too few kernels" else 35]
    carried, _, notes = joined(report_of(tmp_path, kernels), written(tmp_path / "a.log", map(change, run)))
    assert carried == [-1] * len(kernels)
    assert notes == [nccl_inspector.UNPLACED.format("kernels of AllReduce", reason)]


def test_sends_and_receives_are_said_not_to_be_joined(tmp_path):
    run = run_of()
    sends = [{**record(run[0]), "p2p_perf": {"p2p": "Send", "p2p_sn": 1, "p2p_peer": 3}} for _ in range(3)]
    for each in sends:
        del each["coll_perf"]
    carried, _, notes = joined(
        report_of(tmp_path, run[:9]), written(tmp_path / "a.log", [*sends, *map(record, run)])
    )
    assert -1 not in carried
    assert nccl_inspector.UNPLACED.format("kernels of SendRecv", nccl_inspector.SENDS) in notes


def test_a_file_that_was_cut_off_is_said(tmp_path):
    run = run_of()
    path = written(tmp_path / "a.log", map(record, run))
    path.write_bytes(path.read_bytes()[:-30])
    carried, _, notes = joined(report_of(tmp_path, run[20:35]), path)
    assert -1 not in carried
    assert "a.log ends within a line: NCCL Inspector's records after that are missing." in notes


def test_a_small_file_takes_little_memory(tmp_path):
    run = run_of()
    path, report = written(tmp_path / "a.log", map(record, run)), report_of(tmp_path, run[20:35])
    tracemalloc.start()
    joined(report, path)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 64 << 20


def test_of_a_folder_the_file_of_the_reports_rank_is_read(tmp_path, monkeypatch):
    run = run_of()
    folder = tmp_path / "nccl-inspector-17"
    folder.mkdir()
    for rank in range(3):
        other = [record((kind, number, size + rank, time), {"rank": rank}) for kind, number, size, time in run]
        written(folder / f"node0-pid{rank}.log", other)
    trace = read(report_of(tmp_path, run[:9]))
    with pytest.raises(UsageError, match="3 files of NCCL Inspector, and the report does not say its rank"):
        with_inspector(trace, folder)
    trace.provenance.run["rank"] = 1
    assert with_inspector(trace, folder).messages.sent_bytes.tolist() == [size + 1 for _, _, size, _ in run[:9]]
    trace.provenance.run["rank"] = 5
    with pytest.raises(UsageError, match="0 of them are of rank 5: name one file"):
        with_inspector(trace, folder)


BROKEN = {
    "no JSON": "nonsense\n\n",
    "no record": '{"traceEvents": []}\n',
    "no communicator": json.dumps({"coll_perf": record(run_of()[0])["coll_perf"]}) + "\n",
    "a rank beyond": json.dumps(record(run_of()[0], {"rank": 8})) + "\n",
    "bytes beyond": json.dumps(record(run_of()[0], coll_msg_size_bytes=1 << 60)) + "\n",
    "several ranks": "".join(json.dumps(record(run_of()[0], {"rank": rank})) + "\n" for rank in (0, 1)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_of_something_else_is_refused_in_one_sentence(tmp_path, case):
    path = tmp_path / "a.log"
    path.write_text(BROKEN[case])
    with pytest.raises(NotAReport) as refusal:
        joined(report_of(tmp_path, run_of()[:5]), path)
    assert checks.SENTENCE.fullmatch(f"error: {refusal.value}\n")


@pytest.fixture(scope="module")
def fifteen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspector")
    return folder, read(report_of(folder, run_of()[20:35]))


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, ALL - 1)), st.integers(0, 2**32), st.floats(0.5, 2))
def test_bytes_are_right_or_unknown_whatever_records_are_missing(fifteen, missing, seed, faster):
    folder, trace = fifteen
    run = [each for number, each in enumerate(run_of()) if number not in missing]
    noise = random.Random(seed)
    records = [record(each, coll_exec_time_us=round(each[3] * faster * noise.uniform(0.97, 1.03))) for each in run]
    path = written(folder / "a.log", records)
    found = with_inspector(trace, path).messages
    truth = [size for _, _, size, _ in run_of()[20:35]]
    for launch, size in zip(*((found.launch, found.sent_bytes) if found else ((), ())), strict=True):
        assert size == truth[launch]


def test_more_records_than_are_kept_in_memory_are_refused(tmp_path, monkeypatch):
    run = run_of()
    path = written(tmp_path / "a.log", map(record, run))
    report = report_of(tmp_path, run[:9])
    monkeypatch.setattr(nccl_inspector, "MOST_RECORDS", len(run))
    assert joined(report, path)[0]
    monkeypatch.setattr(nccl_inspector, "MOST_RECORDS", len(run) - 1)
    with pytest.raises(NotAReport, match="has more than 59 records of collectives: name a file of fewer steps"):
        joined(report, path)
