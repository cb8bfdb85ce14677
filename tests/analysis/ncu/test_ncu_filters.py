"""The filters that are made for ncu select exactly the kernels asked for, by a matcher of its documented rules."""

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.ncu.filters import choose, include, is_under
from nvtx_kernels.analysis.ncu.wanted import Asked, kernels
from nvtx_kernels.analysis.readers import read

from tests.analysis.making.building import AUTOGRAD, WORKER, Range, build, launched
from tests.analysis.making.bundled import needs_shared, unpacked
from tests.analysis.making.ncu_semantics import parsed, selected, selects

# Texts of the manual, with stacks that they select and stacks that they do not.
DOCUMENTED = [
    ("A_range/", ["A_range"], ["B range"]),
    ("A_range/", ["x", "A_range", "y"], []),
    ("Domain-A@A_range/", [], ["A_range"]),
    ("[A_range", ["A_range", "x"], ["x", "A_range"]),
    ("Range Z]", ["x", "Range Z"], ["Range Z", "x"]),
    ("A_range/B range", ["A_range", "B range", "y"], ["A_range", "x", "B range"]),
    ("A_range/*/B range", ["A_range", "x", "y", "B range"], ["B range", "A_range"]),
    ("A_range/*/B range", ["A_range", "B range"], ["A_range"]),
    ("B range/+/Range D", ["B range", "x", "Range D"], ["B range", "Range D"]),
    ("[A_range/+/Range Z", ["A_range", "x", "Range Z"], ["y", "A_range", "x", "Range Z"]),
    (r"A_range\[i\]/", ["A_range[i]"], ["A_range", "i"]),
]


@pytest.mark.parametrize(("text", "stack", "other"), DOCUMENTED)
def test_the_matcher_is_that_of_the_manual(text, stack, other):
    assert not stack or selects(text, {"": stack})
    assert not other or not selects(text, {"": other})


@pytest.mark.parametrize(
    ("names", "domain", "text"),
    [
        (("softmax",), "nvtx-kernels", "nvtx-kernels@softmax/"),
        (("a", "b"), "", "a/*/b"),
        (("x[0], y/z*",), "my@domain", r"my\@domain@x\[0\]\, y\/z\*/"),
    ],
)
def test_a_range_filter_is_written_as_the_manual_says_and_selects_what_it_says(names, domain, text):
    assert include(names, domain) == text
    assert parsed(text)[0] == domain
    for stack in (("a",), ("a", "b"), ("a", "x", "b"), ("x", "a", "b"), ("softmax",), ("x[0], y/z*", "b"), ()):
        assert selects(text, {domain: list(stack)}) == is_under(names, stack)


ASKED = [
    Asked("softmax"),
    Asked("forward > softmax"),
    Asked("backward > softmax"),
    Asked("backward"),
    Asked("layer 3"),
    Asked("layer 1* > ffn", ("backward",)),
    Asked("attention"),
    Asked("layer", ("forward",), "elementwise"),
    Asked("", ("optimizer",)),
    Asked("", ("backward",), "reduce"),
]
OURS = [
    "h200_train_fp32.sqlite",
    pytest.param("h200_recorder.sqlite", marks=pytest.mark.slow),
    pytest.param("h200_emit_nvtx.sqlite.xz", marks=pytest.mark.slow),
    "h200_compiled.sqlite",
]
OTHERS = [
    f"h200/{name}"
    for name in ("train_fp32.sqlite", "forward_fp32.sqlite", "fsdp2_llama.sqlite.xz", "compiled_default.sqlite.xz")
]


@pytest.mark.parametrize("name", [*OURS, *(pytest.param(name, marks=needs_shared) for name in OTHERS)])
def test_exactly_the_wanted_kernels_of_a_real_report_are_selected(tmp_path, name):
    attribution = attribute(read(unpacked(name, tmp_path)))
    found = 0
    for asked in ASKED:
        try:
            wanted = kernels(attribution, asked)
        except ReportError:  # a report without these ranges
            continue
        chosen = choose(wanted)
        rows = selected(chosen.options(), attribution.trace)
        expected = set(wanted.rows[wanted.requested].tolist())
        assert len(set(rows) - expected) == chosen.surplus, asked
        assert not expected - set(rows), asked
        assert chosen.requested == len(expected)
        found += chosen.exact
    assert found >= (0 if "compiled_default" in name else 2)  # its warm-up has the same ranges


