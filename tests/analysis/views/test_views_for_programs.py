"""What programs get of a ranking or a view: rows of one sort, or rows that say of which sort they are."""

import csv
import io

import pytest
from nvtx_kernels.analysis.document import Detail
from nvtx_kernels.analysis.presenters import presenter
from nvtx_kernels.analysis.views.overview import everything, overview

from tests.analysis.making.building import Range, Work, build, launched
from tests.analysis.making.plain_sql import OURS, rows
from tests.analysis.making.subjects import subject, table, viewed

WHOLE = {"whole": True, "every_index": True, "full_names": True, "top": 10**9}


def ranked(by, path=OURS):
    """Return the rows of a ranking for programs, of its only table."""
    document = everything(subject(path).report, by=by)
    return table(document, document.tables[0].key)


def test_kernels_are_ranked_once_per_phase():
    found = ranked("kernel")
    keys = [(row["kernel"], row["phase"]) for row in found]
    assert len(set(keys)) == len(keys) == 67
    longest = rows(OURS, "SELECT name, count(*), sum(ns), min(ns), max(ns) FROM during WHERE range = 'backward' "
                         "GROUP BY name ORDER BY sum(ns) DESC LIMIT 1")  # fmt: skip
    assert [tuple(found[0][key] for key in ("kernel", "count", "total_ns", "min_ns", "max_ns"))] == longest
    assert [row["total_ns"] for row in found] == sorted((row["total_ns"] for row in found), reverse=True)


@pytest.mark.parametrize("by", ["kernel", "category"])
def test_a_ranking_sums_to_what_its_table_shows(by):
    (shown,) = overview(subject(OURS).report, Detail(10**9, every_index=True), by=by).tables
    keys = [column.key for column in shown.columns]
    time = keys.index("kernel_ns" if by == "category" else "total_ns")
    for key, column in ((time, "total_ns"), (keys.index("count"), "count"), (keys.index("share"), "share")):
        assert sum(row[column] for row in ranked(by)) == pytest.approx(sum(row.values[key] for row in shown.rows))


def test_graphs_are_ranked_beside_all_kernel_time(tmp_path):
    work = launched((20, 30), (40, 50))
    work["work"][1] = Work(2, 100, 600, kind="graph")
    found = ranked("category", build(tmp_path, ranges=[Range("forward", 0, 90)], **work))
    assert [(row["kind"], row["total_ns"], row["share"]) for row in found] == [
        ("graph", 500, None), ("kernel", 10, 1.0),
    ]  # fmt: skip


def of_level(found, level):
    return [row for row in found if row["level"] == level]


def test_parts_of_attention_name_their_phase_and_sum_to_it():
    document = viewed("attention", OURS, **WHOLE)
    found = table(document, "attention")
    for whole in of_level(found, "phase"):
        parts = [row for row in of_level(found, "part") if row["phase"] == whole["phase"]]
        assert [row["part"] for row in parts] == ["scores", "softmax", "final matmul"]
        assert sum(row["kernel_ns"] for row in parts) == whole["kernel_ns"]
    assert {row["part"] for row in of_level(found, "inside scores")} == {"scale", "mask"}
    assert {row["phase"] for row in table(document, "rates")} == {"forward", "backward"}
    assert not of_level(table(document, "rates"), "phase")


def test_the_steps_among_phases_are_told_apart():
    found = table(viewed("agreement", OURS, **WHOLE), "agreement")
    assert [row["level"] for row in found] == ["phase", "phase", "phase", "step"]


def test_places_of_idle_time_name_whole_paths():
    assert table(viewed("idle", OURS, **WHOLE), "places")[0]["range"] == "measure > step > optimizer"


@pytest.mark.parametrize("view", ["idle", "agreement", "attention", "steps"])
def test_a_count_is_in_no_column_of_times(view):
    for row in csv.DictReader(io.StringIO(presenter("csv").present(viewed(view, OURS, **WHOLE)))):
        assert "launches" not in row.values()
        assert all(value == "" or float(value) >= 0 for key, value in row.items() if key.endswith("_ns"))
