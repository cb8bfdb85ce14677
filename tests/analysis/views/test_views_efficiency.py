"""The view of FLOPs, bytes and peaks: what joins which range, and what is said where nothing can be."""

import json
import re
from dataclasses import replace

import pytest
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.measures.efficiency import counts_of
from nvtx_kernels.analysis.measures.gpu_peaks import MEASURED, PEAKS, peak_for, peak_of
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.marks import FLOPS_MARK, UnrecordedMark
from nvtx_kernels.analysis.readers.saved import save
from nvtx_kernels.analysis.trace import Fact
from nvtx_kernels.analysis.views.efficiency import MEASURED_PEAKS, NO_COUNTS, NO_STEPS, ON_CPU, view

from tests.analysis.making.building import MARK, Launch, Range, Work, build
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.subjects import by, screen, subject, summarized, viewed
from tests.analysis.making.traces import summary

H200 = ["NVIDIA H200"]
MS = 1_000_000
# Two steps of 10 ms, each with a forward of two layers of 2 ms and 1 ms, and a backward of 4 ms.
LAYERS = (("layer 0", 0, 2), ("layer 1", 2, 1))


def marked(ranges, **head):
    """Return the mark of a counted step."""
    content = {"version": 1, "part": 0, "parts": 1, **head, "ranges": ranges}
    return Range(FLOPS_MARK + json.dumps(content), 1, None, event=MARK)


def ranges_of_step(at):
    """Yield a step's ranges, and the start of each piece of work with its length, ms."""
    yield Range("step", at, at + 10 * MS), None
    yield Range("forward", at + 1, at + 5 * MS), None
    for name, start, lasts in LAYERS:
        begin = at + start * MS + 2
        yield Range(name, begin, begin + MS // 2), (begin, lasts)
    begin = at + 5 * MS
    yield Range("backward", begin, at + 9 * MS), (begin, 4)


def report(tmp_path, *marks, gpus=H200, name="kernel"):
    found = [pair for step in (0, 10 * MS) for pair in ranges_of_step(step + 10)]
    calls = [one for _, one in found if one]
    launches = [Launch(number, begin + 1, begin + 2) for number, (begin, _) in enumerate(calls)]
    work = [Work(n, begin + 3, begin + 3 + lasts * MS, name) for n, (begin, lasts) in enumerate(calls)]
    rows = {"launches": launches, "work": work, "gpus": gpus}
    return build(tmp_path, ranges=[*marks, *(one for one, _ in found)], **rows)


def counted(flops=10**12, moved=10**9):
    """Return what a warm-up step may have counted: equal layers, and a backward that computes some again."""
    return marked(
        {
            "forward": {"warmup > step > forward > layer *": [2, moved, {"bf16": flops}]},
            "backward": {
                "warmup > step > backward": [1, moved, {"bf16": 3 * flops}],
                "warmup > step > backward > recompute": [1, 0, {"bf16": flops}],
            },
        },
        calls={},
        uncounted={"aten.mul": [7, 100]},
    )


@pytest.mark.parametrize("unknown", ["flops", "moved"])
def test_what_was_not_counted_is_unknown_and_not_zero(unknown, tmp_path):
    shown = screen(viewed("efficiency", report(tmp_path, counted(**{unknown: 0}), gpus=["A GPU"])))
    assert "– " in shown
    assert not re.search(r"\b0(\.0)? (FLOP|B)\b", shown)


def test_flops_of_a_step_join_the_ranges_of_the_measured_steps(tmp_path):
    rows = by(
        viewed("efficiency", report(tmp_path, counted()), whole=True, every_index=True), "efficiency", "range"
    )
    flops = {name: row["flops"] for name, row in rows.items()}
    assert flops == {
        "step": 12 * 10**12,
        "step > forward": 4 * 10**12,
        "step > forward > layer 0": 2 * 10**12,
        "step > forward > layer 1": 2 * 10**12,
        "step > backward": 8 * 10**12,
    }
    assert [rows["step > forward > layer 0"][key] for key in ("kernel_ns", "flops_per_s", "arithmetic")] == [
        4 * MS, 5e14, "bf16",
    ]  # fmt: skip


def test_per_step_layers_are_one_row_of_their_sums(tmp_path):
    rows = by(viewed("efficiency", report(tmp_path, counted()), per_step=True, top=20), "efficiency", "range")
    assert rows["layer *"] == {
        "range": "layer *", "kernel_ns": 3 * MS, "flops_per_s": pytest.approx(2e12 / 3e-3),
        "compute_share": pytest.approx(2e12 / 3e-3 / 989.4e12), "bytes_per_s": pytest.approx(2e9 / 3e-3),
        "memory_share": pytest.approx(2e9 / 3e-3 / 4.8e12), "flops_per_byte": 1000.0, "bound": "compute",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flops", "moved", "bound"),
    [(10**12, 10**9, "compute"), (10**11, 9 * 10**9, "memory"), (10**11, 10**9, "neither")],
)
def test_a_range_is_bound_by_the_roof_that_it_is_near(tmp_path, flops, moved, bound):
    path = report(tmp_path, counted(flops, moved))
    rows = by(viewed("efficiency", path, whole=True), "efficiency", "range")
    assert rows["step > forward > layer *"]["bound"] == bound


def test_mfu_leaves_out_what_backward_computes_again_and_hfu_does_not(tmp_path):
    path = report(tmp_path, counted())
    model, all_ = by(viewed("efficiency", path, per_step=True), "step", "flops_of").values()
    step_ns = summarized(path).step_ns
    assert (model["flops"], all_["flops"], model["time_ns"]) == (5 * 10**12, 6 * 10**12, step_ns)
    assert model["share"] == pytest.approx(5e12 / (step_ns / 1e9) / 989.4e12)
    assert all_["share"] == pytest.approx(6e12 / (step_ns / 1e9) / 989.4e12)


def test_what_did_not_join_is_said(tmp_path):
    notes = " ".join(viewed("efficiency", report(tmp_path, counted())).notes)
    assert "FLOPs of ranges missing from the report (16.7%) are credited to the nearest enclosing range" in notes
    assert "aten.mul 7×" in notes


def test_ranges_in_which_nothing_was_counted_are_refused_with_those_that_have_counts(tmp_path):
    mark = marked({"backward": {"backward": [1, 8, {"bf16": 5}]}})
    with pytest.raises(ReportError, match=r"these ranges: layer \*\..* Ranges with counts: step, backward\."):
        viewed("efficiency", report(tmp_path, mark), within="layer *")


def test_rows_of_chosen_ranges_name_their_phase(tmp_path):
    found = by(viewed("efficiency", report(tmp_path, counted()), within="layer *"), "efficiency", "range")
    assert found["layer *"]["phase"] == "forward"


def test_a_step_that_calls_the_model_otherwise_than_the_counted_one_is_refused(tmp_path):
    mark = marked({"forward": {"step > forward": [1, 0, {"bf16": 1}]}}, calls={"step > forward": 3})
    with pytest.raises(ReportError, match="called forward 3 times, and a measured step 1 times"):
        viewed("efficiency", report(tmp_path, mark))


def test_parts_of_a_count_are_joined_and_of_several_processes_averaged(tmp_path):
    first, second = ({"forward": {f"forward > layer {n}": [1, 8, {"fp32": 4}]}} for n in (0, 1))
    path = report(tmp_path, marked(first, calls={}, uncounted={}), marked(second), marked(second))
    assert counts_of(summary(path)).whole.total == 8
    found = summary(path)
    several = replace(found.provenance, counted=[found.provenance.counted[0], {"ranges": first}])
    assert counts_of(replace(found, provenance=several)).whole.total == 6


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"ranges": 3}', '{"ranges": {"forward": {"a": [1, -2, {}]}}}', "{}"]
)
def test_marks_that_annotation_did_not_write_say_nothing(tmp_path, content):
    path = report(tmp_path, Range(FLOPS_MARK + content, 1, None, event=MARK))
    with pytest.raises(ReportError, match="does not say how many FLOPs"):
        viewed("efficiency", path)


