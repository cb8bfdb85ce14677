"""Summaries of ranks: whole, the same in any order and anywhere, and stragglers found where they were planted."""

import json
import random
import shutil
from dataclasses import is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis import compare, kernels, ranks
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.document import WHOLE
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.presenters import as_json
from nvtx_kernels.analysis.ranks.document import ranks_document
from nvtx_kernels.analysis.ranks.reduce import NUMBERS, TEXTS, read_all, reduced
from nvtx_kernels.analysis.readers import expand, is_summary, read
from nvtx_kernels.analysis.summary.file import (
    read_step_times,
    read_steps,
    read_summary,
    read_tables,
    stored,
)
from nvtx_kernels.analysis.summary.tables import ALL
from nvtx_kernels.analysis.summary.totals import summarize

from nvtx_kernels.__main__ import main
from tests.analysis.making import checks
from tests.analysis.making.communicating import communicating
from tests.analysis.making.old_summaries import OLD, as_old
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.rank_summaries import (
    GATHERED,
    LATE_NS,
    SLOW_RANGE,
    STEPS,
    TRANSFER_NS,
    Clocks,
    Planted,
    made,
)

DATA = OURS.parent
SHARED = Path(__file__).parents[3] / "shared"
REPORTS = sorted(SHARED.glob("h200/*.sqlite"))
LABEL = " > ".join(GATHERED)


def summary_of(report, folder, *words):
    output = folder / f"{report.stem}.summary.sqlite"
    assert main(["summarize", str(report), "-o", str(output), *words]) == 0
    return output


def tables_of(paths):
    return {table.key: table.rows for table in ranks_document(reduced(read_all([*paths])), WHOLE).tables}


def answer_of(paths, **options):
    return as_json.present(ranks_document(ranks.reduced_summaries(paths, **options), WHOLE))


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory):
    return made(tmp_path_factory.mktemp("ranks"), 16, Planted(late=3))


@pytest.mark.parametrize("report", [*sorted(DATA.glob("*.sqlite")), *REPORTS], ids=lambda path: path.stem)
def test_a_summary_gives_back_every_row_and_sum_of_its_report(tmp_path, report):
    again, direct = read_summary(summary_of(report, tmp_path)), summarize(attribute(read(report)))
    for part, expected in ((again, direct), (again.counted, direct.counted)):
        assert (part is None) == (expected is None)
        if part:
            assert (part.totals, part.phases, part.ranges) == (expected.totals, expected.phases, expected.ranges)
            assert (part.kernels, part.outside, part.busy) == (expected.kernels, expected.outside, expected.busy)


@pytest.mark.parametrize("report", [*sorted(DATA.glob("*.sqlite")), *REPORTS], ids=lambda path: path.stem)
def test_a_summary_and_one_of_an_earlier_version_give_equal_answers(tmp_path, report):
    new = summary_of(report, tmp_path)
    old = as_old(new, tmp_path / "old.parquet")
    assert named(read_summary(new)) == named(read_summary(old))
    assert read_steps(new) == read_steps(old)
    times = read_step_times(new), read_step_times(old)
    assert {place: ns.tolist() for place, ns in times[0].items()} == {
        place: ns.tolist() for place, ns in times[1].items()
    }
    answers = [answer_of([path]).replace(path.name.partition(".")[0], "") for path in (new, old)]
    assert answers[0] == answers[1]


def named(answer):
    return replace(answer, provenance=replace(answer.provenance, file="")) if is_dataclass(answer) else answer


def test_a_summary_that_an_earlier_version_wrote_answers_as_its_report(tmp_path):
    words = ("--rank", "3", "--host", "node001")
    new = tmp_path / f"{OLD.stem}.sqlite"
    assert main(["summarize", str(OURS), "-o", str(new), *words]) == 0
    assert named(read_summary(OLD)) == named(read_summary(new)) == named(opened(OURS).whole)
    assert answer_of([OLD]) == answer_of([new])


@pytest.mark.parametrize("name", ["rank0.sqlite", "rank0.summary.sqlite", "rank0.parquet"])
def test_a_summary_is_recognized_by_its_content(tmp_path, name):
    summary = summary_of(OURS, tmp_path).rename(tmp_path / name)
    assert is_summary(summary)
    assert read_summary(summary).kernels
    report = tmp_path / f"report.{name}"
    shutil.copy(OURS, report)
    assert not is_summary(report)
    assert checks.said(kernels, str(report))[0] == 0


