"""What a compiler fused, saved and lost: joined on paths, and summing to the difference to the nanosecond."""

from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.compare.changes import compare, grouped
from nvtx_kernels.analysis.compare.tables import compared, fusions
from nvtx_kernels.analysis.document import Detail

from tests.analysis.making.made_reports import REPORTS, report_of, row

AROUND = ("step", "forward", "layer 0")
EAGER = report_of(
    row("norm", 300, *AROUND, "norm"),
    row("sgemm", 500, *AROUND, "q projection"),
    row("relu", 50, *AROUND, "ffn", "activation"),
    row("sgemm", 400, *AROUND, "ffn"),
    row("adam", 70, "step", "optimizer"),
    row("copy", 10, "step"),
    steps=1,
)
COMPILED = report_of(
    row("triton", 600, *AROUND, "norm + q projection"),
    row("sgemm", 90, *AROUND, "q projection"),
    row("sgemm", 420, *AROUND, "ffn"),
    row("adam", 90, "step", "optimizer"),
    row("copy", 10, "step"),
    steps=1,
)
FUSED = st.sampled_from(["forward", "layer 0", "layer 1", "softmax", "norm + softmax", "layer 0 a + layer 1 b"])
PATHS = st.lists(FUSED, min_size=1, max_size=4)
ROWS = st.builds(lambda path, ns: row("exp", ns, *path), PATHS, st.integers(0, 10**9))
WITH_FUSIONS = st.builds(lambda rows: report_of(*rows), st.lists(ROWS, min_size=1, max_size=9))


def test_fusions_are_rows_of_their_own_and_other_ranges_are_joined_where_both_have_them():
    comparison = compare(EAGER, COMPILED)
    found = {
        group: [(change.key[-1], change.a_ns, change.b_ns) for change in changes]
        for group, changes in grouped(comparison, comparison.naming()).items()
    }
    assert found == {
        "fused": [("norm + q projection", 0, 600)],
        "saved": [("q projection", 500, 90), ("norm", 300, 0), ("ffn", 450, 420)],
        "lost": [("optimizer", 70, 90)],
        "unchanged": [("step", 10, 10)],
    }


@given(WITH_FUSIONS, WITH_FUSIONS, st.booleans())
def test_what_is_fused_saved_and_lost_sums_to_the_difference_to_the_nanosecond(a, b, collapse):
    comparison = compare(a, b, basis="total")
    groups = grouped(comparison, comparison.naming(every_index=not collapse))
    total = comparison.total()
    if not groups:
        return
    rows = [change for changes in groups.values() for change in changes]
    assert sum(change.a_ns for change in rows) == total.a_ns
    assert sum(change.b_ns for change in rows) == total.b_ns
    assert len({change.key for change in rows}) == len(rows), "no range is counted twice"


@given(WITH_FUSIONS, WITH_FUSIONS, st.integers(1, 3))
def test_the_tables_groups_sum_to_its_last_row_whatever_is_cut(a, b, top):
    for table in fusions(compare(a, b, basis="total"), Detail(top)):
        *parts, total = [line.values[1:4] for line in table.rows if line.strong]
        assert [sum(column) for column in zip(*parts, strict=True)] == [*total]


@given(REPORTS, REPORTS)
def test_there_is_no_table_where_nothing_is_fused(a, b):
    assert fusions(compare(a, b, basis="total")) == ()


def test_the_table_is_the_last_of_a_comparison():
    table = compared(compare(EAGER, COMPILED)).tables[-1]
    assert table.title == "Kernel time that compile fused, saved and lost, {unit} per step"
    assert [line.values[:4] for line in table.rows if line.strong] == [
        ("fused: the work of several ranges", 0, 600, 600),
        ("saved: shorter in B", 1250, 510, -740),
        ("lost: longer in B", 70, 90, 20),
        ("unchanged", 10, 10, 0),
        ("all kernels", 1330, 1210, -120),
    ]