def test_without_counts_or_steps_the_view_says_what_to_do(tmp_path):
    (tmp_path / "other").mkdir()
    rows = {"launches": [Launch(1, 10, 20)], "work": [Work(1, 30, 40)]}
    stepless = build(tmp_path / "other", ranges=[counted(), Range("forward", 0, 90)], **rows)
    for path, sentence in ((report(tmp_path), NO_COUNTS), (stepless, NO_STEPS)):
        with pytest.raises(ReportError) as refused:
            viewed("efficiency", path)
        assert str(refused.value) == sentence


@pytest.mark.parametrize("gpus", [["NVIDIA Foo 9000"], [], ["NVIDIA H200", "NVIDIA L4"]])
def test_a_gpu_that_is_not_in_the_table_has_rates_and_no_shares(tmp_path, gpus):
    document = viewed("efficiency", report(tmp_path, counted(), gpus=gpus))
    assert "share" not in " ".join(column.key for table in document.tables for column in table.columns)
    assert any("are unknown, so shares and bounds are left out" in note for note in document.notes)
    assert by(document, "efficiency", "range")["step"]["flops_per_s"]


def test_arithmetic_that_a_gpu_lacks_has_no_share(tmp_path):
    document = viewed("efficiency", report(tmp_path, counted(), gpus=["Tesla V100-SXM2-16GB"]), whole=True)
    assert {row["compute_share"] for row in by(document, "efficiency", "range").values()} == {None}
    assert any("peak of bf16 on the Tesla V100-SXM2-16GB is unknown" in note for note in document.notes)


def test_what_a_run_states_of_its_sizes_is_used_where_nothing_was_counted():
    document = viewed("efficiency", OURS, per_step=True, top=40)
    stated = subject(OURS).report.provenance.run["flops"]
    model = by(document, "step", "flops_of")["model (MFU)"]
    assert model["flops"] == pytest.approx(sum(stated.values()))
    assert any("follow from the run's sizes" in note for note in document.notes)
    assert not any("report lacks" in note for note in document.notes)


