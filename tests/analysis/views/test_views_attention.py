"""What attention's parts cost: equal to plain SQL on an H200's report, and honest where something is missing."""

import pytest
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.views.attention import view

from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.plain_sql import GEMM_TIME, OURS, value
from tests.analysis.making.questioned import asked
from tests.analysis.making.subjects import by, subject, table, viewed, with_run

IN_FORWARD = "thread = (SELECT thread FROM ranges WHERE name = 'forward' LIMIT 1)"


def parts(document, phase, key="attention"):
    """Return the rows of one phase by part."""
    rows = table(document, key)
    start = [row["part"] for row in rows].index(phase)
    return {row["part"]: row for row in rows[start + 1 : start + 6]}


@pytest.mark.parametrize(
    ("phase", "matmul_flops", "softmax_flops"),
    [
        ("forward", 4 * 4 * 12 * 512**2 * 64, 5 * 4 * 12 * 512**2),
        ("backward", 8 * 4 * 12 * 512**2 * 64, 4 * 4 * 12 * 512**2),
    ],
)
def test_flops_are_those_of_the_formulas_for_batch_4_heads_12_context_512(phase, matmul_flops, softmax_flops):
    rates = parts(viewed("attention", OURS, per_step=True), phase, "rates")
    assert rates["scores"]["flops"] + rates["final matmul"]["flops"] == 12 * matmul_flops
    assert rates["softmax"]["flops"] == 12 * softmax_flops
    assert rates["scores"]["flops_per_s"] == pytest.approx(
        rates["scores"]["flops"] / rates["scores"]["time_ns"] * 1e9
    )


def test_ratio_of_flops_is_51_2_beside_the_ratio_of_times():
    row = by(viewed("attention", OURS), "ratios", "phase")["forward"]
    products = "range IN ('computing attention scores', 'final matmul')"
    gemms = value(OURS, f"SELECT sum(ns) FROM inside WHERE {products} AND {IN_FORWARD} AND {GEMM_TIME}")
    assert row["flops_ratio"] == pytest.approx(51.2)
    assert row["softmax_to_gemms"] == pytest.approx(row["softmax_ns"] / gemms)
    assert 1 < row["softmax_to_gemms"] < 2


def test_per_step_figures_are_those_of_all_steps_divided():
    whole, mean = (parts(viewed("attention", OURS, per_step=per), "forward", "rates") for per in (False, True))
    assert whole["softmax"]["flops"] == 2 * mean["softmax"]["flops"]
    assert whole["softmax"]["flops_per_s"] == pytest.approx(mean["softmax"]["flops_per_s"])
    assert whole["softmax"]["bytes_per_s"] == pytest.approx(mean["softmax"]["bytes_per_s"])


def students(tmp_path, *inner):
    """Build a report that is annotated with the assignment's three names."""
    ranges = [Range("forward", 0, 1000), Range("Computing Attention Scores", 100, 200)]
    ranges += [Range("computing softmax", 300, 400), Range(":final matmul", 500, 600), *inner]
    work = launched((110, 120), (150, 160), (310, 320), (510, 520), (700, 710), name="sgemm_128x128x8_NT_vec")
    return build(tmp_path, ranges=ranges, **work)


def test_the_three_names_of_the_assignment_are_enough(tmp_path):
    document = viewed("attention", students(tmp_path))
    assert {row["part"]: row["kernel_ns"] for row in table(document, "attention")} == {
        "forward": 40, "scores": 20, "softmax": 10, "final matmul": 10,
    }  # fmt: skip
    assert "rates" not in {table.key for table in document.tables}
    assert "FLOPs and bytes were not counted" in " ".join(document.notes)


def test_scale_and_mask_count_only_beside_or_inside_the_scores(tmp_path):
    inside, beside, elsewhere = Range("scale", 145, 165), Range("masking", 695, 715), Range("scale", 505, 525)
    rows = by(viewed("attention", students(tmp_path, inside, beside, elsewhere)), "attention", "part")
    assert {name: row["kernel_ns"] for name, row in rows.items()} == {
        "forward": 50, "scores": 20, "scale": 10, "mask": 10, "softmax": 10, "final matmul": 10,
    }  # fmt: skip


def test_of_phases_that_multiply_only_forward_and_backward_are_missed(tmp_path):
    ranges = [Range("forward", 0, 100), Range("softmax", 10, 30), Range("backward", 200, 300)]
    ranges.append(Range("optimizer", 400, 500))
    report = build(tmp_path, ranges=ranges, **launched((15, 20), (210, 220), (410, 420), name="sgemm"))
    missed = [note for note in viewed("attention", report).notes if note.startswith("No ")]
    assert [note.split()[:3] for note in missed] == [["No", "backward", "work"]]
    assert viewed("attention", OURS).notes == ()


def test_attention_in_one_range_is_said_to_be_one(tmp_path):
    ranges = [Range("step", 0, 99), Range("forward", 1, 98), Range("scaled dot product attention", 5, 50)]
    report = build(tmp_path, ranges=ranges, **launched((10, 20)))
    flops = {"forward > layer * > attention > scaled dot product attention": 10}
    document = view(with_run(subject(report), flops=flops))
    assert [row["part"] for row in table(document, "attention")] == ["forward", "fused attention"]
    assert by(document, "rates", "part")["fused attention"]["flops_per_s"] == pytest.approx(1e9)
    assert "its parts are not annotated" in " ".join(document.notes)


def test_a_report_without_such_ranges_is_refused(tmp_path):
    report = build(tmp_path, ranges=[Range("forward", 0, 99)], **launched((10, 20)))
    with pytest.raises(ReportError, match="computing softmax"):
        viewed("attention", report)


@pytest.mark.parametrize("at", [0, 500])
def test_attention_outside_of_what_is_shown_is_not_said_to_have_no_ranges(tmp_path, at):
    ranges = [Range("warm-up", 0, 100), Range("step", 200, 300), Range("softmax", at + 10, at + 90)]
    path = build(tmp_path, ranges=ranges, **launched((at + 20, at + 30), (220, 230)))
    with pytest.raises(ReportError, match="ranges of attention have no work in the measured steps"):
        viewed("attention", path, per_step=True)
    assert any("have no work in the measured steps" in note for note in asked(path).notes)


def test_a_phase_without_attention_is_not_taken_for_a_report_without():
    with pytest.raises(ReportError, match=r"No optimizer work .* they contain work of forward and backward"):
        viewed("attention", OURS, phase="optimizer")
