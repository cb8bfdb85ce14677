"""Folders of `nsys export --type parquetdir`: the same tables as the SQLite export, so the same answer."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.errors import NoGpuWork, NotAReport
from nvtx_kernels.analysis.readers.operator_names import as_text, with_bare_names
from nvtx_kernels.analysis.readers.requirements import require_work
from nvtx_kernels.analysis.vocabulary import without_suffixes

from nvtx_kernels import analysis
from tests.analysis.making.building import AUTOGRAD, DOMAIN_CREATE, MARK, Dialect, Launch, Range, Work, build
from tests.analysis.making.bundled import SHARED
from tests.analysis.making.parquet_folders import as_parquet
from tests.analysis.making.traces import summary

REPORTS = sorted(SHARED.glob("*/*.sqlite"))


def write_report(folder):
    """Write an export with a backward pass, operators, registered names, a named domain and an open range."""
    ranges = [
        Range("step 1", 0, 900), Range("forward", 10, 300), Range("layer 0", 20, 290), Range("backward", 310, 800),
        Range("aten::mm, seq = 7, op_id = 3, sizes = [[4, 4]]", 30, 90), Range("never closed", 820, None),
        Range("MmBackward0, seq = 7", 400, 500, AUTOGRAD), Range("ncclDevKernel", 840, 860, domain=3),
        Range('nvtx-kernels.run {"size": "small"}', 5, 6, event=MARK),
        Range("NCCL", -9, None, domain=3, event=DOMAIN_CREATE),
    ]  # fmt: skip
    work = [
        Work(1, 100, 250, "ampere_sgemm_128x64_nn"), Work(2, 430, 700, "ampere_sgemm_128x64_nt"),
        Work(4, 860, 990, "ncclDevKernel_Sum"), Work(99, 995, 999, "ampere_sgemm_128x64_nn"),
        Work(3, 80, 95, 1, "memcpy"), Work(None, 96, 97, kind="memset"),
    ]  # fmt: skip
    launches = [Launch(1, 40, 50), Launch(2, 410, 420, AUTOGRAD), Launch(3, 60, 70), Launch(4, 845, 850)]
    about = {"EXPORT_PRODUCT_VERSION": "2025.3.2.0", "EXPORT_SCHEMA_VERSION": "3.20.3"}
    return build(
        folder, Dialect(2025, "mixed"), ranges=ranges, launches=launches, work=work, metadata=about,
        thread_names={AUTOGRAD: "pt_autograd_0"}, gpus=["NVIDIA H200"] * 2,
    )  # fmt: skip


def names_in(trace, table):
    return [trace.names[name] for name in table.name_id]


@pytest.mark.parametrize("narrow", [False, True])
def test_folder_gives_the_trace_and_the_report_of_the_sqlite_export(tmp_path, narrow):
    export = write_report(tmp_path)
    folder = as_parquet(export, tmp_path / "report_pqtdir", narrow)
    report = summary(folder, file="")
    assert report == summary(export, file="")
    assert report.totals.linked_ns == 270
    assert report.provenance.run == {"size": "small"}
    assert report.provenance.gpus == ("NVIDIA H200",)
    one, other = analysis.read(export), analysis.read(folder)
    assert (one.threads, one.domains) == (other.threads, other.domains)
    for table in ("work", "launches", "ranges"):
        ours, theirs = getattr(one, table), getattr(other, table)
        for column in ours.__match_args__:
            if column == "name_id":  # names are numbered as they turn up, which may differ
                assert names_in(one, ours) == names_in(other, theirs)
                continue
            np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column), f"{table}.{column}")


@pytest.mark.skipif(not REPORTS, reason="the real reports next to the repository are absent")
@pytest.mark.parametrize("export", REPORTS, ids=lambda path: path.stem)
def test_folders_of_real_exports_give_their_reports(tmp_path, export):
    folder = as_parquet(export, tmp_path / "report_pqtdir")
    if not len(analysis.read(export).work):  # it is refused as its report is
        with pytest.raises(NoGpuWork, match="NVTX ranges"):
            require_work(analysis.read(folder))
        return
    assert summary(folder, file="") == summary(export, file="")


PARTS = st.sampled_from(
    [", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ", "7", "12", "\n", "é", "a", ", "]
)
NAMES = st.lists(PARTS | st.from_regex(r"[0-9]{7,20}", fullmatch=True), max_size=7).map("".join)


@given(st.lists(NAMES, min_size=1, max_size=9))
def test_suffixes_are_cut_off_as_the_vocabulary_does(names):
    events = pa.table({"event": pa.array([59] * len(names)), "text": pa.array(names)})
    cut = with_bare_names(lambda: events).select(["text", "seq"]).to_pylist()
    assert [(row["text"], row["seq"]) for row in cut] == [without_suffixes(name) for name in names]


@pytest.mark.parametrize("type_", [pa.string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_marks_stay_whole_and_missing_names_are_empty(type_):
    texts = ["aten::mm, seq = 7", "aten::mm, seq = 7", None, "aten::mm, seq = 8, sizes = []"]
    events = pa.table({"event": pa.array([59, 34, 59, 59]), "text": pa.array(texts).cast(type_)})
    cut = with_bare_names(lambda: events).select(["text", "seq"]).to_pylist()
    assert [(row["text"], row["seq"]) for row in cut] == [
        ("aten::mm", 7), ("aten::mm, seq = 7", -1), ("", -1), ("aten::mm", 8),
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    return as_parquet(write_report(tmp_path), tmp_path / "report_pqtdir")


def rewrite(folder, table, change):
    """Write a table of a folder as a function changes it, and return its file."""
    file = folder / f"{table}.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    return file


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_table_may_be_absent_or_empty(folder, table):
    file = rewrite(folder, table, lambda rows: rows.slice(0, 0))
    emptied = summary(folder, file="")
    file.unlink()
    assert summary(folder, file="") == emptied


@pytest.mark.parametrize("report", ["report_pqtdir", "report.sqlite"])
def test_pandas_is_not_imported_to_read_a_report(folder, report):
    code = "import sys, nvtx_kernels as nk; nk.read(sys.argv[1]); print({'numpy', 'pandas'} & {*sys.modules})"
    command = [sys.executable, "-c", code, str(folder.with_name(report))]
    ran = subprocess.run(command, cwd=Path(__file__).parents[3], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "{'numpy'}"


def test_columns_that_no_number_needs_are_not_read(folder):
    before = summary(folder, file="")
    file = folder / "NVTX_EVENTS.parquet"
    table = pq.read_table(file).drop_columns(["color", "jsonText", "rangeId"])
    pq.write_table(table.append_column("payload", pa.array([[1]] * len(table))), file)
    assert summary(folder, file="") == before


def test_names_need_not_be_utf8(folder):
    file = folder / "NVTX_EVENTS.parquet"
    table = pq.read_table(file)
    texts = [(text or "").replace("layer", "\xe9tage").encode("latin-1") for text in table["text"].to_pylist()]
    text = as_text(pa.array(texts, pa.binary()))
    pq.write_table(table.set_column(table.column_names.index("text"), "text", text), file)
    assert "\ufffdtage 0" in analysis.read(folder).names


ESSENTIAL = [
    ("NVTX_EVENTS", "globalTid"), ("NVTX_EVENTS", "domainId"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId"), ("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "correlationId"), ("ThreadNames", "globalTid"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "end"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "column"), ESSENTIAL)
def test_column_without_which_work_would_be_nobodys_is_asked_for(folder, table, column):
    rewrite(folder, table, lambda rows: rows.drop_columns(column))
    with pytest.raises(NotAReport, match=rf"{table}\.parquet has no column '{column}'"):
        analysis.read(folder)


def test_column_of_another_kind_is_refused(folder):
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    rewrite(folder, kernels, lambda rows: rows.set_column(0, "start", pa.array(["soon"] * len(rows))))
    with pytest.raises(NotAReport, match="has values of another type than nsys's"):
        analysis.read(folder)


@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_damaged_file_is_refused(folder, share):
    file = folder / "NVTX_EVENTS.parquet"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(NotAReport, match=r"NVTX_EVENTS.parquet is damaged: .*\. Export the report again\.$"):
        analysis.read(folder)


# What fuzzing found: Arrow ends the process over the statistics of a column that the footer describes wrongly.
@pytest.mark.slow
def test_no_footer_ends_the_process(folder):
    file = folder / "NVTX_EVENTS.parquet"
    whole = file.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for place in range(footer + 15, footer + 65):
        file.write_bytes(whole[:place] + b"\0" + whole[place + 1 :])
        if os.fork() == 0:
            with suppress(BaseException):
                analysis.read(folder)
            os._exit(0)
        assert os.wait()[1] == 0, place - footer


# What fuzzing found: the footer has the schema twice, and only one of them, or neither, names the column.
@pytest.mark.parametrize("which", [slice(0, 1), slice(1, None), slice(None)])
@pytest.mark.parametrize("new", [b"tex_", b"tex\xed"])
def test_file_whose_footer_misnames_a_column_is_refused_or_read(folder, which, new):
    file = folder / "NVTX_EVENTS.parquet"
    pieces = file.read_bytes().split(b"text")
    assert len(pieces) > 2
    ends = [new if n in range(len(pieces))[which] else b"text" for n in range(len(pieces) - 1)]
    file.write_bytes(b"".join(piece + end for piece, end in zip(pieces, [*ends, b""], strict=True)))
    with suppress(NotAReport):
        analysis.read(folder)


def test_folder_of_other_parquet_files_is_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "train.parquet")
    with pytest.raises(NotAReport, match="folder of Parquet files, but not one that `nsys export` wrote"):
        analysis.read(tmp_path)
