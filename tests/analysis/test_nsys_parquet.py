"""Folders of `nsys export --type parquetdir`: the same tables as the SQLite export, so the same answer."""

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import analysis
from analysis.attribution import attribute
from analysis.errors import AnalysisError, NotAReport
from analysis.readers.nsys_parquet import _as_text, _without_suffixes
from analysis.summary import summarize
from analysis.vocabulary import without_suffixes
from profiling.trace_file import global_pid, global_tid, writing
from tests.analysis.parquet_folders import as_parquet

SHARED = Path(__file__).parents[3] / "shared"
REPORTS = sorted(SHARED.glob("*/*.sqlite"))
MAIN, AUTOGRAD, PROCESS = global_tid(100, 100), global_tid(100, 101), global_pid(100)
KERNEL_SIZES = ("registersPerThread", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory")
KERNEL_ZEROS = dict.fromkeys((*KERNEL_SIZES, "localMemoryPerThread", "localMemoryTotal", "gridId"), 0)


def nvtx(start, end, thread=MAIN, event=59, domain=0, **name):
    return {"start": start, "end": end, "globalTid": thread, "eventType": event, "domainId": domain, **name}


def launch(correlation, start, end, thread=MAIN):
    times = {"start": start, "end": end, "globalTid": thread, "correlationId": correlation}
    return {**times, "eventClass": 0, "nameId": 1, "returnValue": 0}


def on_gpu(correlation, start, end, **columns):
    place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": PROCESS}
    return {"start": start, "end": end, "correlationId": correlation, **place, **columns}


def kernel(file, correlation, start, end, name):
    names = {"demangledName": file.text_id(name), "shortName": file.text_id(name)}
    return on_gpu(correlation, start, end, gridX=4, gridY=2, gridZ=3, **names, **KERNEL_ZEROS)


def write_report(path):
    """Write an export with a backward pass, operators, registered names, a named domain and an open range."""
    with writing(path) as file:
        events = [
            nvtx(0, 900, text="step 1"), nvtx(10, 300, textId=file.text_id("forward")),
            nvtx(20, 290, text="layer 0"), nvtx(30, 90, text="aten::mm, seq = 7, op_id = 3, sizes = [[4, 4]]"),
            nvtx(310, 800, text="backward"), nvtx(400, 500, AUTOGRAD, text="MmBackward0, seq = 7"),
            nvtx(820, None, text="never closed"), nvtx(-9, None, event=75, domain=3, text="NCCL"),
            nvtx(5, 6, event=34, text='nvtx-kernels.run {"model": "small"}'),
            nvtx(840, 860, domain=3, text="ncclDevKernel"),
        ]  # fmt: skip
        file.add("NVTX_EVENTS", events)
        calls = [launch(1, 40, 50), launch(2, 410, 420, AUTOGRAD), launch(3, 60, 70), launch(4, 845, 850)]
        file.add("CUPTI_ACTIVITY_KIND_RUNTIME", calls)
        names = ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nt", "ncclDevKernel_Sum")
        rows = [
            (1, 100, 250, names[0]),
            (2, 430, 700, names[1]),
            (4, 860, 990, names[2]),
            (99, 995, 999, names[0]),
        ]
        file.add("CUPTI_ACTIVITY_KIND_KERNEL", [kernel(file, *row) for row in rows])
        file.add("CUPTI_ACTIVITY_KIND_MEMCPY", [on_gpu(3, 80, 95, bytes=64, copyKind=1)])
        file.add("CUPTI_ACTIVITY_KIND_MEMSET", [on_gpu(None, 96, 97, bytes=64, value=0)])
        file.add("ThreadNames", [{"nameId": file.text_id("pt_autograd_0"), "globalTid": AUTOGRAD}])
        file.add("TARGET_INFO_GPU", [{"vmId": 0, "id": n, "name": "NVIDIA H200"} for n in range(2)])
        file.add_metadata({"EXPORT_PRODUCT_VERSION": "2025.3.2.0", "EXPORT_SCHEMA_VERSION": "3.20.3"})
    return path


def report_of(path):
    """Return the whole answer for a report, without the name of its file."""
    report = summarize(attribute(analysis.read(path)))
    return replace(report, provenance=replace(report.provenance, file=""))


@pytest.mark.parametrize("narrow", [False, True])
def test_folder_gives_the_report_of_the_sqlite_export(tmp_path, narrow):
    export = write_report(tmp_path / "report.sqlite")
    folder = as_parquet(export, tmp_path / "report_pqtdir", narrow)
    report = report_of(folder)
    assert report == report_of(export)
    assert report.totals.linked_ns == 270
    assert report.provenance.run == {"model": "small"}
    assert report.provenance.gpus == ("NVIDIA H200",)


@pytest.mark.parametrize("narrow", [False, True])
def test_folder_gives_the_trace_of_the_sqlite_export(tmp_path, narrow):
    export = write_report(tmp_path / "report.sqlite")
    one, other = analysis.read(export), analysis.read(as_parquet(export, tmp_path / "pqtdir", narrow))
    assert (one.names, one.threads, one.domains) == (other.names, other.threads, other.domains)
    for table in ("work", "launches", "ranges"):
        ours, theirs = getattr(one, table), getattr(other, table)
        for column in ours.__slots__:
            np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column), f"{table}.{column}")


