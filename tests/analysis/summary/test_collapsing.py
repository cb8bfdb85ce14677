"""Names in tables: siblings that differ in number only are one row, unless their classes are known to differ."""

import json
from dataclasses import replace

import pytest
from nvtx_kernels.analysis.compare.changes import changes, compare
from nvtx_kernels.analysis.summary.collapsing import naming
from nvtx_kernels.analysis.summary.selection import with_indices_collapsed

from tests.analysis.making.building import MARK, Range, build, launched
from tests.analysis.making.made_reports import report_of, row
from tests.analysis.making.traces import summary

CLASSES = {
    "layer *": "Block", "layer */mlp": "Sequential", "layer */mlp/mlp 0": "Linear", "layer */mlp/mlp 1": "GELU",
    "layer */mlp/mlp 2": "Linear", "head 0": "Linear", "head 1": "Embedding",
}  # fmt: skip
NAMED = {
    ("step 3", "forward", "GPT", "layer 7", "mlp", "mlp 1"): (
        "step *",
        "forward",
        "GPT",
        "layer *",
        "mlp",
        "mlp 1 GELU",
    ),
    ("GPT", "layer 7", "mlp", "mlp 9"): ("GPT", "layer *", "mlp", "mlp *"),
    ("GPT", "head 1"): ("GPT", "head 1 Embedding"),
    ("forward", "layer 7", "mlp 1"): ("forward", "layer *", "mlp *"),
    ("GPT",): ("GPT",),
    (): (),
}


@pytest.mark.parametrize(("path", "named"), NAMED.items())
def test_modules_of_different_classes_stay_apart(path, named):
    assert naming({"GPT": CLASSES})(path) == named


def test_a_report_says_the_classes_itself(tmp_path):
    mark = Range(
        "nvtx-kernels annotation: " + json.dumps({"model": "GPT", "classes": CLASSES}), 1, None, event=MARK
    )
    ranges = [mark, Range("GPT", 5, 200), Range("head 0", 10, 50), Range("head 1", 60, 90)]
    report = summary(build(tmp_path, ranges=ranges, **launched((20, 30), (70, 80))))
    shown = with_indices_collapsed(report)
    assert {row.path[-1] for row in shown.ranges} == {"GPT", "head 0 Linear", "head 1 Embedding"}
    assert {row.path[-1] for row in report.ranges} == {"GPT", "head 0", "head 1"}


OLD = report_of(*(row("sgemm", 100 * n, "GPT", f"head {n}") for n in (1, 2, 0)))
OLD = replace(OLD, provenance=replace(OLD.provenance, models={}))
NEW = replace(OLD, provenance=replace(OLD.provenance, models={"GPT": CLASSES | {"head 2": "Linear"}}))


@pytest.mark.parametrize(("a", "b"), [(OLD, NEW), (NEW, OLD)])
def test_an_old_report_is_compared_with_a_new_one_by_what_the_new_one_says(a, b):
    found = {change.key[-1]: change.delta_ns for change in changes(compare(a, b), "range", collapse=True)}
    assert found == {"GPT": 0, "head 0 Linear": 0, "head 1 Embedding": 0, "head 2 Linear": 0}
    other = replace(OLD, provenance=replace(OLD.provenance, models={"GPT": {"head 0": "Conv1D"}}))
    found = changes(compare(NEW, other), "range", collapse=True)
    assert {change.key[-1] for change in found} == {"GPT", "head *", "head 1 Embedding", "head 2 Linear"}
