"""Names with too little room keep what tells them apart; times keep a digit that tells them from zero."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.document import Column, Document, Row, Table, headed
from nvtx_kernels.analysis.presenters import as_table
from nvtx_kernels.analysis.presenters import cell_text as in_cells
from nvtx_kernels.analysis.presenters.as_table import layout, shortened
from nvtx_kernels.analysis.support.text import cells
from nvtx_kernels.analysis.support.units import TIME_UNITS, TimeUnit, column_unit, share_text, time_unit

MS = TimeUnit(1e6, "ms")


@pytest.mark.parametrize(
    ("name", "room", "shown"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", 34, "nvjet_tst_192x192…z_coopB_bias_TNN"),
        ("x" * 40, 20, "x" * 10 + "…" + "x" * 9),
        ("short", 5, "short"),
    ],
)
def test_names_are_cut_in_the_middle(name, room, shown):
    assert shortened([name], [room]) == [shown]


NAMES = st.lists(st.text(alphabet="ab _>注\x1b", max_size=40), max_size=6)


@given(NAMES, st.integers(1, 30))
def test_no_name_is_wider_than_its_room(names, room):
    assert all(cells(text) <= room for text in shortened(names, [room] * len(names)))


def test_a_name_is_shortened_for_each_of_its_rooms():
    names = [f"autograd::engine::evaluate_function: {name}Backward0" for name in ("Bmm", "Mul")] * 2
    rooms = [14, 14, 18, 18]
    shown = shortened(names, rooms)
    assert all(cells(text) <= room for text, room in zip(shown, rooms, strict=True))
    assert len(set(shown)) == 4


def test_names_that_the_cut_leaves_alike_are_numbered():
    names = [f"sm80_xmma_gemm_{layout}_tile{tile}_stage3" for layout in ("nn", "nt") for tile in ("64", "128")]
    assert shortened([*names, names[0]], [9] * 5) == [f"sm8…ge3#{number}" for number in (1, 2, 3, 4, 1)]


@given(st.sets(st.sampled_from("abcdefgh"), min_size=2), st.integers(0, 30), st.integers(0, 30))
def test_names_that_differ_in_one_letter_are_never_shown_alike(letters, before, after):
    names = [f"{'kernel_' * 5}"[:before] + letter + f"{' name' * 6}"[:after] for letter in sorted(letters)]
    assert len(set(shortened(names, [12] * len(names)))) == len(names)


@pytest.mark.parametrize(
    ("time_ns", "shown"),
    [(0, "0.00"), (26_973_000, "26.97"), (5_000, "0.01"), (4_400, "0.004"), (-600, "-0.001"), (499, "≈0"),
     (-1, "≈0")],
)  # fmt: skip
def test_a_time_that_is_not_zero_is_not_shown_as_zero(time_ns, shown):
    assert MS.text(time_ns) == shown


def test_less_than_a_nanosecond_is_not_zero_either():
    assert [time_unit([1]).text(time) for time in (0, 0.25, 0.5, 1, 2.5)] == ["0", "0.25", "0.50", "1", "2"]


@pytest.mark.parametrize(
    ("times_ns", "unit"),
    [
        ([3.36e9, 2.48e9, 0.64e9, 0.64e9], "ms"), ([3.36e9, 2.48e9, 1.2e9, 0.64e9], "s"), ([3.36e9], "s"),
        ([2e11, 0.1e9, 0.1e9], "s"), ([6e7, 5e4, 5e4], "ms"), ([0, 0], "ns"), ([0, 0, 0, 3e9], "s"), ([], "ns"),
    ],
)  # fmt: skip
def test_times_of_less_than_a_second_are_not_shown_in_seconds_where_they_are_many(times_ns, unit):
    assert time_unit(times_ns).name == unit


@pytest.mark.parametrize(
    ("times_ns", "shown"),
    [
        ([7_835_400, 309_260, 600_100], ["7.835", "0.309", "0.600"]),
        ([7_835_400, 1_309_260, 600_100, 2_000_000], ["7.84", "1.31", "0.60", "2.00"]),
        ([60_170_000, 309_260], ["60.17", "0.31"]), ([7_835_400, 300, 40, 0], ["7.835", "0.0003", "≈0", "0.000"]),
        ([9_999_999, 100], ["10.000", "0.0001"]), ([7, 0.3, 0.3], ["7", "0.30", "0.30"]),
    ],
)  # fmt: skip
def test_times_of_less_than_one_have_a_third_decimal_where_they_are_many(times_ns, shown):
    assert list(map(time_unit(times_ns).text, times_ns)) == shown


@pytest.mark.parametrize(
    ("times_ns", "unit"),
    [
        ([118_360, 3_240], "µs"),
        ([4_010_000, 540_000], "ms"),
        ([9e9, 50], "ms"),
        ([0, 0], "ns"),
        ([7e13], "s"),
        ([1, 99_999_996], "ms"),
    ],
)
def test_a_column_shows_two_digits_of_its_shortest_time(times_ns, unit):
    assert column_unit(times_ns).name == unit


@given(st.lists(st.integers(1, 10**12), min_size=1))
def test_a_column_unit_is_one_of_the_units_and_no_time_of_it_gets_long(times_ns):
    unit = column_unit(times_ns)
    assert (unit.ns, unit.name) in TIME_UNITS
    assert max(map(len, map(unit.text, times_ns))) <= len("99,999.99")


def test_a_column_with_a_unit_of_its_own_names_it():
    columns = (Column("total_ns", "total", "ns"), Column("mean_ns", "mean", "ns", own_unit=True))
    table = Table("t", "Kernels, {unit} total", columns, (Row((4_320_000, 3_243.2)), Row((None, None))))
    assert in_cells.title(table) == "Kernels, ms total"
    assert in_cells.headings(table) == ["total", "mean µs"]
    assert in_cells.texts(table) == [["4.32", "3.24"], ["–", "–"]]


def test_a_share_that_rounds_to_nothing_has_no_sign():
    assert [share_text(share) for share in (-0.0001, 0.0, -0.011)] == ["0.0%", "0.0%", "-1.1%"]


TREE = Table(
    "t",
    "Ranges, {unit}",
    (Column("range", "range", "name"), Column("span_ns", "GPU span", "ns"), Column("count", "launches", "count")),
    (Row(("step", 9_000_000, 12)), Row(("computing attention scores", 1_000_000, 4), indent=3)),
)


@pytest.mark.parametrize(
    ("width", "heads", "indent", "whole"),
    [
        (60, ["range", "GPU span", "launches"], 2, True),
        (48, ["range", "GPU\nspan", "launches"], 2, True),
        (45, ["range", "GPU\nspan", "launches"], 1, True),
        (40, ["range", "GPU span", "launches"], 2, False),
    ],
)
def test_names_are_worth_lines_in_headings_and_a_smaller_indent(width, heads, indent, whole):
    found = layout(TREE, in_cells.texts(TREE), in_cells.headings(TREE), width)
    assert (found.heads, found.indent, found.cuts_no_name) == (heads, indent, whole)
    drawn = as_table.present(Document("", (TREE,)), width=width)
    assert max(map(cells, drawn.splitlines())) <= width
    assert ("computing attention scores" in drawn) == whole


def test_numbers_of_a_deep_tree_are_whole_and_its_names_are_not_gone():
    rows = (Row((f"aten::operator_{depth}", 10**9 + depth, 123_456), indent=depth) for depth in range(14))
    table = replace(TREE, rows=tuple(rows))
    for width in (40, 60, 80):
        drawn = as_table.present(Document("", (table,)), width=width)
        assert len(re.findall(r" 1\.00 +123,456\n", drawn)) == 14
        assert all(len(line.split()[0]) >= 5 for line in drawn.splitlines()[-14:])
        assert max(map(cells, drawn.splitlines())) <= width


def test_a_name_column_leaves_the_room_that_it_does_not_need():
    columns = (Column("range", "range", "name"), Column("slowest", "slowest", "name"))
    table = Table("t", "", columns, (Row(("a range with a long name", "rank 0")),))
    assert layout(table, in_cells.texts(table), in_cells.headings(table), 32).rooms == {0: 24, 1: 7}


def test_a_screen_of_few_lines_loses_rows_then_reasons_then_empty_lines_and_no_command():
    rows = tuple(Row((f"r{number}",)) for number in range(9))
    table = Table("times", "Times", headed("range"), rows, least=2)
    commands = (
        "nvtx-kernels open a_report_with_a_name_longer_than_this_screen.sqlite",
        "view idle",
        "try train.py",
    )
    document = Document("heading", (table,), notes=("It is so. Change it.",), verdict="An answer.", next=commands)
    drawn = {lines: as_table.present(replace(document, lines=lines), width=40) for lines in (0, 13, 12, 10)}
    assert [drawn[lines].count("r8") for lines in (0, 13)] == [1, 0]
    assert ["Change it." in drawn[lines] for lines in (13, 12, 10)] == [True, False, False]
    assert [drawn[lines].count("\n\n") for lines in (12, 10)] == [2, 0]
    coloured = as_table.present(replace(document, lines=12), width=40, color=True)
    assert as_table.COLOURS.sub("", coloured) == drawn[12]
    for text in drawn.values():
        assert text.endswith(f"More: {commands[0]}\n  {commands[1]} · {commands[2]}\n")
