"""Reports that nobody here made, and four of an H200: what plain SQL over them says must be what we say."""

import re
import sqlite3
from contextlib import closing
from functools import cache

import numpy as np
import pandas as pd
import pytest
from nvtx_kernels.analysis.attribution.causes import HOW, Rules, attribute
from nvtx_kernels.analysis.attribution.links import Links
from nvtx_kernels.analysis.attribution.thread_facts import ThreadFacts
from nvtx_kernels.analysis.errors import NoGpuWork
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.requirements import require_work
from nvtx_kernels.analysis.readers.sqlite import read_only_uri
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.trace import KINDS, START_END

from tests.analysis.making.bundled import SHARED
from tests.analysis.making.traces import path_of

REPORTS = sorted([*SHARED.glob("corpus/*.sqlite"), *SHARED.glob("h200/*.sqlite")])
JSUN, BOLONG, ZX = "jsun-012", "bolongcheng__assignment2-systems__small_bwd", "zx3xyy"
TWO_RANKS, REGISTERED, NOTHING, WINDOWS = "GindaChen", "YoonKyonghwan", "IhorAtlanov", "Athrun0109"

WITH_WORK = [path.name for path in REPORTS if not path.name.startswith((REGISTERED, NOTHING))]

pytestmark = pytest.mark.skipif(not REPORTS, reason="the real reports next to the repository are absent")


def path_to(start):
    """Return the one report whose name begins so."""
    return next(path for path in REPORTS if path.name.startswith(start))


@cache
def attribution(start, **rules):
    return attribute(read(path_to(start)), Rules(**rules))


@cache
def report(start, include_warm_up=True):
    return summarize(attribution(start), include_warm_up=include_warm_up)


def query(start, sql):
    """Return the rows of plain SQL over a report, without any code of ours."""
    with closing(sqlite3.connect(read_only_uri(path_to(start)), uri=True)) as database:
        return database.execute(sql).fetchall()


def phases(start, include_warm_up=True):
    return {row.phase: row for row in report(start, include_warm_up).phases}


def kernels_by_how(start):
    """Count kernels by how they were attributed, and sum their time."""
    found = attribution(start)
    kernel = found.trace.work.kind == KINDS.index("kernel")
    picked = {how: kernel & (found.how == number) for number, how in enumerate(HOW)}
    return {h: (int(p.sum()), int(found.trace.work.duration_ns[p].sum())) for h, p in picked.items() if p.any()}


def totals_by_kernel(start):
    """Return {kernel: (count, total, min, max)} of our report."""
    frame = pd.DataFrame(
        [(k.kernel, k.count, k.total_ns, k.min_ns, k.max_ns) for k in report(start).kernels if k.kind == "kernel"],
        columns=["kernel", "count", "total", "min", "max"],
    )
    grouped = frame.groupby("kernel").agg({"count": "sum", "total": "sum", "min": "min", "max": "max"})
    return {name: tuple(row) for name, row in zip(grouped.index, grouped.to_numpy().tolist(), strict=True)}


WORK_TABLES = {"kernel": "KERNEL", "memcpy": "MEMCPY", "memset": "MEMSET", "graph": "GRAPH_TRACE"}


def work_in_tables(start):
    """Return {kind: (rows, total time)} as the tables have it."""
    tables = {name for (name,) in query(start, "SELECT name FROM sqlite_master")}
    found = {}
    for kind, suffix in WORK_TABLES.items():
        if (table := f"CUPTI_ACTIVITY_KIND_{suffix}") in tables:
            found[kind] = query(start, f"SELECT count(*), coalesce(sum(end - start), 0) FROM {table}")[0]
    return {kind: row for kind, row in found.items() if row[0]}


