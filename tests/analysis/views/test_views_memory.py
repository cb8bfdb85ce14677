"""Memory by range: what is allocated, kept and freed where, the peak and its holders, and that it adds up."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.measures.memory import memory
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.views.memory import NO_MEMORY, NOT_MEASURED, OF_CUDA, OTHERS, UNEXPLAINED

from tests.analysis.making.allocated import BEFORE, MB, RANGES, two_steps
from tests.analysis.making.building import AUTOGRAD, MAIN, Allocation, Launch, Range, Work, build, launched
from tests.analysis.making.copies import scrubbed
from tests.analysis.making.kineto import Block, Call, Memory, Program, operator, write_kineto
from tests.analysis.making.kineto import Work as Kernel
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.subjects import by, table, viewed

FIGURES = ("allocated_bytes", "kept_bytes", "freed_bytes", "peak_bytes")


def figures(path, **options):
    """Return MB allocated, kept, freed and held at the peak, by range."""
    rows = by(viewed("memory", path, whole=True, **options), "memory", "range")
    return {name: tuple(row[key] / MB for key in FIGURES) for name, row in rows.items()}


def test_ranges_have_what_was_allocated_kept_and_freed_inside_them(tmp_path):
    assert figures(two_steps(tmp_path), per_step=True) == {
        "step": (9, 4, 9, 7),
        "step > forward": (6, 4, 2, 4),
        "step > forward > layer": (2, 0, 2, 0),
        "step > backward": (3, 0, 4, 3),
        "step > optimizer": (0, 0, 3, 0),
    }


LAYER = (operator("aten::linear", 0, 100), operator("aten::mm", 10, 90))
IN_MM, AFTER = Memory(15, MB, 1, MB), Memory(150, -MB, 1, 0)


@pytest.mark.parametrize(
    ("blocks", "launched_at", "expected"),
    [
        (LAYER, 20, {"aten::linear": (1, 0, 0, 1), "aten::linear > aten::mm": (1, 0, 0, 1), "": (0, 0, 1, 0)}),
        (LAYER, 120, {"aten::linear": (1, 0, 0, 1), "aten::linear > aten::mm": (1, 0, 0, 1), "": (0, 0, 1, 0)}),
        ((Block("layer", 0, 95), *LAYER), 20, {"layer": (1, 0, 0, 1), "": (0, 0, 1, 0)}),
    ],
    ids=["operators", "kernel elsewhere", "a range of the user's"],
)
def test_allocation_in_no_range_belongs_to_its_operator_as_kernels_do(tmp_path, blocks, launched_at, expected):
    call, kernel = Call(1, launched_at, launched_at + 5), Kernel(1, launched_at + 9, launched_at + 19)
    program = Program([*blocks], [call], [kernel], memory=[IN_MM, AFTER])
    path = write_kineto(tmp_path / "operators.json", program)
    assert {name.replace("(outside all ranges)", ""): row for name, row in figures(path).items()} == expected
    holders = by(viewed("memory", path), "holders", "range")
    assert {row.split(" > ")[0] for row in holders} == {next(iter(expected))}


def test_peak_of_each_phase_has_what_was_there_when_it_began(tmp_path):
    rows = by(viewed("memory", two_steps(tmp_path)), "peaks", "phase")
    held = {phase: row["held_bytes"] / MB - BEFORE for phase, row in rows.items()}
    assert held == {"all": 7, "forward": 6, "backward": 7, "optimizer": 3}
    assert rows["all"]["range"] == "step > backward"


def test_holders_add_up_to_the_peak_with_what_no_allocation_explains(tmp_path):
    rows = by(viewed("memory", two_steps(tmp_path)), "holders", "range")
    held = {name: row["held_bytes"] / MB for name, row in rows.items()}
    assert held == {UNEXPLAINED: BEFORE, "step > forward": 4, "step > backward": 3}
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)


def test_largest_allocations_say_where_they_were_freed(tmp_path):
    rows = table(viewed("memory", two_steps(tmp_path)), "largest")
    assert [tuple(row.values()) for row in rows] == [
        ("step > forward", "forward", 4 * MB, 2, "backward"),
        ("step > backward", "backward", 3 * MB, 2, "optimizer"),
        ("step > forward > layer", "forward", 2 * MB, 2, "forward"),
    ]


def test_a_change_without_an_event_is_unseen_and_in_no_range(tmp_path):
    allocations = [Allocation(15, MB, 1, 5 * MB), Allocation(60, -MB, 1, 7 * MB)]
    ranges = [Range(*one) for one in RANGES]
    document = viewed("memory", build(tmp_path, ranges=ranges, allocations=allocations, **launched((12, 13))))
    (row,) = table(document, "balance")
    assert [value / MB for value in list(row.values())[1:]] == [4, 1, 1, 3, 7]
    assert by(document, "holders", "range")[UNEXPLAINED]["held_bytes"] == 7 * MB


def test_warm_up_is_left_out_but_what_it_allocated_is_held(tmp_path):
    ranges = [
        Range("warmup", 0, 50), Range("optimizer", 10, 40),
        Range("measure", 60, 200), Range("step", 70, 190), Range("forward", 80, 180),
    ]  # fmt: skip
    allocations = [Allocation(20, 2 * MB, 1, 2 * MB), Allocation(90, MB, 2, 3 * MB)]
    path = build(tmp_path, ranges=ranges, allocations=allocations, **launched((12, 13), (85, 86)))
    found = figures(path)
    assert found["measure"] == (1, 0, 0, 1)
    assert found["warmup > optimizer"] == (0, 0, 0, 2)
    assert figures(path, include_warm_up=True)["warmup > optimizer"] == (2, 0, 0, 2)


def test_allocations_of_autograds_thread_are_the_waiting_threads(tmp_path):
    """As kernels are: the thread that called backward waits, with its ranges open."""
    ranges = [Range("step", 0, 300), Range("backward", 100, 200), Range("Linear", 120, 180, AUTOGRAD)]
    allocations = [Allocation(140, MB, 1, MB, AUTOGRAD)]
    calls = launched((10, 20), (130, 135, AUTOGRAD), (150, 155, AUTOGRAD), (250, 260))
    names = {AUTOGRAD: "pt_autograd_0"}
    path = build(tmp_path, ranges=ranges, allocations=allocations, thread_names=names, **calls)
    assert figures(path)["step > backward > Linear"] == (1, 0, 0, 1)


def test_what_nsys_saw_of_cuda_belongs_to_the_range_of_the_call(tmp_path):
    ranges = [Range("step", 0, 100), Range("forward", 10, 50), Range("forward", 10, 50, AUTOGRAD)]
    launches = [Launch(1, 12, 13), Launch(2, 20, 30), Launch(3, 60, 70)]
    allocations = [Allocation(25, MB, 0xA0, correlation=2), Allocation(65, -MB, 0xA0, correlation=3)]
    path = build(tmp_path, ranges=ranges, launches=launches, work=[Work(1, 14, 20)], allocations=allocations)
    document = viewed("memory", path, whole=True)
    assert OF_CUDA in document.notes
    assert figures(path)["step > forward"] == (1, 0, 0, 1)
    assert figures(path)["step"] == (1, 0, 1, 1)


def test_reports_without_memory_say_how_to_get_it():
    with pytest.raises(ReportError, match="memory=True") as refused:
        viewed("memory", OURS)
    assert str(refused.value) == NO_MEMORY


def test_nothing_in_the_measured_part_is_said(tmp_path):
    ranges = [Range("warmup", 0, 50), Range("step", 60, 90)]
    rows = {"allocations": [Allocation(20, MB, 1, MB)], **launched((12, 13), (65, 66))}
    with pytest.raises(ReportError) as refused:
        viewed("memory", build(tmp_path, ranges=ranges, **rows))
    assert str(refused.value) == NOT_MEASURED


def test_phases_are_those_asked_for(tmp_path):
    assert {row[:14] for row in figures(two_steps(tmp_path), phase="forward")} == {"step > forward"}


def test_a_shared_copy_has_the_same_memory(tmp_path):
    path = two_steps(tmp_path)
    assert figures(scrubbed(path)) == figures(path)


MOVES = st.lists(st.tuples(st.integers(0, 210), st.integers(-3, 5), st.integers(0, 4)), min_size=1, max_size=30)


@given(MOVES)
def test_whatever_happens_the_sums_hold(tmp_path_factory, moves):
    held, allocations = BEFORE, []
    for at, size, block in sorted(moves):
        held += size
        if size:
            allocations.append(Allocation(at, size, block, held, MAIN))
    ranges = [Range(name, start + begin, end + begin) for begin in (0, 100) for name, start, end in RANGES]
    rows = {"allocations": allocations, **launched((12, 13))}
    found = memory(attribute(read(build(tmp_path_factory.mktemp("moves"), ranges=ranges, **rows))))
    if found is None:
        assert not allocations
        return
    (balance,) = found.balances
    sizes = np.array([one.bytes for one in allocations])
    assert astuple(balance)[1:] == (BEFORE, sizes[sizes > 0].sum(), -sizes[sizes < 0].sum(), 0, held)
    top = [row for row in found.ranges if len(row.path) < 2]
    assert sum(row.allocated_bytes for row in top) == balance.allocated_bytes
    assert sum(row.freed_bytes for row in top) == balance.freed_bytes
    totals = [BEFORE + sum(sizes[: count + 1]) for count in range(len(sizes))]
    assert found.peaks[0].held_bytes == sum(one.held_bytes for one in found.holders) == max(totals)


def test_a_range_narrows_all_but_what_is_of_the_device(tmp_path):
    path = two_steps(tmp_path)
    whole, part = (viewed("memory", path, whole=True, within=within) for within in (None, "LAYER"))
    assert [row["range"] for row in table(part, "memory")] == ["step > forward > layer"]
    assert table(part, "memory")[0] in table(whole, "memory")
    assert table(part, "largest") == [row for row in table(whole, "largest") if "layer" in row["range"]]
    assert table(part, "peaks") == table(whole, "peaks")
    assert (part.accounting, table(part, "balance")) == (whole.accounting, table(whole, "balance"))


def test_what_other_ranges_hold_at_the_peak_is_one_row(tmp_path):
    path = two_steps(tmp_path)
    whole = sum(row["held_bytes"] for row in table(viewed("memory", path, whole=True), "holders"))
    rows = by(viewed("memory", path, whole=True, within="backward"), "holders", "range")
    assert rows["step > backward"]["held_bytes"] == 3 * MB
    assert rows[OTHERS]["held_bytes"] == whole - 3 * MB


def test_a_range_without_a_kernel_is_found_and_an_unknown_one_refused(tmp_path):
    assert table(viewed("memory", two_steps(tmp_path), within="optimizer"), "memory")
    with pytest.raises(ReportError, match=r"range that matches 'nowhere'. Ranges: .*layer"):
        viewed("memory", two_steps(tmp_path), within="nowhere")


def test_rows_of_chosen_ranges_say_their_phase(tmp_path):
    rows = table(viewed("memory", two_steps(tmp_path), within="layer"), "memory")
    assert [(row["range"], row["phase"]) for row in rows] == [("layer", "forward")]
    assert "phase" not in table(viewed("memory", two_steps(tmp_path)), "memory")[0]
