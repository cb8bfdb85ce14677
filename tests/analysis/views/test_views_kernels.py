"""Where a kernel's launches come from: sums of ranges that hold on an H200's report and on built ones."""

import re

import pytest
from nvtx_kernels.analysis.errors import ReportError

from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.plain_sql import GEMM, OURS, value
from tests.analysis.making.subjects import subject, table, viewed, viewer

TOP = "sm80_xmma_gemm f32 tn 128x128x8 stage3"


def explained(path, **options):
    """Return the tables of an explanation and their titles."""
    document = viewer("kernels").view(subject(path, **options))
    return [(found.title, found) for found in document.tables if found.key == "explained"]


def test_the_top_kernel_of_an_h200_forward_is_61_launches_5_per_layer_and_the_head():
    ((title, found),) = explained(OURS, phase="forward")
    assert title.startswith(f"{TOP}: 61 = 5·12 + 1 launches per step in forward")
    names = [row.values[0].split(" > ")[-1] for row in found.rows if row.indent]
    projections = [f"{name} projection" for name in ("down", "k", "output", "q", "v")]
    assert sorted(names) == sorted(["lm head", *projections])


def test_all_linear_gemms_of_a_forward_are_given_to_ranges():
    linear = ("projection", "head")
    document = viewed("kernels", OURS, phase="forward", kernel="gemm", whole=True, every_index=True, top=10**6)
    launches = sum(row["launches"] for row in table(document, "explained") if row["range"].endswith(linear)
                   and "splitK" not in row["kernel"])  # fmt: skip
    assert launches == 2 * 85
    assert value(OURS, f"SELECT count(*) FROM during WHERE range = 'forward' AND {GEMM}") == 2 * 109


def layers(count, *extra, **calls_per_layer):
    """Build a forward of so many layers, each launching kernels in its ranges."""
    ranges, calls = [Range("forward", 0, 100_000)], []
    for layer in range(count):
        start = 1000 * (layer + 1)
        ranges.append(Range(f"layer {layer}", start, start + 900))
        for place, (name, times) in enumerate(calls_per_layer.items()):
            ranges.append(Range(name, start + 100 * place + 1, start + 100 * place + 90))
            calls += [(start + 100 * place + 10 * n + 5, start + 100 * place + 10 * n + 9) for n in range(times)]
    return {"ranges": ranges, **launched(*calls, *extra, name="gemm")}


@pytest.mark.parametrize(
    ("per_layer", "extra", "title"),
    [
        ({"q": 1, "k": 1}, ((90_000, 90_010),), "5 = 2·2 + 1 launches per forward"),
        ({"q": 3}, (), "6 = 3·2 launches per forward"),
        ({"q": 1}, (), "2 launches per forward"),
        ({}, ((90_000, 90_010), (90_020, 90_030)), "2 launches per forward"),
    ],
)
def test_a_count_is_the_sum_of_what_ranges_launch(tmp_path, per_layer, extra, title):
    ((found, _),) = explained(build(tmp_path, **layers(2, *extra, **per_layer)))
    assert found.startswith(f"gemm: {title}, ")


def test_uneven_launches_are_a_term_of_their_own(tmp_path):
    ranges = [Range("forward", 0, 999), Range("layer 0", 10, 100), Range("layer 1", 200, 300)]
    report = build(tmp_path, ranges=ranges, **launched((20, 30), (40, 50), (210, 220)))
    ((title, found),) = explained(report)
    assert title.startswith("kernel: 3 launches per forward")
    assert [row.values[1:4] for row in found.rows] == [(3.0, 2.0, 1.5)]


def test_steps_with_different_counts_are_explained_as_a_whole(tmp_path):
    report = build(tmp_path, ranges=[Range("step", 0, 99), Range("step", 100, 199)],
                   **launched((10, 20), (30, 40), (110, 120)))  # fmt: skip
    ((title, _),) = explained(report)
    assert title.startswith("kernel: 3 launches in no phase, over 2 steps")


