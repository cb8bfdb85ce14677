"""How much communication and copying hides behind compute, and the intervals it is measured with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.measures.spans import union

from tests.analysis.making.building import Launch, Range, Work, build, launched, process_of, thread
from tests.analysis.making.plain_sql import OURS, rows
from tests.analysis.making.subjects import by, screen, table, viewed

MOMENTS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def intervals(pairs):
    start, end = (np.array([pair[n] for pair in pairs], np.int64) for n in (0, 1))
    return union(start, end)


def moments(pairs):
    return {moment for start, end in pairs for moment in range(start, end)}


@given(MOMENTS, MOMENTS)
def test_unions_and_what_they_share_are_those_of_sets_of_moments(a, b):
    one, two = intervals(a), intervals(b)
    assert one.total_ns == len(moments(a))
    assert one.shared_with(two) == two.shared_with(one) == len(moments(a) & moments(b))
    assert (one.start_ns[1:] > one.end_ns[:-1]).all()


def two_streams(tmp_path, *work):
    launches = [Launch(n, 5, 9) for n in range(len(work))]
    done = [
        Work(n, start, end, name, kind, stream=stream) for n, (start, end, name, kind, stream) in enumerate(work)
    ]
    return build(tmp_path, ranges=[Range("forward", 0, 1000)], launches=launches, work=done)


def test_communication_is_hidden_while_compute_runs_on_the_same_gpu(tmp_path):
    report = two_streams(
        tmp_path, (10, 30, "sgemm", "kernel", 7), (20, 60, ALL_REDUCE, "kernel", 8), (50, 70, "sgemm", "kernel", 7)
    )
    (row,) = table(viewed("overlap", report), "overlap")
    assert (row["streams"], row["span_ns"], row["busy_ns"]) == (2, 60, 60)
    assert (row["compute_ns"], row["communication_ns"]) == (40, 40)
    assert (row["hidden_ns"], row["exposed_ns"]) == (20, 20)


def test_work_that_overlaps_its_own_kind_counts_once_but_adds_up_in_the_sum(tmp_path):
    report = two_streams(
        tmp_path,
        (10, 30, f"{ALL_REDUCE}(Storage<4096ul>)", "kernel", 7),
        (20, 40, f"{ALL_REDUCE}(Storage<4096ul>)", "kernel", 8),
        (35, 90, "sgemm", "kernel", 9),
    )
    row = by(viewed("overlap", report), "transfers", "gpu")["GPU 0"]
    assert (row["count"], row["total_ns"], row["union_ns"], row["hidden_ns"]) == (2, 40, 30, 5)
    assert (row["hidden_share"], row["name"]) == (5 / 30, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")


@pytest.mark.parametrize("kind", ["memcpy", "memset"])
def test_copies_and_memsets_of_an_h200_are_those_of_sql(kind):
    counted = [
        (row["count"], row["total_ns"])
        for row in table(viewed("overlap", OURS), "transfers")
        if kind in row["name"]
    ]
    totals = rows(OURS, f"SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_{kind.upper()}")
    assert [tuple(map(sum, zip(*counted, strict=True)))] == totals


def test_a_report_without_communication_says_so(tmp_path):
    document = viewed(
        "overlap", build(tmp_path, ranges=[Range("forward", 0, 99)], **launched((10, 20), name="sgemm"))
    )
    assert "No kernel communicates" in " ".join(document.notes)
    assert [found.key for found in document.tables] == ["overlap"]


def test_one_phase_alone_has_no_span_of_all_work():
    assert "span" not in screen(viewed("overlap", OURS, phase="forward")).splitlines()[4]


@pytest.fixture
def two_ranks(tmp_path):
    """Two processes of two steps on a GPU each: 15 of compute, 20 of communication of which 10 are hidden."""
    rows = {"ranges": [], "launches": [], "work": []}
    for rank, start in ((rank, start) for rank in (0, 1) for start in (0, 100)):
        main = thread(100 + rank)
        rows["ranges"] += [Range("step", start, start + 90, main), Range("forward", start + 1, start + 50, main)]
        for name, begin, end in (("sgemm", 5, 20), (ALL_REDUCE, 10, 30)):
            n = len(rows["launches"])
            rows["launches"].append(Launch(n, start + 2, start + 3, main))
            rows["work"].append(Work(n, start + begin, start + end, name, process=process_of(main), device=rank))
    return build(tmp_path, **rows)


@pytest.mark.parametrize(
    ("per_step", "scope", "compute_ns", "launches"),
    [(False, "over 2 steps of each GPU", 30, 2), (True, "per step of each GPU", 15, 1)],
)
def test_each_gpu_has_the_figures_of_its_own_ranks_steps(two_ranks, per_step, scope, compute_ns, launches):
    document = viewed("overlap", two_ranks, per_step=per_step)
    assert [found.title.split("{unit} ")[1] for found in document.tables] == [scope, scope]
    for gpu in table(document, "overlap"):
        assert (gpu["compute_ns"], gpu["communication_ns"], gpu["hidden_ns"], gpu["exposed_ns"]) == (
            compute_ns, 20 * launches, 10 * launches, 10 * launches,
        )  # fmt: skip
    assert [row["count"] for row in table(document, "transfers")] == [launches] * 2


@pytest.mark.parametrize(("per_step", "busy_ns"), [(False, 50), (True, 25)])
def test_the_balance_of_each_gpu_is_of_its_own_steps_too(two_ranks, per_step, busy_ns):
    document = viewed("balance", two_ranks, per_step=per_step)
    rows = [row for row in table(document, "balance") if row["phase"] == "step"]
    assert [(row["gpu"], row["busy_ns"], row["span_ns"]) for row in rows] == [
        ("GPU 0", busy_ns, busy_ns), ("GPU 1", busy_ns, busy_ns),
    ]  # fmt: skip
    assert " of each GPU" in next(of for of in document.tables if of.key == "balance").title.replace(" steps", "")