def chosen_of(path, asked):
    attribution = attribute(read(path))
    wanted = kernels(attribution, asked)
    chosen = choose(wanted)
    rows = selected(chosen.options(), attribution.trace)
    return chosen, len(rows), len(set(rows) & set(wanted.rows[wanted.requested].tolist()))


@pytest.mark.parametrize("asked", ["forward > softmax", "backward > softmax"])
def test_softmax_of_our_model_needs_one_include(tmp_path, asked):
    chosen, _, _ = chosen_of(unpacked("h200_train_fp32.sqlite", tmp_path), Asked(asked))
    backward = asked.startswith("backward")
    assert chosen.exact
    assert chosen.includes == (f"nvtx-kernels@measure/*/{asked.split()[0]}/*/computing softmax",)
    assert chosen.scope == ("process" if backward else "thread")


STEP = [Range("step", 0, 900), Range("forward", 10, 200), Range("backward", 300, 700)]


def test_what_the_names_asked_for_cannot_tell_apart_is_counted(tmp_path):
    ranges = [*STEP, Range("softmax", 20, 90), Range("softmax", 310, 600, AUTOGRAD)]
    path = build(
        tmp_path,
        ranges=[*ranges, Range("io", 650, 950, WORKER)],  # crosses the step: the process has no stack
        **launched((30, 40), (50, 60), (320, 330, AUTOGRAD)),
        thread_names={AUTOGRAD: "pt_autograd_0", WORKER: "pt_data_worker"},
    )
    chosen, rows, right = chosen_of(path, Asked("backward > softmax"))
    assert (chosen.includes, chosen.scope, chosen.surplus) == (("softmax/",), "thread", 2)
    assert (rows, right) == (3, 1)


def test_kernels_below_the_very_same_ranges_are_narrowed_by_name_and_the_rest_is_counted(tmp_path):
    ranges = [Range("step", 0, 900), Range("softmax", 10, 500)]
    calls = launched((20, 30), (40, 50), name="void a<float>(int)")
    more = launched((60, 70), (80, 90), name="void ns::b<float>(int)", first=3)
    third = launched((100, 110), name="void c::a<double>(int)", first=5)
    path = build(tmp_path, ranges=ranges, **{key: calls[key] + more[key] + third[key] for key in calls})
    chosen, rows, right = chosen_of(path, Asked("softmax", kernel="b<float>"))
    assert (chosen.kernel_names, chosen.exact, rows, right) == ("^(b)$", True, 2, 2)
    chosen, rows, right = chosen_of(path, Asked("softmax", kernel="a<float>"))
    assert (chosen.surplus, rows, right) == (1, 3, 2)


def test_kernels_outside_ranges_are_taken_by_name_and_order(tmp_path):
    calls = launched((10, 20), (30, 40), (600, 610), (700, 710), (960, 970))
    path = build(tmp_path, ranges=[Range("step", 0, 500)], **calls)
    chosen, rows, right = chosen_of(path, Asked("", ("other",)))
    assert (chosen.exact, rows, right) == (True, 5, 5)
    ranges = [Range("forward", 0, 500), Range("warm-up", 690, 750)]
    path = build(tmp_path, ranges=ranges, **calls)
    chosen, rows, right = chosen_of(path, Asked("", ("other",)))
    assert (chosen.includes, chosen.skip, chosen.count, chosen.surplus) == ((), 2, 3, 1)
    assert (rows, right) == (3, 2)


def test_names_that_nvtx_has_otherwise_stand_in_no_filter(tmp_path):
    ranges = [Range("step", 0, 900), Range("costs $5", 10, 500), Range("a\\b", 12, 400)]
    path = build(tmp_path, ranges=ranges, **launched((20, 30), (600, 610)))
    chosen, rows, right = chosen_of(path, Asked("costs"))
    assert (chosen.includes, chosen.count, rows, right) == ((), 1, 1, 1)


@needs_shared
def test_what_ranges_cannot_tell_apart_is_said_of_a_real_report(tmp_path):
    chosen, rows, _ = chosen_of(unpacked("h200/pipeline_1f1b.sqlite.xz", tmp_path), Asked("", ("backward",)))
    assert chosen.surplus == rows - chosen.requested > 0