def test_a_kernel_is_found_by_its_exact_name_before_parts_of_it(tmp_path):
    one, two = launched((10, 20), name="gemm"), launched((30, 40), (50, 60), name="splitK gemm", first=2)
    report = build(tmp_path, ranges=[Range("forward", 0, 99)], **{key: one[key] + two[key] for key in one})
    assert [title.split(":")[0] for title, _ in explained(report, kernel="GEMM")] == ["gemm"]
    assert len(explained(report, kernel="gem")) == 2
    with pytest.raises(ReportError, match="No kernel name contains 'conv'"):
        explained(report, kernel="conv")


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        ({"per_step": True}, "in the measured steps (--totals counts all work, --include-warmup counts warm-up)"),
        ({}, "in what is measured (--include-warmup counts warm-up)"),
        ({"per_step": True, "phase": "forward"}, "counts warm-up) of forward"),
    ],
)  # fmt: skip
def test_a_kernel_outside_of_what_is_shown_is_not_said_to_have_no_name(tmp_path, shown, says):
    ranges = [Range("warm-up", 0, 100), Range("step", 200, 300), Range("forward", 210, 290)]
    calls = launched((220, 230), (400, 410), name="sgemm")
    early = launched((20, 30), name="softmax", first=9)
    path = build(tmp_path, ranges=ranges, **{key: calls[key] + early[key] for key in calls})
    with pytest.raises(ReportError) as refusal:
        viewed("kernels", path, kernel="softmax", **shown)
    assert f"{says} contains 'softmax'. The longest kernels: sgemm." in str(refusal.value)


def test_what_is_not_shown_is_counted(tmp_path):
    one, two = launched((10, 20), name="a_gemm"), launched((30, 40), name="b_gemm", first=2)
    report = build(tmp_path, ranges=[Range("forward", 0, 99)], **{key: one[key] + two[key] for key in one})
    document = viewed("kernels", report, kernel="gemm", top=1)
    assert len(document.tables) == 1
    assert document.notes[-2] == "1 more match: --top 2."


def test_ranges_that_were_asked_for_bound_the_launches(tmp_path):
    report = build(tmp_path, **layers(2, q=2, k=1))
    ((title, _),) = explained(report, within="q")
    assert title.startswith("gemm: 4 = 2·2 launches per forward")


def test_ranges_of_warm_up_are_no_units(tmp_path):
    ranges = [Range("warm-up", 0, 90), Range("forward", 5, 80), Range("forward", 100, 200)]
    report = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 120), (130, 140)))
    assert explained(report)[0][0].startswith("kernel: 2 launches per forward, {unit}")


def test_launches_outside_all_ranges_have_no_places(tmp_path):
    ((_, found),) = explained(build(tmp_path, **launched((10, 20), (30, 40))))
    assert found.rows[0].values[:4] == ("(outside all ranges)", 2.0, None, None)


def test_a_report_that_tells_no_grids_has_no_column_of_them(tmp_path):
    ((_, found),) = explained(build(tmp_path, **launched((10, 20), (30, 40))))
    assert "blocks" not in [column.key for column in found.columns] + found.caption.split()
    ((_, with_grids),) = explained(OURS, phase="forward")
    assert with_grids.columns[1].key == "blocks"


def test_the_longest_kernels_are_explained_in_the_order_of_the_phases():
    titles = [title for title, _ in explained(OURS)]
    assert [re.search(r"in (\w+),", title)[1] for title in titles] == ["forward", "backward", "optimizer"]


@pytest.mark.parametrize(
    ("options", "filtered"),
    [
        ({"phase": "forward", "kernel": "gemm"}, "--nvtx-include 'nvtx-kernels@forward/*/lm head' --kernel-name"),
        (
            {"phase": "optimizer", "kernel": "vectorized"},
            "--nvtx-include 'nvtx-kernels@step/*/optimizer' --kernel-name",
        ),
    ],
)
def test_a_named_kernel_comes_with_the_command_that_reads_its_counters(options, filtered):
    notes = viewer("kernels").view(subject(OURS, top=1, **options)).notes
    assert filtered in notes[-1]
    assert notes[-1].endswith("python train.py")
