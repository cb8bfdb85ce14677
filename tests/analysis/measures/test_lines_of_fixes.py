"""The lines of what rules find: of the work concerned, of calls, and of the pauses before them."""

import json
from functools import partial

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.measures.symptoms import with_most
from nvtx_kernels.analysis.vocabulary import PATH_SEPARATOR

from tests.analysis.making import wasteful
from tests.analysis.making.lined import traced_report
from tests.analysis.making.simulated import MS, US
from tests.analysis.measures.test_fixes import found, rule


def loading(machine):
    """Run a step that makes a batch at line 1, copies it at line 2, and reads its loss at line 3."""
    machine.at(1)
    machine.host(9 * MS)
    machine.at(2)
    machine.upload(16 << 20)
    wasteful.trained(machine)
    machine.at(3)
    machine.read()


def deciding(machine):
    """Read a number in forward at line 20."""
    machine.at(20)
    machine.read()
    machine.host(900 * US)


#: By rule: a program, and the lines that a change concerns, the most of its time first; and their range.
LINES = {
    "host_pause": (loading, [1], "step"),
    "pageable_copy": (loading, [2], "step"),
    "scalar_read": (partial(wasteful.trained, after=wasteful.reading), [60], "step"),
    "forward_read": (partial(wasteful.trained, in_forward=deciding), [20], "step > forward"),
    "to_cpu": (partial(wasteful.trained, after=wasteful.computing_on_cpu), [60, 61], "step"),
    "from_cpu": (partial(wasteful.trained, in_forward=wasteful.made_on_cpu), [21, 20], "step > forward"),
    "one_by_one": (partial(wasteful.trained, after=wasteful.averaging, lasts=20 * US), [60], "step"),
    "allocating": (partial(wasteful.trained, after=wasteful.allocating), [63, 62], "step"),
    "anomaly": (partial(wasteful.trained, in_backward=wasteful.checked, lasts=20 * US), [40], "step > backward"),
    "device_sync": (partial(wasteful.trained, in_backward=wasteful.synchronizing), [40], "step > backward"),
    "compile": (partial(wasteful.trained, in_forward=wasteful.chained), [20], "step > forward"),
    "layouts": (partial(wasteful.trained, in_forward=wasteful.converting), [20], "step > forward"),
    "layout_copies": (wasteful.reformatting, [20], "step > forward > Net"),
    "left_in_tf32": (wasteful.partly_in_tf32, [20], "step > forward"),
    "dense_rows": (wasteful.looking_up, [20], "step > backward > table"),
    "untrained": (wasteful.distilled, [31], "step > backward > Net > teacher > conv 9"),
    "frozen": (partial(wasteful.distilled, in_vain=False), [31], "step > forward > Net > teacher"),
    "padding": (wasteful.of_tokens, [10], "step > backward"),
    "one_hot": (partial(wasteful.trained, in_forward=wasteful.by_one_hot), [20], "step > forward"),
    "distances": (partial(wasteful.trained, in_forward=wasteful.of_pairs), [20], "step > forward"),
    "slices": (partial(wasteful.trained, in_backward=wasteful.of_slices), [40], "step > backward"),
    "second_forward": (wasteful.evaluated, [60], "step > Net"),
    "new_sizes": (wasteful.of_lengths, [20], "step > forward > layer 0"),
    "micro_batches": (wasteful.accumulating, [30, 10], "step > backward"),
    "fp64": (partial(wasteful.trained, gemm=wasteful.DOUBLE_GEMM), [30, 10], "step > backward"),
}


#: Times by path, and the innermost range with six of ten or more: `.` between names.
MOSTLY = {
    "one range": ({"forward.M.head": 6, "forward.M": 4}, "M.head"),
    "the items of a list": ({"forward.M.h 0": 3, "forward.M.h 1": 3, "forward.M": 4}, "M.h *"),
    "one item of each": ({"forward.M.h 0.mlp 2": 3, "forward.M.h 1.mlp 2": 3, "forward.M": 4}, "M.h *.mlp 2"),
    "forward and backward": ({"forward.M.head": 3, "backward.M.head": 3, "optimizer": 4}, "M.head"),
    "a phase": ({"optimizer": 6, "forward.M": 4}, "optimizer"),
    "the model": ({"forward.M.a": 2, "forward.M.b": 2, "backward.M": 2, "loss": 1}, "M"),
    "two of almost half": ({"forward.M.up": 5.1, "forward.M.down": 4.9}, "M"),
    "none": ({"forward.M": 4, "loss": 1}, ""),
}


@pytest.mark.parametrize("case", MOSTLY)
def test_a_change_is_placed_where_most_of_it_is(case):
    times, place = MOSTLY[case]
    assert ".".join(with_most({tuple(path.split(".")): ns for path, ns in times.items()}, 10)) == place


@pytest.mark.parametrize("name", LINES)
def test_a_change_names_its_lines_and_ranges(tmp_path, name):
    program, lines, place = LINES[name]
    run = wasteful.OF_TABLE | wasteful.UNTRAINED | wasteful.FROZEN
    run |= wasteful.PADDED if name == "padding" else {}
    fix = rule(found(tmp_path, program, run=run), name)
    assert [time.line.line for time in fix.lines][: len(lines)] == lines
    assert PATH_SEPARATOR.join(fix.where[0]) == place
    assert fix.count > 0


def test_launching_names_the_line_that_launches_the_most(tmp_path):
    small = partial(wasteful.chained, lasts=3 * US, length=300, count=1)
    program = partial(wasteful.trained, lasts=3 * US, in_forward=small)
    fix = rule(found(tmp_path, program), "launching")
    assert fix.lines[0].line.line == 20


def test_fixes_of_a_report_have_lines_in_json(tmp_path, capsys):
    assert kernels.main([str(traced_report(tmp_path, count=6, longer=-1)), "--format", "json"]) == 0
    fixes = json.loads(capsys.readouterr().out)["fixes"]
    assert fixes
    assert all(
        set(line) == {"file", "line", "function", "backward", "ns"} for fix in fixes for line in fix["lines"]
    )
    assert any(fix["lines"] for fix in fixes)