@pytest.mark.parametrize("include_warm_up", [True, False], ids=["everything", "measured"])
@pytest.mark.parametrize("start", WITH_WORK)
def test_every_nanosecond_is_counted_once(start, include_warm_up):
    found = report(start, include_warm_up)
    totals, expected = found.totals, work_in_tables(start)
    rest = totals.outside_ns + totals.ambiguous_ns + totals.excluded_ns
    assert totals.work_ns == sum(total for _, total in expected.values())
    assert totals.kernel_ns == expected.get("kernel", (0, 0))[1]
    assert totals.own_ns + totals.adopted_ns + totals.linked_ns + rest == totals.work_ns
    assert sum(row.self_work_ns for row in found.ranges) + rest == totals.work_ns
    assert sum(row.work_ns for row in found.phases) == totals.work_ns - totals.excluded_ns


@pytest.mark.parametrize("start", WITH_WORK)
def test_every_piece_of_work_is_in_one_row_and_its_launch_of_one_process_and_correlation_id(start):
    counted, unlaunched, in_tables = dict.fromkeys(KINDS, (0, 0)), 0, work_in_tables(start)
    for row in report(start).kernels:
        count, total = counted[row.kind]
        counted[row.kind] = count + row.count, total + row.total_ns
    assert {kind: sums for kind, sums in counted.items() if sums[0]} == in_tables
    for kind in in_tables:
        table = f"CUPTI_ACTIVITY_KIND_{WORK_TABLES[kind]}"
        sql = f"""SELECT sum((correlationId, globalPid >> 24) NOT IN (
                  SELECT correlationId, globalTid >> 24 FROM CUPTI_ACTIVITY_KIND_RUNTIME)) FROM {table}"""
        unlaunched += query(start, sql)[0][0]
    assert int((attribution(start).trace.work.launch < 0).sum()) == unlaunched


@pytest.mark.parametrize("start", ["train_fp32", "forward_fp32"])
def test_kernel_totals_are_those_of_nsyss_summary(start):
    theirs = pd.read_csv(SHARED / "h200" / f"{start}.cuda_gpu_kern_sum.csv")
    columns = ["Instances", "Total Time (ns)", "Min (ns)", "Max (ns)"]
    expected = dict(zip(theirs["Name"], map(tuple, theirs[columns].to_numpy().tolist()), strict=True))
    assert totals_by_kernel(start) == expected


def test_all_23_rows_of_nsyss_summary_of_a_report_without_ranges_are_ours():
    text = (SHARED / "corpus" / "zx3xyy__assignment2-systems__result_2_7B.nsys_stats.txt").read_text()
    section = text.split("** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):")[1].split("Processing [")[0]
    rows = re.findall(r"^ +[\d.]+ +(\d+) +(\d+) +\S+ +\S+ +(\d+) +(\d+) +\S+  (.+?) *$", section, re.MULTILINE)
    theirs = sorted((int(n), int(total), int(low), int(high), name[:99]) for total, n, low, high, name in rows)
    ours = sorted((*figures, name[:99]) for name, figures in totals_by_kernel(ZX).items())
    assert len(theirs) == 23
    assert ours == theirs


# What the autograd thread of the training report launched: all but the two fills at the roots of backward.
AUTOGRAD_SQL = """SELECT count(*), sum(w.end - w.start) FROM CUPTI_ACTIVITY_KIND_{table} AS w
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r USING (correlationId) WHERE r.globalTid & 0xFFFFFF = 492"""

ROOTS_SQL = """SELECT s.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r USING (correlationId) JOIN StringIds AS s ON s.id = k.demangledName
    JOIN NVTX_EVENTS AS n ON n.globalTid = r.globalTid AND n.start <= r.start AND r.end <= n.end
    WHERE n.text = 'backward'"""