def test_a_cpu_has_no_peaks_and_the_screen_says_so(tmp_path):
    found = subject(report(tmp_path, counted(), gpus=[]))
    provenance = replace(found.report.provenance, unit_of_work="CPU")
    on_cpu = replace(found, report=replace(found.report, provenance=provenance))
    assert ON_CPU.split(",")[0] in screen(view(on_cpu))


PEAKS_MARK = {"tflops": {"bf16": 500.0}, "gigabytes_per_s": 4000.0}


def test_measured_peaks_are_used_instead_of_the_tables_and_named(tmp_path):
    ranges = {"forward": {"warmup > step > forward": [1, 10**9, {"bf16": 10**12}]}}
    (tmp_path / "stated").mkdir()
    document = viewed("efficiency", report(tmp_path, marked(ranges, peaks=PEAKS_MARK)), whole=True)
    stated = viewed("efficiency", report(tmp_path / "stated", marked(ranges)), whole=True)
    share, of_data_sheet = (
        by(one, "efficiency", "range")["step > forward"]["compute_share"] for one in (document, stated)
    )
    assert share == pytest.approx(of_data_sheet * 989.4 / 500)
    assert MEASURED_PEAKS in document.notes
    assert MEASURED_PEAKS not in stated.notes
    shown = screen(viewed("efficiency", report(tmp_path, marked(ranges, peaks=PEAKS_MARK))))
    assert MEASURED in " ".join(shown.split())


@pytest.mark.parametrize(
    "peaks",
    [{"tflops": {"bf16": -1}, "gigabytes_per_s": 1}, {"tflops": {}, "gigabytes_per_s": 1}, {"tflops": {"bf16": 1}},
    7,
     {"tflops": {"bf16": 1e9}, "gigabytes_per_s": 1}, {"tflops": {"<b>": 1}, "gigabytes_per_s": 1}],
)  # fmt: skip
def test_peaks_that_cannot_be_are_none(tmp_path, peaks):
    ranges = {"forward": {"warmup > step > forward": [1, 10**9, {"bf16": 10**12}]}}
    assert MEASURED_PEAKS not in viewed("efficiency", report(tmp_path, marked(ranges, peaks=peaks))).notes


def test_measured_peaks_of_an_unknown_gpu_are_all_there_is():
    assert peak_for(["another"], PEAKS_MARK).tflops == {"bf16": 500.0}
    assert peak_for(["another"], {}) is None


def test_every_gpu_has_a_source_and_peaks_that_grow_as_types_shrink():
    for row in PEAKS:
        makers = r"[\w.]*(?:nvidia\.com|widen\.net|amd\.com)"
        site = r"[\w.]+" if "as others repeat it" in row.source else makers
        assert re.search(rf"; https://{site}/\S+$", row.source), row.pattern
        speeds = [row.tflops[kind] for kind in ("fp32", "tf32", "bf16", "fp8") if kind in row.tflops]
        assert speeds == sorted(speeds)
        assert row.gigabytes_per_s >= 300
    assert [row.pattern for row in PEAKS if "as others repeat it" in row.source] == ["NVIDIA H20"]


@pytest.mark.parametrize(
    ("maker", "names"),
    [
        ("NVIDIA", {"H200": 989.4, "H100 PCIe": 756.0, "A100-SXM4-80GB": 312.0, "L4": 121.0, "H20": 148.0}),
        ("NVIDIA", {"B200": 2250.0, "B300 SXM6 AC": 2250.0, "GB200": 2500.0, "GB300": 2500.0}),
        (
            "AMD Instinct",
            {"MI300X": 1307.4, "MI250X": 191.5, "MI325X": 1307.4, "MI350X": 2306.9, "MI355X": 2516.6},
        ),
    ],
)
def test_a_gpu_is_found_by_its_whole_name(maker, names):
    for name, bf16 in ((f"{maker} {model}", bf16) for model, bf16 in names.items()):
        assert peak_of([name, name]).tflops["bf16"] == bf16
        assert peak_of([f"{name} X"]) is None


@pytest.mark.parametrize(
    ("timed_ms", "says"), [(70, "at most 70.0 ms, and MFU is at least 34.2%"), (65, "65.0 ms")]
)
def test_mfu_is_told_without_recording_where_that_is_known(tmp_path, timed_ms, says):
    trace = read(OURS)
    timed = UnrecordedMark(clock="gpu", step_ns=[timed_ms * MS] * 3, where="after", version=1)
    fact = Fact(int(trace.ranges.end_ns.max()), 0, timed)
    save(replace(trace, facts=(fact,)), tmp_path / "timed.sqlite")
    document = viewed("efficiency", tmp_path / "timed.sqlite", per_step=True)
    assert f"Without recording, a step takes {says}" in next(
        table.caption for table in document.tables if table.key == "step"
    )
    recorded = by(document, "step", "flops_of")["model (MFU)"]
    assert recorded["share"] == pytest.approx(0.297, abs=0.001)
