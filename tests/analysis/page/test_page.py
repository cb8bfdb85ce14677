"""What a page holds: sums that hold whatever is cut, bounded size, and nothing that is not its own."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from nvtx_kernels.analysis import page as command
from nvtx_kernels.analysis.document import Column, Row, Table
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.measures.steps import ranges_of
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page import as_html, sections
from nvtx_kernels.analysis.page import icicle as icicles
from nvtx_kernels.analysis.page.contents import contents, differences, phases, steps
from nvtx_kernels.analysis.page.icicle import MAX_ROWS, icicle, kernel_rows
from nvtx_kernels.analysis.presenters import cell_text
from nvtx_kernels.analysis.views.communication import NOTHING
from nvtx_kernels.analysis.views.headings import ALL_PARTS
from nvtx_kernels.analysis.views.idle import NEVER_IDLE
from nvtx_kernels.analysis.views.memory import NO_MEMORY, WHOLE_RUN
from nvtx_kernels.analysis.views.phases import phases as by_category
from nvtx_kernels.analysis.views.registry import Subject, viewer
from nvtx_kernels.analysis.views.verdict import verdict

from tests.analysis.making.allocated import with_memory
from tests.analysis.making.building import Launch, Range, Work, build
from tests.analysis.making.communicating import communicating
from tests.analysis.making.made_reports import REPORTS, kernel_total, report_of, row, two_steps
from tests.analysis.making.shown_page import drawn
from tests.analysis.making.subjects import DATA, SHARED
from tests.analysis.making.subjects import opened as opened_once

REAL = sorted([*DATA.glob("*.sqlite"), *SHARED.glob("h200/*.sqlite"), *SHARED.glob("corpus/[!IY]*.sqlite")])
VENDOR = Path(as_html.__file__).with_name("vendor")

WIDE = report_of(
    *(row(f"k{n}", 10_000 - n % 977, "step", f"part {n % 211} of", f"inner{n % 7}") for n in range(9_000)), steps=1
)


@given(REPORTS)
def test_boxes_sum_to_the_box_around_them(report):
    boxes = icicle(report)
    inside = [0] * len(boxes["ns"])
    for parent, ns in zip(boxes["parent"][1:], boxes["ns"][1:], strict=True):
        inside[parent] += ns
    for kind, ns, held in zip(boxes["kind"], boxes["ns"], inside, strict=True):
        assert held == (0 if kind in ("kernel", "rest") or not report.kernels else ns)
    assert boxes["ns"][0] == kernel_total(report.kernels)


def test_what_is_cut_from_the_boxes_is_counted(monkeypatch):
    monkeypatch.setattr(icicles, "MAX_BOXES", 300)
    boxes = icicle(WIDE)
    assert len(boxes["ns"]) < 600
    tops = [n for n, parent in enumerate(boxes["parent"]) if parent == 0]
    assert sum(boxes["ns"][n] for n in tops) == boxes["ns"][0] == kernel_total(WIDE.kernels)
    smaller = [label for label, kind in zip(boxes["label"], boxes["kind"], strict=True) if kind == "rest"]
    assert smaller
    assert all(re.fullmatch(r"\d+ smaller", label) for label in smaller)


def test_what_is_cut_from_the_table_is_counted():
    table = kernel_rows(WIDE)
    assert len(table["ns"]) == MAX_ROWS
    assert table["left_out"]["rows"] == 9_000 - MAX_ROWS
    assert sum(table["ns"]) + table["left_out"]["ns"] == table["total_ns"] == kernel_total(WIDE.kernels)


@given(REPORTS)
def test_phases_and_categories_sum_to_the_kernel_time(report):
    assert sum(map(sum, phases(report)["ns"])) == kernel_total(report.kernels)


@given(REPORTS, REPORTS)
def test_differences_on_a_page_sum_to_the_total(a, b):
    found = differences(a, b)
    total = found["total"]["b_ns"] - found["total"]["a_ns"]
    for axis in found["by"].values():
        shown = sum(row["b_ns"] - row["a_ns"] for row in axis["rows"])
        assert shown + axis["left_out"]["delta_ns"] == pytest.approx(total, abs=1e-3)


def test_each_range_has_its_phase_and_its_time_in_each_step(tmp_path):
    report = opened(two_steps(tmp_path / "r.sqlite", slower=60))
    found = steps(report.attribution, report.whole)
    rows = {row["path"][-1]: row for row in found["ranges"]}
    assert rows["step"]["kernel_ns"] == [750_000, 810_000]
    assert rows["layer *"]["kernel_ns"] == [450_000, 450_000]
    assert rows["layer *"]["span_ns"] == [460_000, 460_000]
    assert (rows["backward"]["slowest"], rows["backward"]["kernel"]["median"]) == (1, 330_000)
    assert {name: row["phase"] for name, row in rows.items()} == {
        "step": "step", "forward": "forward", "layer *": "forward", "softmax": "forward", "backward": "backward",
    }  # fmt: skip
    assert rows["softmax"]["kernel"] == {"median": 40_000, "min": 40_000, "max": 40_000, "mean": 40_000, "std": 0}


def test_a_report_without_steps_has_no_spread(tmp_path):
    report = opened(two_steps(tmp_path / "r.sqlite"))
    without = report_of(*report.whole.kernels)
    assert steps(report.attribution, without) == {"count": 0, "ranges": [], "left_out": 0}


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name[:40])
def test_times_in_the_steps_of_real_reports_sum_to_their_ranges(path):
    of_path = opened_once(path)
    report = of_path.whole.counted or of_path.whole
    sums = {(one.path, one.phase): sum(one.kernel_ns) for one in ranges_of(of_path.counted, lambda path: path)}
    known = {(row.path, row.phase): row.inclusive_ns for row in report.ranges}
    assert sums.items() <= known.items()
    assert bool(sums) == bool(report.counted_steps)


def beyond_steps(folder):
    """Build a report of two steps, and of a kernel and a copy in none of them."""
    ranges = [Range("step", 0, 100), Range("forward", 10, 90), Range("step", 200, 300), Range("forward", 210, 290)]
    launches = [Launch(1, 20, 30), Launch(2, 220, 230), Launch(3, 400, 410), Launch(4, 420, 430)]
    work = [
        Work(1, 40, 80, "sgemm"),
        Work(2, 240, 260),
        Work(3, 500, 900, "init"),
        Work(4, 1000, 1010, 1, "memcpy"),
    ]
    return build(folder, ranges=ranges, launches=launches, work=work)


@pytest.mark.parametrize("made", [beyond_steps, lambda folder: build(folder, work=[Work(None, 1, 5, "sgemm")])])
def test_the_parts_of_a_page_are_all_work_and_have_a_color_each(tmp_path, made):
    shown = drawn(made(tmp_path))
    assert sum(ns for _, ns in shown["facts"]["parts"]) == shown["kernels"]["total_ns"] > 0
    colored = (Path(sections.__file__).parent / "assets" / "2_charts.js").read_text()
    texts = [text for _, text, _ in ALL_PARTS]
    assert [text for text in texts if not re.search(f'"?{re.escape(text)}"?: "#', colored)] == []


def test_figures_per_step_are_of_the_work_in_steps_as_in_the_terminal(tmp_path):
    report = opened(beyond_steps(tmp_path))
    shown = contents([report]).reports[0]
    assert shown["facts"]["figures"][0][0] == "Step time"
    assert shown["facts"]["figures"][1] == ("Kernel time", "20 ns", "in the one step")
    assert (shown["kernels"]["total_ns"], shown["icicles"]["together"]["ns"][0], shown["per"]) == (20, 20, 1)
    assert sum(ns for _, ns in shown["facts"]["parts"]) == 20
    assert any("410 ns" in line and "in no step" in line for line in shown["facts"]["accounting"])
    assert shown["verdict"] == verdict(report.report) != ""


def test_work_outside_the_steps_is_no_column_and_stays_in_the_sum(tmp_path):
    table = by_category(opened(beyond_steps(tmp_path)).whole)
    assert [column.key for column in table.columns[1::2]] == ["forward_ns", "all_ns"]
    assert next(line.values[1::2] for line in table.rows if line.values[0] == "sum") == (60, 460)
    assert table.caption.endswith("all: with 400 ns of kernels in no phase, outside the measured steps.")


def asked(name, subject):
    """Return the titles of a view's tables, and why it has none."""
    try:
        return [cell_text.title(table) for table in viewer(name).view(subject).tables], ""
    except ReportError as error:
        return [], str(error)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name[:40])
