"""`--split-fused`: fused kernels' time split over the ranges that share them, by the bytes that each writes."""

import csv
import io
import json
import random
from contextlib import redirect_stdout

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.measures.fused import NOT_SAID, NOTHING_SHARED, shares, split_fused
from nvtx_kernels.analysis.readers.fused_writes import WRITES_MARK

from tests.analysis.making.building import MARK, Launch, Range, Work, build
from tests.analysis.making.subjects import subject

US = 1000
# The kernels of one step: the path of each below `step > forward`, and its time, ns.
KERNELS = [
    (("layer 0", "norm"), 100),
    (("layer 0", "self + norm"), 1001),
    (("layer 0", "mlp", "act + gate"), 50),
    (("layer 0 down + layer 1 norm",), 30),
    (("layer 1", "self + norm"), 2002),
    (("odd + even",), 7),
]
ROWS = {
    "layer * > self + norm": [[[], 2000], [["norm"], 1000]],
    "layer 0 > mlp > act + gate": [[["act"], 0], [["deep", "gate"], 64]],
    "layer 0 down + layer 1 norm": [[["layer 0", "down"], 1], [["layer 1", "norm"], 2]],
}


def said(rows, phase="forward"):
    return Range(WRITES_MARK + json.dumps({"version": 1, "phase": phase, "rows": rows}), 1, None, event=MARK)


def report(folder, *marks, calls=KERNELS):
    """Build a report of one step, whose kernels run one after another in the ranges around their launch."""
    end = (len(calls) + 1) * 10 * US
    ranges, launches, work = [Range("step", 5, end), Range("forward", 6, end - 1)], [], []
    for number, (path, lasts) in enumerate(calls):
        at = (number + 1) * 10 * US
        ranges += [Range(name, at + depth, at + 900 - depth) for depth, name in enumerate(path)]
        launches.append(Launch(number, at + 100, at + 110))
        work.append(Work(number, at + 120, at + 120 + lasts))
    return build(folder, ranges=[*marks, *ranges], launches=launches, work=work)


def printed(*arguments):
    text = io.StringIO()
    with redirect_stdout(text):
        assert kernels.main([*map(str, arguments), "--by", "range"]) == 0
    return text.getvalue()


def rows_of(path, *options):
    answer = json.loads(printed(path, "--format", "json", *options))
    return {" > ".join(row["path"]).removeprefix("step > forward > "): row for row in answer["ranges"]}, answer


def test_a_shared_row_is_split_by_bytes_to_the_nanosecond(tmp_path):
    path = report(tmp_path, said(ROWS))
    before, _ = rows_of(path)
    rows, answer = rows_of(path, "--split-fused")
    own = {name: (row["self_ns"], row["estimated_self_ns"]) for name, row in rows.items() if row["self_ns"]}
    assert own == {
        "layer 0": (667, 667),  # 1001 × 2/3 is 667.33
        "layer 0 > norm": (434, 334),
        "layer 0 > mlp > deep > gate": (50, 50),
        "layer 0 > down": (10, 10),
        "layer 1": (1335, 1335),  # 2002 × 2/3 is 1334.67
        "layer 1 > norm": (687, 687),  # and 20 of the kernel of both layers
        "odd + even": (7, 0),
    }
    assert sum(row["self_ns"] for row in rows.values()) == sum(row["self_ns"] for row in before.values())
    assert rows["layer 0"]["inclusive_ns"] == 100 + 1001 + 50 + 10
    assert rows["layer 0"]["estimated_ns"] == 10  # its own fusions were inside it anyway
    assert rows["step"]["inclusive_ns"] == before["step"]["inclusive_ns"]
    assert rows["layer 0 > self + norm"]["kernels"] == 1
    assert rows["layer 0 > mlp > deep"]["instances"] is None
    assert answer["report"]["split_fused"]


def test_what_was_split_what_stays_and_who_gets_nothing_is_said(tmp_path):
    path = report(tmp_path, said(ROWS))
    note = rows_of(path, "--split-fused")[1]["report"]["notes"][-1]
    assert note == (
        "Estimated by --split-fused: 96.6% of the kernel time is of kernels that several ranges share, and is "
        "split over these by the bytes that each writes. 0.2% stays in shared rows, as the report does not say "
        "what their parts write, or says several things. Parts that write nothing get nothing: act."
    )


@pytest.mark.parametrize("format_", ["table", "markdown", "csv", "html"])
def test_every_format_labels_the_estimate(tmp_path, format_):
    path = report(tmp_path, said(ROWS))
    text = printed(path, "--format", format_, "--split-fused")
    plain = printed(path, "--format", format_)
    assert "estimated" in text
    assert "estimated" not in plain
    if format_ == "csv":
        (row,) = [row for row in csv.DictReader(io.StringIO(text)) if row["path"] == "step > forward > layer 1"]
        assert (row["self_ns"], row["estimated_self_ns"]) == ("1335", "1335")
    if format_ == "table":
        assert max(map(len, text.splitlines())) <= 80
        assert "self + norm" not in text


