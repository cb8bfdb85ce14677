"""Names on screens: modules by their attributes, with the classes that are true of all in a row."""

import json
from dataclasses import replace

import pytest
from nvtx_kernels.analysis.compare.changes import changes, compare
from nvtx_kernels.analysis.document import WHOLE, Detail
from nvtx_kernels.analysis.page.work_rows import JOINED, path_texts
from nvtx_kernels.analysis.presenters import as_csv, as_table
from nvtx_kernels.analysis.report import merged
from nvtx_kernels.analysis.summary.selection import of_ranges, renamed
from nvtx_kernels.analysis.views.overview import overview
from nvtx_kernels.analysis.views.rows import label
from nvtx_kernels.analysis.vocabulary.modules import agreed, naming

from tests.analysis.making.building import MARK, Range, build, launched
from tests.analysis.making.made_reports import report_of, row
from tests.analysis.making.traces import summary

CLASSES = {
    "layer *": "Block", "layer */mlp": "Sequential", "layer */mlp/mlp 0": "Linear", "layer */mlp/mlp 1": "GELU",
    "layer */mlp/mlp 2": "Linear", "head 0": "Linear", "head 1": "Embedding",
}  # fmt: skip
SHOWN_BEFORE = {
    ("step 3", "forward", "GPT", "layer 7", "mlp", "mlp 1"): "step * > forward > GPT > layer * > mlp > mlp 1 GELU",
    ("GPT", "layer 7", "mlp", "mlp 9"): "GPT > layer * > mlp > mlp *",
    ("GPT", "head 1"): "GPT > head 1 Embedding",
    ("forward", "layer 7", "mlp 1"): "forward > layer * > mlp *",
    ("GPT",): "GPT",
    (): "(outside all ranges)",
}
ATTRIBUTES = {
    "layer *": "layers.*", "layer */mlp": "mlp", "layer */mlp/mlp *": "*", "head *": "heads.*", "x": "experts.x",
    "Net 0": "*", "Net 0/Net 0 1": "*", "unknown": "",
}  # fmt: skip
MORE_CLASSES = CLASSES | {"x": "Linear", "Net 0": "Sequential", "Net 0/Net 0 1": "ReLU", "unknown": ""}
#: What is recorded, what a screen shows of it with every index and without, and the class.
SHOWN = [
    ("step 3 > forward > GPT > layer 7 > mlp > mlp 1", "step 3 > forward > GPT > layers.7.mlp.1",
     "step * > forward > GPT > layers.*.mlp.1", "GELU"),
    ("GPT > layer 7 > mlp", "GPT > layers.7.mlp", "GPT > layers.*.mlp", "Sequential"),
    ("GPT > recompute > layer 7 > my 3rd block > mlp", "GPT > recompute > layers.7 > my 3rd block > mlp",
     "GPT > recompute > layers.* > my 3rd block > mlp", "Sequential"),
    ("GPT > layer 7 > mlp > part > mlp 2", "GPT > layers.7.mlp > part > mlp.2",
     "GPT > layers.*.mlp > part > mlp.2", "Linear"),
    ("GPT > head 0", "GPT > heads.0", "GPT > heads.0", "Linear"),
    ("GPT > x", "GPT > experts.x", "GPT > experts.x", "Linear"),
    ("GPT > Net 0 > Net 0 1", "GPT.0.1", "GPT.0.1", "ReLU"),
    ("GPT > layer 7 mlp 0 + head 1 + loss", "GPT > layers.7 mlp 0 + heads.1 + loss",
     "GPT > layers.* mlp * + heads.* + loss", ""),
    ("GPT > unknown", "GPT > unknown", "GPT > unknown", ""),
    ("GPT > layer 7 > mine 2", "GPT > layers.7 > mine 2", "GPT > layers.* > mine *", ""),
    ("layer 7 > mlp", "layer 7 > mlp", "layer * > mlp", ""),
]  # fmt: skip


@pytest.mark.parametrize(("path", "shown"), SHOWN_BEFORE.items())
def test_modules_of_different_classes_stay_apart_in_recordings_without_attributes(path, shown):
    assert label(naming({"GPT": CLASSES}, {})(path)) == shown