def test_sections_are_the_documents_of_the_views(path):
    of_path = opened_once(path)
    shown = contents([of_path]).reports[0]
    names = [section["name"] for section in shown["sections"]]
    of_data = {"idle": NEVER_IDLE, "communication": NOTHING, "memory": NO_MEMORY}
    whole = Subject(of_path.report, of_path.counted, of_path.partition)
    expected = ["idle", "agreement", "attention", "communication", "efficiency", "memory"]
    assert names == [name for name in expected if asked(name, whole)[1] != of_data.get(name, "none")]
    for section in shown["sections"]:
        titles, why = asked(section["name"], whole)
        assert [table["title"] for table in section["tables"]] == titles
        assert not why or section["notes"] == [why]
    assert {where for _, where in shown["look"]} <= {*names, "steps"}


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("memory", with_memory, r"GPU 0 holds at most 1.0 MiB, in .+: 100.0% of it is of .+\."),
        ("communication", communicating, r"all_reduce of forward is exposed the longest: 20 ns of 20 ns .+\."),
    ],
)  # fmt: skip
def test_a_report_with_the_data_has_a_section_of_it(name, path, said):
    found = drawn(path())
    (section,) = (one for one in found["sections"] if one["name"] == name)
    assert section["open"]
    assert section["tables"]
    assert any(where == name and re.fullmatch(said, text) for text, where in found["look"])