def test_a_mean_step_and_collapsed_layers_add_up_the_estimates(tmp_path):
    found = split_fused(subject(report(tmp_path, said(ROWS))).report)
    assert sum(row.estimated_self_ns for row in found.ranges) == 1001 + 50 + 30 + 2002
    assert "layer *" in printed(report(tmp_path, said(ROWS)), "--split-fused", "--per-step")


def test_layers_compiled_one_by_one_are_found_by_the_end_of_their_path(tmp_path):
    rows, _ = rows_of(report(tmp_path, said({"self + norm": [[[], 1], [["norm"], 1]]})), "--split-fused")
    assert (rows["layer 0"]["self_ns"], rows["layer 1"]["self_ns"]) == (501, 1001)


def test_graphs_that_agree_about_the_shares_are_one_and_others_leave_the_row_whole(tmp_path):
    twice = {"layer * > self + norm": [[["norm"], 10], [[], 20]]}
    rows, _ = rows_of(report(tmp_path, said(ROWS), said(twice)), "--split-fused")
    assert rows["layer 0"]["self_ns"] == 667
    other = {"layer * > self + norm": [[["norm"], 10], [[], 21]], "layer 0 > mlp > act + gate": None}
    rows, _ = rows_of(report(tmp_path, said(ROWS), said(other)), "--split-fused")
    assert rows["layer 0 > self + norm"]["self_ns"] == 1001
    assert rows["layer 0 > mlp > act + gate"]["self_ns"] == 50


def test_work_in_a_range_inside_a_shared_row_is_split_like_its_own(tmp_path):
    path = report(tmp_path, said(ROWS), calls=[(("layer 0", "self + norm", "call", "kernel"), 300)])
    rows, _ = rows_of(path, "--split-fused")
    assert (rows["layer 0"]["self_ns"], rows["layer 0 > norm"]["inclusive_ns"]) == (200, 100)
    inside = [row["inclusive_ns"] for name, row in rows.items() if "self + norm" in name]
    assert inside == [0, 0, 0]


@pytest.mark.parametrize(
    "parts",
    [
        None, 1, [], {}, [[[], 1]], [[[], 0], [["norm"], 0]], [[[], -1], [["norm"], 1]],
        [[[], True], [["norm"], 1]], [[[], 1.5], [["norm"], 1]], [[[], 2**60], [["norm"], 1]],
        [[["norm"], 1], [["norm"], 1]], [[[1], 1], [["norm"], 1]], [[["x" * 2000], 1], [["norm"], 1]],
        [[["a"] * 100, 1], [["norm"], 1]], [[[""], 1], [["norm"], 1]], [["norm", 1], [[], 1]],
        [[[f"{n}"], 1] for n in range(300)],
    ],
)  # fmt: skip
def test_a_damaged_table_splits_nothing(tmp_path, parts):
    rows, answer = rows_of(report(tmp_path, said({**ROWS, "layer * > self + norm": parts})), "--split-fused")
    assert rows["layer 0 > self + norm"]["self_ns"] == 1001
    assert "stays in shared rows" in answer["report"]["notes"][-1]


@pytest.mark.parametrize(
    "mark",
    [
        "{",
        "[]",
        '{"phase": "forward", "rows": {}}',
        "null",
        '{"phase": 1, "rows": {}}',
        '{"phase": "forward", "rows": 3}',
    ],
)
def test_a_report_without_byte_counts_is_refused(tmp_path, mark, capsys):
    path = report(tmp_path, Range(WRITES_MARK + mark, 1, None, event=MARK))
    assert kernels.main([str(path), "--by", "range", "--split-fused"]) == 1
    assert capsys.readouterr().err == f"error: {NOT_SAID}\n"


def test_a_report_without_shared_rows_stays_as_it_is_and_the_option_needs_a_ranking_of_ranges(tmp_path, capsys):
    path = report(tmp_path, said(ROWS), calls=KERNELS[:1])
    assert NOTHING_SHARED in " ".join(printed(path, "--split-fused").split())
    assert kernels.main([str(path), "--split-fused"]) == 2
    assert capsys.readouterr().err == "error: --split-fused splits rows of --by range.\n"


def test_shares_add_up_to_the_whole():
    random_ = random.Random(0)
    for _ in range(500):
        sizes = [random_.choice((0, 1, 7, 2**40)) for _ in range(random_.randint(1, 9))] + [1]
        whole = random_.randrange(2**50)
        found = shares(whole, sizes)
        exact = [whole * size / sum(sizes) for size in sizes]
        assert sum(found) == whole
        assert all(abs(one - other) <= 1 + other * 1e-9 for one, other in zip(found, exact, strict=True))
        assert all(one == 0 for one, size in zip(found, sizes, strict=True) if not size)