@pytest.mark.parametrize(("path", "every_index", "together", "class_name"), SHOWN)
def test_a_screen_writes_a_module_as_its_attributes_and_keeps_what_is_recorded(
    path, every_index, together, class_name
):
    models, attributes, recorded = {"GPT": MORE_CLASSES}, {"GPT": ATTRIBUTES}, tuple(path.split(" > "))
    apart = naming(models, attributes, every_index=True)(recorded)
    assert (label(apart), label(apart).class_name, apart) == (every_index, class_name, recorded)
    named = naming(models, attributes)(recorded)
    assert (label(named), label(named).class_name) == (together, class_name)
    assert naming(models, attributes)(named) == named


def test_a_row_that_is_cut_from_its_holder_names_the_list_of_its_index():
    path = naming({"GPT": CLASSES}, {"GPT": ATTRIBUTES})(("GPT", "layer 7", "mlp", "mlp 1"))
    assert [label(path, common) for common in (1, 2, 3, 9)] == ["layers.*.mlp.1", "mlp.1", "mlp.1", "mlp.1"]


def test_a_page_joins_the_names_of_a_path_itself():
    path = naming({"GPT": CLASSES}, {"GPT": ATTRIBUTES})(("step 3", "GPT", "layer 7", "mlp", "mlp 1"))
    assert path_texts(path) == ["step *", "GPT", "layers.*", f"{JOINED}.mlp", f"{JOINED}.1"]


def test_a_class_is_shown_only_if_it_is_true_of_all_in_a_row():
    classes = {"layer *": "Block", "layer 0/mlp": "MLP", "layer 1/mlp": "MoE"}
    attributes = {"layer *": "layers.*", "layer */mlp": "mlp"}
    names = naming({"GPT": classes}, {"GPT": attributes})
    shown = label(names(("GPT", "layer 0", "mlp")))
    assert (shown, shown.class_name) == ("GPT > layers.*.mlp", "")
    apart = label(naming({"GPT": classes}, {"GPT": attributes}, every_index=True)(("GPT", "layer 1", "mlp")))
    assert (apart, apart.class_name) == ("GPT > layers.1.mlp", "MoE")


def test_what_models_of_one_name_do_not_agree_on_is_said_of_none():
    both = agreed(
        [{"Net": {"a *": "Linear", "b": "ReLU"}}, {"Net": {"a 0": "Linear", "a 1": "GELU", "c": "Tanh"}}]
    )
    assert both == {"Net": {"a *": "", "b": "ReLU", "a 0": "Linear", "a 1": "", "c": "Tanh"}}
    assert agreed([both, {"Net": {"b": "GELU"}}])["Net"]["b"] == ""
    assert agreed([{"Linear": {}}]) == {"Linear": {}}


def test_two_models_of_one_class_are_two_rows():
    names = naming({"Net": {"a": "Linear"}, "Net#2": {"a": "ReLU"}}, {"Net": {"a": "a"}, "Net#2": {"a": "a"}})
    assert [label(names((name, "a"))) for name in ("Net", "Net#2")] == ["Net > a", "Net#2 > a"]
    assert label(names(("Net", "Net#2", "a"))).class_name == "ReLU", "the innermost model that has it"


def marked(attributes):
    content = {"model": "GPT", "classes": CLASSES, **attributes}
    return Range("nvtx-kernels annotation: " + json.dumps(content), 1, None, event=MARK)


def report_with(tmp_path, *marks):
    ranges = [*marks, Range("GPT", 5, 200), Range("head 0", 10, 50), Range("head 1", 60, 90)]
    return summary(build(tmp_path, ranges=ranges, **launched((20, 30), (70, 80))))


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        ({}, ["GPT", "head 0 Linear", "head 1 Embedding"]),
        ({"attributes": {"head *": "heads.*"}}, ["GPT", "heads.0", "heads.1"]),
        ({"attributes": {}}, ["GPT", "head 0", "head 1"]),
    ],
)
def test_a_report_says_classes_and_attributes_itself(tmp_path, attributes, shown):
    report = report_with(tmp_path, marked(attributes))
    assert sorted(label(row.path[-1:]) for row in renamed(report).ranges) == shown
    assert {row.path[-1] for row in report.ranges} == {"GPT", "head 0", "head 1"}


