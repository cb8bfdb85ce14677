"""The difference of two accounts: by state, and adding up to the difference of the step times."""

import json

import pytest
from nvtx_kernels.analysis import compare as command
from nvtx_kernels.analysis.compare.changes import compare
from nvtx_kernels.analysis.compare.sides import recorded
from nvtx_kernels.analysis.errors import NoGpuWork
from nvtx_kernels.analysis.opened import opened

from tests.analysis.making.building import Launch, Range, Work, build
from tests.analysis.making.bundled import DATA, REPORTS, unpacked

FIRST = DATA / "h200_train_fp32.sqlite"


@pytest.mark.parametrize("name", REPORTS)
def test_the_states_add_up_to_the_difference_of_the_step_times_as_rank_tells_them(tmp_path, name):
    try:
        sides = opened(FIRST), opened(unpacked(name, tmp_path))
    except NoGpuWork:
        pytest.skip("the report has no work")
    step_ns = [side.whole.account.step_ns for side in sides]
    per_step = None not in step_ns
    comparison = compare(*(side.whole for side in sides), per_step=per_step, sides=tuple(map(recorded, sides)))
    sums = [sum(row.a_ns for row in comparison.account), sum(row.b_ns for row in comparison.account)]
    assert sums == ([0, 0] if None in step_ns else pytest.approx(step_ns, abs=0.5))


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
    assert "Mostly idle (launching) +458 ns." in shown["answer"]["sentence"]
    first = shown["account"][0]
    assert (first["kind"], first["what"], first["path"]) == ("idle", "launching", ["step"])
    assert shown["answer"]["delta_ns"] == 500 == round(sum(row["delta_ns"] for row in shown["account"]), 6)


def test_totals_have_no_account_and_a_rule_of_one_says_so(tmp_path, capsys):
    sides = waiting(tmp_path / "a", 1000), waiting(tmp_path / "b", 1500)
    assert command.main([*sides, "--totals", "--fail-on", "idle > +5%"]) == 1
    assert "needs the account of a step on both sides" in capsys.readouterr().err