@pytest.mark.parametrize("command", [["view", "idle"], ["scrub", "--check"]], ids=" ".join)
def test_a_summary_is_refused_where_a_report_is_needed(tmp_path, capsys, command):
    summary = summary_of(OURS, tmp_path)
    capsys.readouterr()
    assert main([*command, str(summary)]) == 1
    assert f"{summary.name} is a summary: `rank`, `compare` and `page` read it." in capsys.readouterr().err


def test_a_folder_of_old_and_new_summaries_is_compared(tmp_path):
    for rank in range(3):
        summary_of(OURS, tmp_path, "--rank", str(rank)).rename(tmp_path / f"rank{rank}.summary.sqlite")
    before = answer_of(expand([tmp_path]))
    as_old(tmp_path / "rank1.summary.sqlite", tmp_path / "rank1.summary.parquet")
    (tmp_path / "rank1.summary.sqlite").unlink()
    assert answer_of(expand([tmp_path])) == before


def test_ranking_and_comparing_summaries_answers_as_their_reports_do(tmp_path):
    a, b = DATA / "h200_train_fp32.sqlite", DATA / "h200_compiled.sqlite"
    c, d = (summary_of(path, tmp_path) for path in (a, b))
    ranked = [json.loads(checks.said(kernels, str(path), "--format", "json")[1]) for path in (a, c)]
    for answer in ranked:
        del answer["report"]["file"]
    compared = [
        json.loads(checks.said(compare, *map(str, pair), "--format", "json")[1]) for pair in ((a, b), (c, d))
    ]
    assert all(ranked[0].pop(key) for key in ("fixes", "fix_basis")), "a summary has no calls to replay"
    assert ranked[0] == ranked[1]
    for answer in compared:
        del answer["a"], answer["b"]
    assert compared[0] == compared[1]