def test_classes_stand_where_there_is_room_and_programs_get_recorded_names(tmp_path):
    report = report_with(tmp_path, marked({"attributes": {"head *": "heads.*"}}))
    whole = replace(overview(report), lines=0)  # however long a narrow screen gets
    wide, narrow = (as_table.present(whole, width=width) for width in (100, 20))
    assert "\nheads.0 Linear" in wide
    assert "\nheads.0 " in narrow
    assert "Linear" not in narrow
    csv = as_csv.present(overview(report, WHOLE))
    assert ",GPT > head 0," in csv
    assert "heads" not in csv
    with_index = as_table.present(overview(report, Detail(every_index=True)), width=100)
    assert "\nheads.0 Linear" in with_index


PATTERNS = {
    "head 1": ["head 1"],
    "heads.1": ["head 1"],
    "HEADS.*": ["head 0", "head 1"],
    "GPT > heads.1": ["head 1"],
    "GPT.heads.1": ["head 1"],
    "heads": ["head 0", "head 1"],
    "layers.1": ["layer 1"],
    "layers.1.mlp": ["mlp"],
    "layers.?.mlp": ["mlp"],
    "1.mlp": ["mlp"],
    "layers.1 > mlp": ["mlp"],
    "layer 1 > mlp": ["mlp"],
    "layers.3": ["layer 3 mlp + layer 4 norm"],
    "layers.4": ["layer 3 mlp + layer 4 norm"],
}


@pytest.mark.parametrize(("pattern", "last"), PATTERNS.items())
def test_a_pattern_names_a_module_as_recorded_or_as_shown(pattern, last):
    paths = [("head 0",), ("head 1",), ("layer 1",), ("layer 1", "mlp"), ("layer 11",), ("layer 11", "norm")]
    paths.append(("layer 3 mlp + layer 4 norm",))
    report = report_of(*(row("sgemm", 100, "GPT", *path) for path in paths))
    report = replace(
        report, provenance=replace(report.provenance, models={"GPT": CLASSES | {"layer */norm": "N"}})
    )
    report = replace(report, provenance=replace(report.provenance, attributes={"GPT": ATTRIBUTES}))
    found = {row.path for row in of_ranges(report, pattern).ranges}
    outermost = sorted(path[-1] for path in found if path[:-1] not in found)
    assert outermost == (last if pattern != "layer 1" else [*last, "layer 11"])


OLD = report_of(*(row("sgemm", 100 * n, "GPT", f"head {n}") for n in (1, 2, 0)))
OLD = replace(OLD, provenance=replace(OLD.provenance, models={}))
NEW = replace(OLD, provenance=replace(OLD.provenance, models={"GPT": CLASSES | {"head 2": "Linear"}}))


@pytest.mark.parametrize(("a", "b"), [(OLD, NEW), (NEW, OLD)])
def test_an_old_report_is_compared_with_a_new_one_by_what_the_new_one_says(a, b):
    comparison = compare(a, b)
    found = {label(change.key): change.delta_ns for change in changes(comparison, "range", comparison.naming())}
    heads = {f"GPT > head {n} {name}": 0 for n, name in enumerate(("Linear", "Embedding", "Linear"))}
    assert found == {"GPT": 0, **heads}


def test_reports_that_disagree_on_a_class_show_none_and_ranks_are_added_up_so_too():
    other = replace(OLD, provenance=replace(OLD.provenance, models={"GPT": {"head 0": "Conv1D"}}))
    comparison = compare(NEW, other)
    found = {label(change.key) for change in changes(comparison, "range", comparison.naming())}
    assert found == {"GPT", "GPT > head 0", "GPT > head 1 Embedding", "GPT > head 2 Linear"}
    assert merged([NEW, other], "both").provenance.models["GPT"]["head 0"] == ""
