"""The difference of two accounts: by state, and adding up to the difference of the step times."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from nvtx_kernels.analysis import compare as command
from nvtx_kernels.analysis.compare.accounts import states_ns
from nvtx_kernels.analysis.compare.answer import answer
from nvtx_kernels.analysis.compare.changes import compare, notes
from nvtx_kernels.analysis.compare.sides import recorded
from nvtx_kernels.analysis.opened import opened

from tests.analysis.making.building import Launch, Range, Work, build
from tests.analysis.making.bundled import DATA, every_report, readable

FIRST = DATA / "h200_train_fp32.sqlite"


def of_file(path):
    """Return a report with the steps of its recording."""
    side = opened(path)
    return side.whole, recorded(side)


@pytest.mark.parametrize("path", every_report())
def test_the_rows_add_up_to_the_difference_of_what_rank_shows_to_the_nanosecond(tmp_path, path):
    """Each report is compared with one of a GPU both ways, and one of a CPU with itself."""
    report, side = of_file(readable(path, tmp_path))
    like, side_of_like = (report, side) if report.account.on_cpu else of_file(FIRST)
    for a, b, sides in ((like, report, (side_of_like, side)), (report, like, (side, side_of_like))):
        check_sum(a, b, sides)


def check_sum(a, b, sides=((), ())):
    """Check the rows of two reports against the exact times of both accounts; return whether there are any."""
    are_of_steps = [report.account.has_steps for report in (a, b)]
    comparison = compare(a, b, per_step=all(are_of_steps), sides=sides)
    rows = comparison.account
    if len(set(are_of_steps)) > 1:
        assert not rows, "an account of a step is not compared with that of a recording"
        return False
    for name, account in (("a_ns", a.account), ("b_ns", b.account)):
        exact_ns = Fraction(sum(row.own_ns for row in account.counted), len(account.counted))
        assert sum(states_ns(account).values()) == exact_ns
        assert sum(getattr(row, name) for row in rows) == pytest.approx(float(exact_ns), rel=1e-12)
    difference_ns = b.account.recorded_ns - a.account.recorded_ns
    assert sum(row.delta_ns for row in rows) == pytest.approx(difference_ns, rel=1e-9, abs=1e-3)
    return True


def waiting(folder, wait_ns, steps=12):
    """Write a report whose steps compute for 100 ns, after the program ran its own code for so long."""
    folder.mkdir()
    length = wait_ns + 130
    starts = [length * number for number in range(steps)]
    return str(
        build(
            folder,
            ranges=[Range("step", at, at + length - 1) for at in starts],
            launches=[Launch(n, at + wait_ns, at + wait_ns + 5) for n, at in enumerate(starts)],
            work=[Work(n, at + wait_ns + 10, at + wait_ns + 110) for n, at in enumerate(starts)],
        )
    )


RULES = {
    "idle > +5%": 3,
    "launching > +400ns": 3,
    "account:idle launching > +5% beyond spread": 3,
    "compute > +1%": 0,
    "data loading > +1us": 0,
    "copies to host > +1us": 0,
    "idling > +5%": 2,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_can_be_of_a_row_of_the_account_also_of_one_that_is_zero(tmp_path, rule):
    sides = waiting(tmp_path / "a", 1000), waiting(tmp_path / "b", 1500)
    assert command.main([*sides, "--fail-on", rule]) == RULES[rule]


def test_the_answer_and_json_name_what_changed_most_and_where(tmp_path, capsys):
    sides = waiting(tmp_path / "a", 1000), waiting(tmp_path / "b", 1500)
    assert command.main([*sides, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "Mostly idle (launching kernels) +458 ns." in shown["answer"]["sentence"]
    first = shown["account"][0]
    assert (first["kind"], first["what"], first["path"]) == ("idle", "launching", ["step"])
    assert shown["answer"]["delta_ns"] == 500 == round(sum(row["delta_ns"] for row in shown["account"]), 6)


def test_totals_have_no_account_and_a_rule_of_one_says_so(tmp_path, capsys):
    sides = waiting(tmp_path / "a", 1000), waiting(tmp_path / "b", 1500)
    assert command.main([*sides, "--totals", "--fail-on", "idle > +5%"]) == 1
    assert "needs the account of a step on both sides" in capsys.readouterr().err


@pytest.mark.parametrize("per_step", [None, True])
def test_repeated_steps_that_do_different_work_are_noted_also_where_they_are_compared(tmp_path, per_step):
    reports = []
    for name, kernel in (("a", "f"), ("b", "g")):
        report, _ = of_file(waiting(tmp_path / name, 1000))
        kernels = tuple(replace(row, kernel=kernel) for row in report.kernels)
        account = replace(report.account, steps_by="repetition")
        reports.append(replace(report, kernels=kernels, account=account))
    note = next(notes(compare(*reports, per_step=per_step)))
    assert "Steps found by repetition do different work: 0% of their launches are common." in note
    assert ("The totals are compared" in note) == (per_step is None)


def test_no_row_is_named_that_goes_against_steps_without_recording(tmp_path):
    """The program was faster while it was timed without recording, and slower in the steps that were recorded."""
    reports, sides = [], []
    for name, wait_ns, alone_ns in (("a", 1000, 800.0), ("b", 1500, 400.0)):
        report, (recording,) = of_file(waiting(tmp_path / name, wait_ns))
        reports.append(report)
        sides.append((replace(recording, alone_ns=alone_ns + np.arange(5)),))
    one = answer(compare(*reports, sides=tuple(sides)))
    assert one.change.verdict == "not known"
    assert "Recorded steps differ by +500 ns, the other way: record three runs of each" in one.sentence
    several = answer(compare(*reports, sides=tuple((side[0], side[0]) for side in sides)))
    assert several.sentence.startswith("B is 2.00 times as fast: ")
    assert "While recorded, the difference is +500 ns: the account does not explain it." in several.sentence
    assert "Mostly" not in several.sentence