PLANTED = {
    "none": (Planted(), [], []),
    "a slow GPU": (Planted(slow_rank=5), ["rank00005"], ["rank00005"]),
    "a slow host": (Planted(slow_host=1), ["all 8 of node001"], None),
    "a slow range": (Planted(slow_range=7), ["rank00007"], ["rank00007"]),
    "a late collective": (Planted(late=11), [], ["rank00011"]),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted_stragglers_are_found_and_no_others(tmp_path, case):
    planted, slow, late = PLANTED[case]
    tables = tables_of(made(tmp_path, 32, planted))
    stragglers = tables.get("stragglers", ())
    assert [row.values[0] for row in stragglers] == slow
    names = list(dict.fromkeys(row.values[0] for row in tables.get("late", ())))
    assert names == late if late is not None else {*names} <= {f"rank{number:05}" for number in range(8, 16)}
    if case == "a slow range":
        assert stragglers[0].values[-1] == " > ".join(SLOW_RANGE)
    if case == "a late collective":
        assert {row.values[2] for row in tables["late"]} == {LABEL}
        assert sum(row.values[-1] for row in tables["late"]) == pytest.approx(LATE_NS, rel=0.02)


@pytest.mark.filterwarnings("error")
def test_a_rank_without_steps_hides_no_slow_one(tmp_path):
    paths = made(tmp_path, 32, Planted(slow_rank=7))
    head, tables = read_tables(paths[3], {table: TEXTS[table] + NUMBERS[table] for table in TEXTS})
    tables["steps", ALL] = {name: [] for name in tables["steps", ALL]}
    paths[3].write_bytes(stored(head, tables))
    assert [row.values[0] for row in tables_of(paths)["stragglers"]] == ["rank00007"]


@pytest.mark.parametrize("seed", range(5))
def test_noise_alone_has_no_stragglers(tmp_path, seed):
    tables = tables_of(made(tmp_path, 32, seed=seed, noise=0.01))
    assert not {"stragglers", "late"} & tables.keys()


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_order_of_merging_gives_the_same_answer(sixteen, order):
    shuffled = [*sixteen]
    order.shuffle(shuffled)
    assert as_json.present(ranks_document(reduced(read_all(shuffled)), WHOLE)) == answer_of(sixteen)


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_answer_in_any_order(sixteen):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        for seed in range(3):
            shuffled = random.Random(seed).sample(sixteen, len(sixteen))
            assert answer_of(shuffled, scheduler=cluster.scheduler_address) == answer_of(sixteen)


@pytest.mark.parametrize("apart_s", [0, 5, 3600])
def test_clocks_apart_change_nothing(tmp_path, apart_s):
    answers = []
    for folder, clocks in (("apart", Clocks(apart_s * 10**9)), ("far", Clocks())):
        (tmp_path / folder).mkdir()
        answers.append(tables_of(made(tmp_path / folder, 32, Planted(late=11), clocks=clocks)))
    assert answers[0] == answers[1]
    assert {row.values[0] for row in answers[0]["late"]} == {"rank00011"}


def test_clocks_that_run_apart_make_nobody_late(tmp_path):
    assert not {"stragglers", "late"} & tables_of(made(tmp_path, 32, clocks=Clocks(drift=1e-4))).keys()


def test_of_256_ranks_the_late_one_is_found_though_some_are_missing_and_one_is_truncated(tmp_path):
    paths = made(tmp_path, 256, Planted(late=200))
    for missing in (17, 18, 40):
        paths[missing].unlink()
    paths[99].write_bytes(paths[99].read_bytes()[:5_000])
    status, out, _ = checks.said(kernels, str(tmp_path), "--format", "markdown")
    text = " ".join(out.split())
    assert status == 0
    assert "4 of 256 ranks have no summary here (17, 18, 40, 99)." in text
    assert text.count("rank00099.summary.sqlite is left out:") == 1
    assert "Waiting is for the last of the ranks that are here: one that is not may have come later." in text
    late = tables_of(path for path in paths if path.exists() and path != paths[99])["late"]
    assert {row.values[0] for row in late} == {"rank00200"}


def test_waiting_is_undecided_where_most_ranks_of_a_group_are_missing(tmp_path):
    document = ranks_document(reduced(read_all(made(tmp_path, 32)[:15])), WHOLE)
    assert "The waiting of all_gather is not decided: not all of its ranks are here." in document.notes
    (row,) = next(table.rows for table in document.tables if table.key == "collectives")
    assert row.values[:3] == (LABEL, "all_gather", 8.0)
    assert row.values[4] is None  # the waiting


def test_collectives_say_their_time_waiting_and_bandwidth(tmp_path):
    (row,) = tables_of(made(tmp_path, 16))["collectives"]
    _, _, calls, time_ns, waiting_ns, carried, bus_bytes_per_s = row.values
    assert (calls, carried) == (8, 8 << 20)
    assert time_ns - waiting_ns == pytest.approx(8 * TRANSFER_NS, rel=0.1)
    assert bus_bytes_per_s == pytest.approx((1 << 20) / (TRANSFER_NS / 1e9), rel=1e-3)


def test_missing_doubled_and_damaged_ranks_are_said(tmp_path):
    paths = made(tmp_path, 12)
    paths[2].unlink()
    paths[5].write_bytes(paths[5].read_bytes()[:5_000])
    (tmp_path / "again.summary.sqlite").write_bytes(paths[7].read_bytes())
    status, out, _ = checks.said(kernels, str(tmp_path))
    text = " ".join(out.split())
    assert status == 0
    assert "2 of 12 ranks have no summary here (2, 5)." in text
    assert "rank00005.summary.sqlite is left out:" in text
    assert "Several summaries are of rank 7." in text


def test_a_page_draws_every_rank_by_step_and_colours_the_slow_one(tmp_path):
    made(tmp_path, 64, Planted(slow_rank=5))
    assert main(["page", str(tmp_path), "-o", str(tmp_path / "ranks.html")]) == 0
    page = (tmp_path / "ranks.html").read_text()
    assert page.count('<rect class="none"') == 64 * STEPS
    assert page.count('class="above" fill-opacity="1.000"') == STEPS
    assert "<script" not in page
    assert "rank00005" in page


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_summary_is_refused_in_one_sentence(tmp_path, seed):
    path, chance = summary_of(OURS, tmp_path), random.Random(seed)
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    content[at : at + 64 if seed % 2 else None] = chance.randbytes(64)
    path.write_bytes(content)
    status, out, err = checks.said(kernels, str(path), "--format", "json")
    assert checks.SENTENCE.fullmatch(err) if status else out and not err


def test_collectives_of_a_real_report_are_in_its_summary(tmp_path):
    paths = [summary_of(communicating(), tmp_path, "--rank", "0", "--host", "node0")]
    joined = reduced(read_all(paths))
    assert [rank.host for rank in joined.ranks] == ["node0"]
    assert joined.exchanges.texts("collective", np.arange(2)) == ["all_reduce"] * 2
    assert joined.exchanges.columns["step"].tolist() == [0, 1]