def test_backward_holds_what_autograds_thread_launched_and_the_fills_at_its_roots():
    autograd = query("train_fp32", AUTOGRAD_SQL.format(table="KERNEL"))[0]
    backward = phases("train_fp32")["backward"]
    roots = query("train_fp32", ROOTS_SQL)
    assert (autograd[0], round(autograd[1] / 1e6, 1)) == (2440, 69.2)
    assert kernels_by_how("train_fp32")["adopted"] == autograd
    assert len(roots) == 2
    assert all("FillFunctor" in name for name, _ in roots)
    assert (backward.kernels, backward.kernel_ns) == (2442, autograd[1] + sum(time for _, time in roots))


def test_copies_and_memsets_of_autograds_thread_are_adopted_too():
    found = attribution("train_fp32")
    adopted = found.how == HOW.index("adopted")
    for kind, count in (("memcpy", 50), ("memset", 196)):
        assert query("train_fp32", AUTOGRAD_SQL.format(table=kind.upper()))[0][0] == count
        assert int((adopted & (found.trace.work.kind == KINDS.index(kind))).sum()) == count


@pytest.mark.parametrize(
    ("start", "launches"),
    [
        ("train_fp32", {"forward": 218, "backward": 436, "optimizer": 0}),
        ("forward_fp32", {"forward": 327}),
        ("cuda_graph_nodes", {"forward": 327}),
    ],
)
def test_gemms_are_as_many_as_the_model_has(start, launches):
    assert {phase: row.gemm_kernels for phase, row in phases(start).items()} == launches


def test_split_k_helpers_are_time_of_gemms_but_no_launches():
    helpers = [k for k in report("train_fp32").kernels if "splitKreduce_kernel" in k.kernel]
    assert sum(k.count for k in helpers) == 96
    assert {(k.phase, k.category, k.gemm_launch) for k in helpers} == {("backward", "gemm", False)}


@pytest.mark.parametrize(("start", "steps"), [("train_fp32", 2), ("forward_fp32", 3), ("cuda_graph_trace", 3)])
def test_measured_steps_are_counted(start, steps):
    assert report(start, include_warm_up=False).steps == steps


def test_whole_graphs_are_work_without_kernels_and_said_to_be():
    found = report("cuda_graph_trace")
    graphs = [k for k in found.kernels if k.kind == "graph"]
    assert [(k.path[-1], k.phase, k.count) for k in graphs] == [("forward", "forward", 3)]
    assert graphs[0].total_ns == work_in_tables("cuda_graph_trace")["graph"][1]
    assert any("--cuda-graph-trace=node" in note for note in found.notes)


def test_kernels_of_a_graph_go_where_the_graph_was_launched():
    assert phases("cuda_graph_nodes")["forward"].kernels == 840
    assert kernels_by_how("cuda_graph_nodes")["own"][0] == 840


def test_hand_written_backward_owns_autograds_launches_besides_its_own():
    by_how, backward = kernels_by_how(JSUN), phases(JSUN)["backward"]
    assert (by_how["adopted"][0], round(by_how["adopted"][1] / 1e6, 1)) == (6135, 663.4)
    assert backward.kernels == 6135 + 507
    assert sum(count for count, _ in by_how.values()) == 17_032


def test_leaving_out_warm_up_that_holds_all_of_backward_is_said():
    found = report(JSUN, include_warm_up=False)
    assert "backward" not in phases(JSUN, include_warm_up=False)
    assert found.totals.excluded_ns > 0
    note = next(note for note in found.notes if "backward" in note)
    assert "--include-warmup" in note


def test_all_but_one_launch_of_backward_are_adopted_or_led_to_their_forward():
    by_how = kernels_by_how(BOLONG)
    assert by_how["adopted"][0] + by_how["linked"][0] == 1263
    assert phases(BOLONG)["backward"].kernels == 1264


