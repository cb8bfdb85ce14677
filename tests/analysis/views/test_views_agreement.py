"""Do the clocks agree: CPU range, GPU span, kernel time, and times measured elsewhere."""

from dataclasses import replace

import pytest
from nvtx_kernels.analysis.errors import ReportError, UsageError
from nvtx_kernels.analysis.measures.agreement import AGREES_WITHIN
from nvtx_kernels.analysis.views.agreement import view

from tests.analysis.making.building import Launch, Range, Work, build, launched
from tests.analysis.making.plain_sql import OURS, value
from tests.analysis.making.subjects import by, subject, table, viewed


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "step"])
def test_times_of_an_h200_are_those_of_sql(phase):
    row = by(viewed("agreement", OURS), "agreement", "phase")[phase]
    assert row["cpu_ns"] == value(OURS, "SELECT sum(end - start) FROM ranges WHERE name = ? AND thread = "
                                  "(SELECT thread FROM ranges WHERE name = 'step' LIMIT 1)", phase)  # fmt: skip
    assert row["kernel_ns"] == value(OURS, "SELECT sum(ns) FROM during WHERE range = ?", phase)
    assert row["ranges"] == 2


def test_synchronized_phases_of_an_h200_agree_where_the_gpu_starts_at_once():
    rows = by(viewed("agreement", OURS), "agreement", "phase")
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "forward": "agree", "backward": "agree", "optimizer": "CPU longer", "step": "agree",
    }  # fmt: skip


def one_forward(tmp_path, opened, closed, *, started=100, ended=1100):
    work = [Work(1, started, ended)]
    return build(tmp_path, ranges=[Range("forward", opened, closed)], launches=[Launch(1, 20, 30)], work=work)


@pytest.mark.parametrize(
    ("closed", "started", "verdict"),
    [
        (1099, 100, "not synchronized"),
        (1100, 100, "CPU longer"),
        (1019 + int(1000 * (1 + AGREES_WITHIN)), 100, "CPU longer"),
        (1110, 40, "agree"),
    ],
)
def test_verdict_follows_from_where_the_range_closes_and_work_starts(tmp_path, closed, started, verdict):
    (row,) = table(viewed("agreement", one_forward(tmp_path, 19, closed, started=started)), "agreement")
    assert (row["cpu_ns"], row["span_ns"], row["verdict"]) == (closed - 19, 1100 - started, verdict)


def test_every_verdict_is_in_the_legend():
    document = viewed("agreement", OURS, timed={"forward": 30e6, "step": 10e6})
    verdicts = {row["verdict"] for key in ("agreement", "timed") for row in table(document, key)}
    assert verdicts == {"agree", "CPU longer", "shorter here", "longer here"}
    assert [verdict for verdict in verdicts if verdict not in " ".join(t.caption for t in document.tables)] == []


def test_an_unsynchronized_phase_says_for_how_long_the_gpu_worked_on(tmp_path):
    notes = " ".join(viewed("agreement", one_forward(tmp_path, 19, 600)).notes)
    assert "the GPU worked on for 500 ns after 1 of 1 ranges had closed" in notes


def test_a_late_part_of_a_phase_is_counted_among_all_ranges(tmp_path):
    ranges = [Range("forward", 0, 100), Range("loss", 150, 200)]
    report = build(tmp_path, ranges=ranges, launches=[Launch(1, 20, 30), Launch(2, 160, 170)],
                   work=[Work(1, 40, 120), Work(2, 180, 260)])  # fmt: skip
    answer = viewed("agreement", report)
    assert table(answer, "agreement")[0]["ranges"] == 1
    assert "forward: the GPU worked on for 40 ns after 2 of 2 ranges" in " ".join(answer.notes)


@pytest.mark.parametrize(("timed_ns", "verdict"), [(1100, "agree"), (2000, "shorter here"), (500, "longer here")])
def test_times_measured_elsewhere_are_compared_per_range(tmp_path, timed_ns, verdict):
    asked = subject(one_forward(tmp_path, 10, 1110), timed={"forward": timed_ns})
    (row,) = table(view(asked), "timed")
    assert (row["cpu_ns"], row["verdict"]) == (1100, verdict)
    assert row["ratio"] == pytest.approx(1100 / timed_ns)


def test_a_time_of_a_phase_that_is_not_there_is_wrong_usage(tmp_path):
    asked = replace(subject(one_forward(tmp_path, 10, 1110)), timed={"backward": 1.0})
    with pytest.raises(UsageError, match="backward"):
        view(asked)


def test_a_report_without_phases_is_refused(tmp_path):
    with pytest.raises(ReportError, match="no CPU range"):
        viewed("agreement", build(tmp_path, ranges=[Range("layer", 0, 99)], **launched((10, 20))))
