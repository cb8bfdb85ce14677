"""The account as JSON, and as a summary file has it, also one of version 1."""

from dataclasses import replace

import pytest
from nvtx_kernels.analysis import compare, kernels
from nvtx_kernels.analysis.report import as_object, per_step
from nvtx_kernels.analysis.summary.file import as_sqlite, read_summary

from tests.analysis.account.test_on_cpu import STEPS, recorded
from tests.analysis.account.test_steps import rows_of, stepping
from tests.analysis.making.building import build
from tests.analysis.making.old_summaries import as_old
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.subjects import attributed, opened

#: Steps that end 100 ns after one another but for the last, and have a copy.
ENDS = (20, 120, 220, 320, 500)
DETAILS = {"compute": "category", "communication": "category", "copy": "copy", "idle": "cause"}
#: Keys that 8c28c5a had: none vanishes.
KEPT = {
    "report": "decode_calls decode_ns file gpu_operator gpus models names_joined notes outside per_step "
    "phase_names prefill_ns ranks recording run schema split_fused step step_between_ns step_busy_ns "
    "step_is_median step_ns step_spread steps taken_out_ns token_ns tokens tool trace_modules unit_of_work "
    "unmeasured_ns warm_up_included warm_up_ns writes",
    "idle": "between_ns idle_ns pause per_step rows span_ns",
    "busy": "busy_ns gpus kernels phase span_ns verdict waiting_ns",
    "steps": "between_busy_ns between_ns busy_ns decode_calls decode_ns evaluation_ns first gpus own_ns "
    "prefill_ns process_id recorder_ns step tokens warm_up_ns window_ns",
}


@pytest.fixture
def path(tmp_path):
    return build(tmp_path, **vars(rows_of(stepping(*[[(end - 10, end)] for end in ENDS]))))


def test_the_account_has_these_keys_and_values(path):
    account = as_object(opened(path).whole)["account"]
    (gpu,) = account.pop("gpus")
    (outlying,) = account.pop("outlying")
    assert account == {
        "step_ns": 100, "steps_counted": 3, "all_step_ns": 120, "dropped": 0, "per": "step", "steps_by": "named",
        "steps_of": "", "steps_explained": None, "steps_same": None, "micro_batches": 1, "updates_every": 0,
    }  # fmt: skip
    assert outlying.pop("more").keys() == {"kind", "cause", "ns"}
    assert outlying == {"step": 4, "process_id": 100, "own_ns": 180}
    assert {key: gpu[key] for key in ("gpu", "rank", "total_own_ns")} == {
        "gpu": "GPU 0", "rank": None, "total_own_ns": 300,
    }  # fmt: skip


@pytest.mark.parametrize("path_to", [lambda path: path, lambda path: OURS], ids=["made", "of an H200"])
def test_parts_name_what_they_are_of_and_add_up(path, path_to):
    answer = as_object(opened(path_to(path)).whole)
    for gpu in answer["account"]["gpus"]:
        assert sum(part["total_ns"] for part in gpu["parts"]) == gpu["total_own_ns"]
        for part in gpu["parts"]:
            assert {*part} == {"kind", "phase", "total_ns", DETAILS[part["kind"]]}
    assert answer["report"]["step_ns"] == answer["account"]["step_ns"]


def test_without_steps_the_recording_is_accounted(tmp_path):
    rows = rows_of(stepping([(0, 30)], [(100, 130)]))
    account = as_object(opened(build(tmp_path, launches=rows.launches, work=rows.work)).whole)["account"]
    assert (account["per"], account["steps_by"], account["steps_counted"]) == ("recording", "none", 0)
    assert (account["step_ns"], account["all_step_ns"]) == (None, None)
    assert account["gpus"][0]["total_own_ns"] == 130


def test_on_a_cpu_operators_and_causes_take_the_place_of_work(tmp_path):
    path = recorded(tmp_path, STEPS, [(start, start + 50) for _, start, _ in STEPS])
    answer = as_object(opened(path).whole)
    (cpu,) = answer["account"]["gpus"]
    assert [(part["kind"], part.get("category"), part.get("cause")) for part in cpu["parts"]] == [
        ("idle", None, "Python"), ("operators", "gemm", None),
    ]  # fmt: skip
    assert (answer["idle"], answer["idle_on_cpu"]["idle_ns"]) == (None, 70_000)


@pytest.mark.parametrize("table", KEPT)
def test_no_key_of_earlier_answers_vanishes(table):
    part = as_object(opened(OURS).whole)[table]
    assert {*KEPT[table].split()} <= {*(part if isinstance(part, dict) else part[0])}


def of_version_1(head):
    """Return the head of a summary as 8c28c5a wrote it: with times of steps, and without an account."""
    for about in head["reports"].values():
        rows = about.pop("account")["rows"]
        about["step_time"] = {"rows": [{key: row[key] for key in KEPT["steps"].split()} for row in rows]}
        about |= {"idle": None, "idle_on_cpu": None}
        del about["counted_steps"]
    return head | {"version": 1}


def summary_of_version_1(path, folder):
    whole = replace(opened(path).whole, counted=None)
    new = folder / "report.summary.sqlite"
    new.write_bytes(as_sqlite(attributed(path), whole, rank=0, host="a"))
    return as_old(new, folder / "report.parquet", of_version_1)


def test_a_summary_of_version_1_stays_readable(path, tmp_path):
    report, whole = read_summary(summary_of_version_1(path, tmp_path)), opened(path).whole
    assert [row.own_ns for row in report.account.rows] == [row.own_ns for row in whole.account.rows]
    assert [row.counted for row in report.account.rows] == [row.counted for row in whole.account.rows]
    assert (report.step_ns, report.account.gpus) == (100, ())
    assert per_step(report).totals.work_ns == whole.totals.work_ns / 5


def test_a_summary_of_version_1_is_ranked_and_compared(path, tmp_path, capsys):
    file = summary_of_version_1(path, tmp_path)
    assert kernels.main([str(file)]) == 0
    assert "A step takes 100 ns" in capsys.readouterr().out
    assert compare.main([str(file), str(path)]) == 0
    assert "100 ns" in capsys.readouterr().out