@pytest.mark.skipif(not REPORTS, reason="the real reports beside the repository are absent")
@pytest.mark.parametrize("export", REPORTS, ids=lambda path: path.stem)
def test_folders_of_real_exports_give_their_reports(tmp_path, export):
    assert report_of(as_parquet(export, tmp_path / "report_pqtdir")) == report_of(export)


PARTS = st.sampled_from(
    [", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ", "7", "12", "\n", "é", "a", ", "]
)
NAMES = st.lists(PARTS | st.from_regex(r"[0-9]{17,20}", fullmatch=True), max_size=7).map("".join)


@given(st.lists(NAMES, min_size=1, max_size=9))
def test_suffixes_are_cut_off_as_the_vocabulary_does(names):
    texts = pa.chunked_array([pa.array([name.encode() for name in names], pa.binary())])
    name, seq = _without_suffixes(texts)
    cut = zip([raw.decode() for raw in name.to_pylist()], seq.to_pylist(), strict=True)
    assert list(cut) == [without_suffixes(name) for name in names]


@pytest.fixture
def folder(tmp_path):
    return as_parquet(write_report(tmp_path / "report.sqlite"), tmp_path / "report_pqtdir")


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_table_may_be_absent_or_empty(folder, table):
    file = folder / f"{table}.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    emptied = report_of(folder)
    file.unlink()
    assert report_of(folder) == emptied


def test_columns_that_no_number_needs_are_not_read(folder):
    before = report_of(folder)
    file = folder / "NVTX_EVENTS.parquet"
    table = pq.read_table(file).drop_columns(["color", "jsonText", "rangeId"])
    pq.write_table(table.append_column("payload", pa.array([[1]] * len(table))), file)
    assert report_of(folder) == before


def test_names_need_not_be_utf8(folder):
    file = folder / "NVTX_EVENTS.parquet"
    table = pq.read_table(file)
    texts = [(text or "").replace("layer", "\xe9tage").encode("latin-1") for text in table["text"].to_pylist()]
    text = _as_text(pa.chunked_array([pa.array(texts, pa.binary())]))
    pq.write_table(table.set_column(table.column_names.index("text"), "text", text), file)
    assert "\ufffdtage 0" in analysis.read(folder).names


def test_column_that_is_needed_is_asked_for(folder):
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    pq.write_table(pq.read_table(file).drop_columns("end"), file)
    with pytest.raises(NotAReport, match=r"KERNEL\.parquet has no column 'end'"):
        analysis.read(folder)


ESSENTIAL = [
    ("NVTX_EVENTS", "globalTid"), ("NVTX_EVENTS", "domainId"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"), ("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "correlationId"), ("ThreadNames", "globalTid"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "column"), ESSENTIAL)
def test_column_without_which_work_would_be_nobodys_is_asked_for(folder, table, column):
    file = folder / f"{table}.parquet"
    pq.write_table(pq.read_table(file).drop_columns(column), file)
    with pytest.raises(NotAReport, match=rf"{table}\.parquet has no column '{column}'"):
        analysis.read(folder)


def test_column_of_another_kind_is_refused(folder):
    file = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(0, "start", pa.array(["soon"] * len(table))), file)
    with pytest.raises(NotAReport, match="holds values of another kind than nsys's"):
        analysis.read(folder)


@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_damaged_file_is_refused(folder, share):
    file = folder / "NVTX_EVENTS.parquet"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(NotAReport, match=r"NVTX_EVENTS.parquet is damaged: .*\. Export the report again\.$"):
        analysis.read(folder)


@pytest.mark.parametrize("seed", range(40))
def test_changed_bytes_raise_nothing_but_our_own_errors(folder, seed):
    rng = random.Random(seed)
    file = rng.choice(sorted(folder.glob("*.parquet")))
    content = bytearray(file.read_bytes())
    for _ in range(1 + seed % 9):
        content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(content)
    with suppress(AnalysisError):
        assert report_of(folder).totals.work_ns >= 0


def test_folder_of_other_parquet_files_is_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "train.parquet")
    with pytest.raises(NotAReport, match="folder of Parquet files, but not one that `nsys export` wrote"):
        analysis.read(tmp_path)