def test_what_is_to_be_looked_at_has_its_figures():
    assert drawn(DATA / "h200_train_fp32.sqlite")["look"] == [
        ("While recorded, MFU is 29.8%: a step computes 1.6 TFLOP of the model in 80.35 ms.", "efficiency"),
        (
            "backward > layer * > attention > computing softmax (4.73 ms) is bound by neither compute nor memory: "
            "it reaches 0.2% of peak FLOP/s and 8.0% of peak B/s.",
            "efficiency",
        ),
    ]


def test_exposed_communication_is_looked_at(tmp_path):
    work = [Work(1, 40, 80, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"), Work(2, 70, 90, "sgemm", stream=8)]
    launches = [Launch(1, 20, 30), Launch(2, 32, 34)]
    ranges = [Range("step", 0, 100), Range("forward", 10, 90)]
    shown = drawn(build(tmp_path, ranges=ranges, launches=launches, work=work))
    said = "all_reduce of forward is exposed the longest: 30 ns of 40 ns on GPU 0."
    assert (said, "communication") in shown["look"]
    assert next(one["open"] for one in shown["sections"] if one["name"] == "communication")


class Loads(HTMLParser):
    """Collects everything in a page that would load or run something."""

    def __init__(self):
        super().__init__()
        self.found, self.policy = [], ""

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.found += [
            (tag, name)
            for name, value in attributes
            if (name in ("src", "href", "srcset", "data") and not value.startswith("#")) or name[:2] == "on"
        ]
        self.found += [(tag, "") for _ in range(tag in ("link", "img", "iframe", "object", "embed", "base"))]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]


def test_a_page_loads_nothing_and_runs_only_its_own_scripts(tmp_path):
    text = as_html.present(
        contents([opened(two_steps(tmp_path / "r.sqlite", names={"exp": "<script>1</script>"}))])
    )
    loads = Loads()
    loads.feed(text)
    assert loads.found == []
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(digests) == 3
    assert re.findall(r"'sha256-(.+?)'", loads.policy) == digests
    assert loads.policy.startswith("default-src 'none'; ")


def test_equal_reports_give_equal_pages(tmp_path):
    path = two_steps(tmp_path / "r.sqlite")
    first, second = (as_html.present(contents([opened(path)])) for _ in range(2))
    assert first == second


def test_a_page_of_a_wide_report_stays_small(tmp_path):
    wide = replace(opened(two_steps(tmp_path / "r.sqlite")), whole=WIDE)
    text = as_html.present(contents([wide]))
    own = sum((VENDOR / name).stat().st_size for name in (*as_html.LIBRARIES, as_html.TABLE_STYLE))
    assert len(text.encode()) - own < 1_500_000


@pytest.mark.parametrize("row", json.loads((VENDOR / "vendored.json").read_text()), ids=lambda row: row["package"])
def test_vendored_files_are_those_of_their_packages(row):
    assert hashlib.sha256((VENDOR / row["file"]).read_bytes()).hexdigest() == row["sha256"]


@pytest.mark.parametrize(
    ("reports", "output", "status", "says"),
    [
        (["none.sqlite"], "page.html", 1, "none.sqlite does not exist"),
        (["r.sqlite"], "no/such/page.html", 2, "cannot be written"),
        (["r.sqlite"] * 9, "page.html", 2, "at most 8 reports"),
    ],
)
def test_what_cannot_be_made_into_a_page_is_said_in_a_sentence(tmp_path, capsys, reports, output, status, says):
    two_steps(tmp_path / "r.sqlite")
    assert command.main([*(str(tmp_path / name) for name in reports), "-o", str(tmp_path / output)]) == status
    assert says in capsys.readouterr().err
    assert not (tmp_path / output).exists()


@pytest.mark.parametrize(("share", "said"), [(0.5, ": 50.0% of it is of layer 0"), (None, ""), ("no row", "")])
def test_what_memory_holds_is_told_as_far_as_it_is_known(share, said):
    def table(key, **row):
        return Table(key, "", tuple(Column(name, name) for name in row), (Row(tuple(row.values())),))

    peaks = table("peaks", device="GPU 0", phase=WHOLE_RUN, held_bytes=1 << 20, range="step")
    tables = {"peaks": peaks, "holders": table("holders", device="GPU 0", range="layer 0", share=share)}
    if share == "no row":
        del tables["holders"]
    assert list(sections._memory(tables)) == [f"GPU 0 holds at most 1.0 MiB, in step{said}."]