def test_gradient_accumulation_stays_adopted():
    inside = """WITH accumulation AS MATERIALIZED (
            SELECT n.start, n.end, n.globalTid FROM NVTX_EVENTS AS n LEFT JOIN StringIds AS s ON s.id = n.textId
            WHERE coalesce(n.text, s.value) LIKE 'autograd::engine::%: torch::autograd::AccumulateGrad%')
        SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r
        JOIN accumulation AS a ON a.globalTid = r.globalTid AND a.start <= r.start AND r.end <= a.end
        WHERE r.correlationId IN (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL)"""
    assert query(BOLONG, inside) == [(111,)]
    assert kernels_by_how(BOLONG)["adopted"][0] == 111


@pytest.mark.parametrize(("report_", "nodes"), [(BOLONG, 2058)])
def test_all_numbers_of_backward_nodes_lead_to_an_operator_that_makes_them(report_, nodes):
    found = attribution(report_)
    links = Links(ThreadFacts(found.trace, found.facts, found.ranges))
    numbered = np.flatnonzero(links.nodes.seq >= 0)
    made = links.made(numbered, np.zeros(len(numbered), np.int32))
    assert (len(numbered), int((made >= 0).sum())) == (nodes, nodes)


def test_links_of_the_nodes_around_a_few_moments_are_those_of_all_nodes():
    found = attribution(BOLONG)
    threads = ThreadFacts(found.trace, found.facts, found.ranges)
    calls, whole = threads.calls, Links(threads)
    for seed in range(10):
        some = calls.take(np.random.default_rng(seed).integers(0, len(calls), 20))
        part = Links(threads, some)
        assert len(part.nodes) < len(whole.nodes) / 4
        assert some_links(part, some) == some_links(whole, some)


def some_links(links, calls):
    """Return the start of the node around each call, and that of the operator that made it."""
    around = links.around(calls)
    numbered = around[(around >= 0) & (links.seq[around] >= 0)]
    made = links.made(numbered, np.zeros(len(numbered), np.int32))
    assert (made >= 0).any()
    return links.nodes.start_ns[numbered].tolist(), links.operators.start_ns[made].tolist()


def test_linked_paths_of_backward_mirror_those_of_forward():
    rows = report(BOLONG).ranges
    forward = {r.path[2:] for r in rows if r.path[:2] == ("profile", "forward pass")} | {("loss",)}
    backward = {r.path[2:] for r in rows if r.path[:2] == ("profile", "backward pass")}
    assert backward == forward
    assert ("scaled dot product attention", "computing softmax") in backward


def test_two_processes_with_equal_correlation_ids_count_each_kernel_once():
    found = report(TWO_RANKS)
    assert sum(k.count for k in found.kernels if k.kind == "kernel") == 3587
    assert {(row.kind, row.count) for row in found.outside} == {("kernel", 10), ("memcpy", 4), ("memset", 2)}
    assert all("no launch" in row.reason for row in found.outside)


def test_ranges_of_nccl_are_nobodys_parents():
    found = attribution(TWO_RANKS)
    names = {name for node in np.unique(found.node[found.node >= 0]) for name in path_of(found, node)}
    assert not {name for name in names if name.startswith("nccl") and "::" not in name and ":" not in name}


@pytest.mark.parametrize("start", [ZX, WINDOWS])
def test_without_ranges_or_thread_names_everything_is_other(start):
    assert set(phases(start)) == {"other"}
    assert sum(k.count for k in report(start).kernels if k.kind == "kernel") == work_in_tables(start)["kernel"][0]


def test_registered_names_and_start_end_ranges_are_read_where_there_is_nothing_else():
    trace = attribution(REGISTERED).trace
    in_file = query(REGISTERED, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 60")[0][0]
    assert int((trace.ranges.style == START_END).sum()) == in_file == 2444
    assert all(trace.names[name_id] for name_id in np.unique(trace.ranges.name_id))


@pytest.mark.parametrize(
    ("start", "said"), [(REGISTERED, "no CUDA activity"), (NOTHING, "neither CUDA activity nor")]
)
def test_reports_without_work_say_why(start, said):
    with pytest.raises(NoGpuWork, match=said):
        require_work(attribution(start).trace)
