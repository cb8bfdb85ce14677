"""Which ranges count as steps: their usual names, or what the user calls them."""

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.attribution.causes import Rules, attribute
from nvtx_kernels.analysis.errors import UsageError
from nvtx_kernels.analysis.summary.totals import summarize

from nvtx_kernels import analysis
from tests.analysis.making.building import Range, Work, build, launched

LOOP = [Range(f"lap {n}", 100 * n, 100 * n + 90) for n in range(4)]
INNER = [Range("lap 9", 310, 320), Range("step", 20, 40)]


@pytest.fixture
def report(tmp_path):
    calls = launched(*((100 * n + 25, 100 * n + 26) for n in range(4)), (312, 313), (395, 396))
    return build(tmp_path, ranges=[*LOOP, *INNER], **calls)


@pytest.mark.parametrize(
    ("called", "steps"), [("", 1), ("lap *", 4), ("LAP ?", 4), ("lap 2", 1), ("lap 9", 1), ("l*", 4)]
)
def test_steps_are_what_they_are_called(report, called, steps):
    assert summarize(attribute(analysis.read(report), Rules(step=called))).steps == steps


def test_a_part_of_a_name_is_not_the_name(report):
    with pytest.raises(UsageError, match=r"No range is called 'lap'. Ranges: lap \*, step\."):
        attribute(analysis.read(report), Rules(step="lap"))


def test_figures_are_divided_by_them_and_the_rest_is_told(report, capsys):
    assert kernels.main([str(report), "--per-step", "--step", "lap *"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " · 3 of 4 steps" in said
    assert "ns per step" in said
    assert "Left out: 10 ns in no step: set-up or evaluation (--totals counts it)." in said


def test_report_without_steps_names_the_option(report, capsys):
    assert kernels.main([str(build(report.parent, **launched((20, 30)))), "--per-step"]) == 1
    assert "use --step NAME for ranges with another name" in capsys.readouterr().err


def test_work_whose_launch_is_lost_is_said_of_figures_per_step(tmp_path, capsys):
    ranges = [Range("step", n, n + 90) for n in (0, 100)]
    rows = launched((10, 12), (110, 112))
    path = build(tmp_path, ranges=ranges, launches=rows["launches"], work=[*rows["work"], Work(None, 30, 230)])
    assert kernels.main([str(path), "--per-step"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "200 ns in no step" in said or "200 ns between measured steps" in said
    assert "Steps may lack 200 ns of work whose launch was not recorded." in said
