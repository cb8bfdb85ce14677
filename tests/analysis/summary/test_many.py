"""Many reports at once: in real processes, on a real cluster, with some of them lost."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.document import WHOLE, Detail
from nvtx_kernels.analysis.errors import ReportError, UsageError
from nvtx_kernels.analysis.presenters import as_csv, as_table
from nvtx_kernels.analysis.readers import expand
from nvtx_kernels.analysis.report import in_one_spelling, merged, per_step
from nvtx_kernels.analysis.summary import parallel
from nvtx_kernels.analysis.views.ranks import ranks

from tests.analysis.making.bundled import DATA
from tests.analysis.making.made_reports import report_of, row
from tests.analysis.making.ranking_workers import refusal, summary, summary_or_death

REPORT = DATA / "h200_train_fp32.sqlite"


@pytest.fixture
def folder(tmp_path):
    """A folder with the reports of three ranks, one of which no worker survives, and something else."""
    for name in ("rank0.sqlite", "rank1.sqlite", "deadly.sqlite"):
        shutil.copy(REPORT, tmp_path / name)
    (tmp_path / "notes.txt").write_text("no report")
    return tmp_path


def test_folders_and_patterns_stand_for_their_reports_of_which_each_is_one_with_its_export(folder):
    assert [path.name for path in expand([folder])] == ["deadly.sqlite", "rank0.sqlite", "rank1.sqlite"]
    assert [path.name for path in expand([folder / "rank*.sqlite"])] == ["rank0.sqlite", "rank1.sqlite"]
    (folder / "rank0.nsys-rep").touch()
    assert folder / "rank0.nsys-rep" not in expand([folder])


def test_folder_without_reports_is_wrong_usage(tmp_path):
    with pytest.raises(UsageError, match="contains no reports"):
        expand([tmp_path])


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    """What processes made of a report, of one that cannot be read, and of the first under another name."""
    folder = tmp_path_factory.mktemp("ranks")
    paths = [folder / f"rank{number}.sqlite" for number in (1, 2, 0)]
    for path in paths:
        path.write_bytes(REPORT.read_bytes() if path.name != "rank2.sqlite" else b"")
    return parallel.rank_all(paths, summary)


def test_every_report_is_ranked_in_its_order_and_an_unreadable_one_costs_its_own_row_only(ranked):
    assert [one.name for one in ranked] == ["rank1.sqlite", "rank2.sqlite", "rank0.sqlite"]
    assert [one.report and one.report.totals for one in ranked] == [
        summary(REPORT).totals, None, summary(REPORT).totals,
    ]  # fmt: skip
    assert [bool(one.problem) for one in ranked] == [False, True, False]
    assert "is empty" in ranked[1].problem


def test_different_runs_are_not_added_up():
    runs = [parallel.Ranked(path.name, summary(path)) for path in (REPORT, DATA / "h200_compiled.sqlite")]
    said = " ".join(as_table.present(ranks(runs)).split())
    assert "different settings, so they are not added up (h200_compiled.sqlite: compiled)" in said
    assert "numbers of steps (1, 2); --per-step compares one step of each." in said
    assert "all reports" not in said
    assert "is placed" not in said
    assert "Slowest ranges" not in said


def test_ranks_of_one_run_are_added_up(folder, capsys):
    assert kernels.main([str(folder / "rank0.sqlite"), str(folder / "rank1.sqlite"), "--totals"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "different runs" not in said
    assert "all reports 73.77 144.92" in said


def test_lost_process_costs_its_own_row_only(folder):
    ranked = parallel.rank_all(expand([folder]), summary_or_death)
    assert [(one.name, one.problem) for one in ranked if one.problem] == [("deadly.sqlite", parallel.LOST)]
    assert sum(one.report is not None for one in ranked) == 2


def test_merged_report_is_the_sum_and_conserves():
    report = summary(REPORT)
    both = merged([report, report], "both")
    assert both.totals.work_ns == 2 * report.totals.work_ns == 2 * sum(row.self_work_ns for row in report.ranges)
    assert sum(row.self_work_ns for row in both.ranges) == both.totals.work_ns
    assert per_step(both).phases == per_step(report).phases


def test_busy_times_of_several_reports_are_those_of_all_their_steps():
    report = summary(REPORT)
    one, both = merged([report], "one"), merged([report, report], "both")
    assert one.busy == report.busy != ()
    assert [row.busy_ns for row in both.busy] == [2 * row.busy_ns for row in report.busy]
    assert per_step(both).busy == per_step(report).busy


def test_a_kernel_has_the_spelling_of_the_first_report_that_has_it():
    first, second = "void f<(int)4>(const float *)", "void f<4>(float const*)"
    reports = [report_of(row(name, 10, "step")) for name in (first, second, second)]
    assert [one.kernels[0].kernel for one in in_one_spelling(reports)] == [first] * 3
    assert merged(reports, "all").kernels[0].total_ns == 30


def test_view_says_what_is_left_out_and_can_show_every_index(ranked):
    text = as_table.present(ranks(ranked))
    assert "2 of 3 reports" in text
    assert "rank2.sqlite is left out: " in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "layer *" in text
    indexed = as_table.present(ranks(ranked, Detail(every_index=True)))
    assert re.search(r"layer \d", indexed)
    assert "layer *" not in indexed


@pytest.fixture(scope="module")
def cluster():
    """A scheduler and two workers, each a process of its own."""
    pytest.importorskip("distributed", reason="needs the [cluster] extra")
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    scheduler = subprocess.Popen([*command, "--host", "127.0.0.1"], env=env, stderr=subprocess.PIPE, text=True)
    address = next(line.split()[-1] for line in scheduler.stderr if "Scheduler at" in line)
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    workers = [subprocess.Popen(command, cwd=root, env=env, stderr=subprocess.DEVNULL) for _ in range(2)]
    yield address
    for process in (*workers, scheduler):
        process.terminate()
        process.wait()
    scheduler.stderr.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_cluster_gives_the_same_result_and_survives_a_lost_worker(folder, cluster):
    ranked = parallel.rank_all(expand([folder]), summary_or_death, scheduler=cluster)
    local = summary(REPORT)
    assert [one.problem for one in ranked] == [parallel.LOST, "", ""]
    assert [one.report.totals for one in ranked[1:]] == [local.totals] * 2


@pytest.mark.slow
def test_silent_scheduler_is_one_sentence(folder, monkeypatch):
    pytest.importorskip("distributed", reason="needs the [cluster] extra")
    with pytest.raises(UsageError, match="No Dask scheduler answers"):
        parallel.rank_all([folder / "rank0.sqlite"], refusal, scheduler="tcp://127.0.0.1:9")


def test_ranks_per_step_show_one_step_and_not_the_sum_over_ranks():
    one = summary(REPORT)
    document = ranks([parallel.Ranked("a", one), parallel.Ranked("b", one)], per_step=True)
    a, b, mean = (row.values[2:-1] for row in document.tables[0].rows)
    assert a == b == mean
    assert sum(mean[:-2]) == per_step(one).phases[0].kernel_ns + sum(
        row.kernel_ns for row in per_step(one).phases[1:]
    )
    assert document.tables[0].title.endswith("{unit} per step")
    assert document.accounting[0].startswith("All 60.2 ms of GPU work per step is placed:")


def test_a_rank_without_steps_costs_its_row_where_figures_are_per_step():
    one = summary(REPORT)
    document = ranks([parallel.Ranked("a", one), parallel.Ranked("b", replace(one, steps=0))], per_step=True)
    assert document.notes[0] == "b is left out: it has no measured steps."
    with pytest.raises(ReportError, match="None of the reports has measured steps"):
        ranks([parallel.Ranked("b", replace(one, steps=0))], per_step=True)


def test_programs_get_every_range_and_kernel_of_several_reports_by_its_whole_name(ranked):
    shown = as_csv.present(ranks(ranked, WHOLE))
    assert "measure > step > backward > layer 11 > ffn > down projection" in shown
    assert "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(T1::Params)" in shown
