"""`python -m analysis.questions`: what it prints, at which width, in which format, and what it refuses."""

import io
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from nvtx_kernels.analysis import questions
from nvtx_kernels.analysis.presenters import PRESENTERS, presenter
from nvtx_kernels.analysis.questions.asked import QUESTIONS
from nvtx_kernels.analysis.support.text import cells

from tests.analysis.making.building import Range
from tests.analysis.making.kineto import STEP, write_kineto
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.questioned import (
    COMPILED,
    FIGURE,
    RECORDED,
    asked,
    called,
    every_report,
    keys,
    made,
    said,
)
from tests.analysis.making.subjects import DATA, table

PAGE = (DATA.parents[1] / "docs" / "questions.md").read_text(encoding="utf-8")


def test_warm_up_is_left_out_unless_asked_for(tmp_path, capsys):
    path = made(tmp_path, ("sgemm", 10), ("sgemm", 700), ranges=[Range("warmup", 0, 500)])
    counts = [table(asked(path, include_warm_up=included), "d_launches")[0] for included in (False, True)]
    assert [count["step_gemms"] for count in counts] == [1, 2]
    arguments = (path, "--questions", "d", "--format", "csv", "--include-warmup")
    assert called(capsys, *arguments)[1].splitlines()[-1].endswith(",2")


def test_kernels_that_take_no_time_have_no_share(tmp_path, capsys):
    path = made(tmp_path, ("elementwise_kernel", 10), lasts=0)
    status, printed, _ = called(capsys, path, "--questions", "c", "--format", "json")
    assert status == 0
    assert next(t for t in json.loads(printed)["tables"] if t["key"] == "c_kernels")["rows"][0]["share"] is None


@every_report
@pytest.mark.parametrize("width", [60, 80])
def test_no_line_is_wider_than_the_screen_and_no_figure_is_cut(path, width):
    narrow, wide = said(asked(path), width), said(asked(path), 400)
    assert max(map(cells, narrow.splitlines())) <= width
    assert sorted(FIGURE.findall(narrow)) == sorted(FIGURE.findall(wide))


@every_report
def test_every_table_has_rows_columns_and_says_what_its_shares_are_of(path):
    answer = asked(path)
    for number, one in enumerate(answer.tables):
        assert one.rows
        shares = [column for column in one.columns if column.kind == "share"]
        captions = [later.caption for later in answer.tables[number:] if later.key[0] == one.key[0]]
        assert not shares or any("% is of" in caption for caption in captions)
        assert len(one.columns) > 1
        assert one.caption == one.caption.strip()


@pytest.mark.parametrize("letters", [*QUESTIONS, "be"])
def test_only_the_questions_asked_are_answered(letters):
    assert sorted({key[0] for key in keys(asked(OURS, letters=letters))}) == list(letters)


def test_reports_that_cannot_be_read_cost_their_rows_only(tmp_path, capsys):
    shutil.copy(OURS, tmp_path / "good.sqlite")
    (tmp_path / "bad.sqlite").write_bytes(b"")
    status, out, err = called(capsys, tmp_path, "--questions", "d")
    assert (status, err) == (0, "")
    assert out.startswith("1 of 2 reports")
    assert "Note: bad.sqlite is left out: " in " ".join(out.split())


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
def test_no_report_that_can_be_read_is_an_error(names, tmp_path, capsys):
    for name in names:
        (tmp_path / f"{name}.sqlite").write_bytes(b"")
    status, out, err = called(capsys, tmp_path)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "is empty" in err


def test_a_question_that_no_report_answers_is_an_error_that_says_why(tmp_path, capsys):
    status, out, err = called(capsys, made(tmp_path, ("sgemm", 10)), "--questions", "e")
    assert (status, out) == (1, "")
    assert "computing softmax" in err


@pytest.mark.parametrize("letters", ["f", "", "a,x"])
def test_unknown_questions_are_wrong_usage(letters, capsys):
    with pytest.raises(SystemExit) as stopped:
        questions.main([str(OURS), "--questions", letters])
    assert stopped.value.code == 2


def test_questions_are_read_in_any_order_and_spelling(capsys):
    assert called(capsys, OURS, "--questions", "D, a")[1] == called(capsys, OURS, "--questions", "ad")[1]


@pytest.mark.parametrize("format_", [name for name in PRESENTERS if name != "parquet"])
def test_every_format_goes_to_a_file_as_to_the_screen(format_, tmp_path, capsys):
    report = made(tmp_path, ("sgemm", 10), steps=1)
    status, out, _ = called(capsys, report, "--format", format_)
    assert called(capsys, report, "--format", format_, "-o", tmp_path / "answers") == (0, "", "")
    assert (status, (tmp_path / "answers").read_text(encoding="utf-8")) == (0, out)
    assert re.search(r"51\.(2|19)", presenter(format_).present(asked(OURS)))


def test_no_answer_is_written_over_a_report(tmp_path, capsys):
    shutil.copy(OURS, tmp_path / "report.sqlite")
    assert called(capsys, tmp_path / "report.sqlite", "-o", tmp_path / "report.sqlite")[0] == 2


def test_programs_get_full_names_and_every_category(capsys):
    rows = pd.read_csv(io.StringIO(called(capsys, OURS, "--questions", "b,c", "--format", "csv")[1]))
    assert rows["kernel"][0].endswith("_execute_kernel__5x_cublas")
    assert {"index_share", "casts_share"} <= set(rows.columns)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_every_table_says_its_name_and_of_which_phase_it_is(ending, tmp_path, capsys):
    assert called(capsys, OURS, "-o", tmp_path / f"answers.{ending}") == (0, "", "")
    rows = getattr(pd, f"read_{ending}")(tmp_path / f"answers.{ending}")
    of_phases = rows[rows["table"].str.fullmatch("[ae]_(forward|backward)")]
    assert list(of_phases["phase"]) == ["forward", "backward"] * 2
    assert rows[rows["table"] != "c_kernels"]["kernel_ns"].notna().sum() == 6
    longest = rows[rows["table"] == "c_kernels"]
    assert (longest["phase"].unique(), "gemm" in set(longest["category"])) == (["forward"], False)
    assert longest["share"].sum() == pytest.approx(rows["other_share"].dropna().iloc[0])


def test_a_trace_of_pytorch_answers_too(tmp_path, capsys):
    status, out, err = called(capsys, write_kineto(tmp_path / "rank0.pt.trace.json", STEP))
    assert (status, err) == (0, "")
    assert "? In forward, " in out.replace("\n", " ")


def test_the_page_shows_what_is_printed():
    (shown,) = (text for text in re.findall(r"^```\n(.*?)\n```$", PAGE, re.M | re.S) if "means of 1 to 2" in text)
    printed = [text.rstrip("\n") for text in said(asked(RECORDED, OURS, COMPILED)).split("\n\n")]
    assert [part for part in shown.split("\n\n") if part not in printed] == []


def test_one_name_in_two_folders_is_told_apart(tmp_path, capsys):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        shutil.copy(OURS, tmp_path / folder / "report.sqlite")
    _, out, _ = called(capsys, tmp_path / "one", tmp_path / "two", "--questions", "d", "--format", "json")
    names = [Path(one["report"]).parent.name for one in json.loads(out)["tables"][0]["rows"]]
    assert names == ["one", "two"]
