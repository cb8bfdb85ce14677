"""What a page holds: the account of a step, changes, the views, bounded size, and nothing from elsewhere."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from nvtx_kernels.analysis import page as command
from nvtx_kernels.analysis.account.cpu import CPU_CAUSES
from nvtx_kernels.analysis.account.idle import CAUSES
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page import as_html
from nvtx_kernels.analysis.page.contents import contents
from nvtx_kernels.analysis.page.timeline import NO_KIND
from nvtx_kernels.analysis.presenters import cell_text
from nvtx_kernels.analysis.views import headings
from nvtx_kernels.analysis.views.communication import NOTHING
from nvtx_kernels.analysis.views.memory import NO_MEMORY
from nvtx_kernels.analysis.views.phases import phases as by_category
from nvtx_kernels.analysis.views.registry import Subject, viewer
from nvtx_kernels.analysis.views.verdict import verdict
from nvtx_kernels.analysis.vocabulary import PHASES
from nvtx_kernels.analysis.vocabulary.calls import CALL_KINDS

from tests.analysis.making.allocated import with_memory
from tests.analysis.making.building import Launch, Range, Work, build
from tests.analysis.making.communicating import communicating
from tests.analysis.making.made_reports import two_steps
from tests.analysis.making.shown_page import drawn, numbers
from tests.analysis.making.subjects import DATA, SHARED
from tests.analysis.making.subjects import opened as opened_once

REAL = sorted([*DATA.glob("*.sqlite"), *SHARED.glob("h200/*.sqlite"), *SHARED.glob("corpus/[!IY]*.sqlite")])
TITLES = {"Steps": "steps", "Ranks": "communication", "Memory": "memory", "Roofline": "efficiency"}


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


def wide(folder):
    """Build a report of one step of 9,000 kernels, each of another name, in 900 ranges."""
    ranges = [Range("step", 0, 10**6), *(Range(f"part {n} of", 1000 * n, 1000 * n + 999) for n in range(900))]
    launches = [Launch(n, 100 * n, 100 * n + 50) for n in range(9_000)]
    work = [Work(n, 100 * n + 60, 100 * n + 90, f"kernel number {n} of all that there are") for n in range(9_000)]
    return build(folder, ranges=ranges, launches=launches, work=work)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name[:40])
def test_the_parts_of_each_bar_add_up_to_its_step(path):
    account = opened_once(path).whole.account
    bars = drawn(path)["bars"]
    assert len(bars["gpus"]) == len(account.gpus)
    for gpu in bars["gpus"]:
        parts = [part["ns"] for kind in gpu["kinds"] for part in kind["parts"]]
        assert sum(parts) == pytest.approx(gpu["ns"])
    if len(account.gpus) == 1 and account.has_steps:
        assert bars["ns"] == account.step_ns == pytest.approx(bars["gpus"][0]["ns"])


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name[:40])
def test_parts_of_a_bar_are_those_of_the_work_that_they_select(path):
    page = drawn(path)
    texts = page["data"]["timeline"]["texts"]
    keys = {part["key"] for gpu in page["bars"]["gpus"] for kind in gpu["kinds"] for part in kind["parts"]}
    working = {key for key in keys if key and not key.startswith("idle ")}
    assert working <= set(page["data"]["rows"]["parts"])
    causes = {key.removeprefix("idle ") for key in keys - working - {""}}
    assert causes <= {*texts, "no more work"} or not page["bars"]


def test_a_page_answers_as_the_terminal_does_for_the_work_in_steps(tmp_path):
    report = opened(beyond_steps(tmp_path))
    shown = contents([report]).reports[0]
    assert shown["answer"].startswith(verdict(report.report))
    assert sum(numbers(shown["data"]["rows"]["ns"])) == 20
    assert shown["data"]["per"] == 1
    assert any("410 ns" in line and "in no step" in line for line in shown["accounting"])


def test_work_outside_the_steps_is_no_column_and_stays_in_the_sum(tmp_path):
    table = by_category(opened(beyond_steps(tmp_path)).whole)
    assert [column.key for column in table.columns[1::2]] == ["forward_ns", "all_ns"]
    assert next(line.values[1::2] for line in table.rows if line.values[0] == "sum") == (60, 460)
    assert table.caption.endswith("all: with 400 ns of kernels in no phase, outside the measured steps.")


def asked(name, subject):
    """Return the titles of a view's tables, and its notes, or why it has none."""
    try:
        document = viewer(name).view(subject)
    except ReportError as error:
        return [], [str(error)]
    return [cell_text.title(table) for table in document.tables], document.notes


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name[:40])
def test_sections_are_the_documents_of_the_views(path):
    of_path = opened_once(path)
    shown = contents([of_path]).reports[0]
    whole = Subject(of_path.report, of_path.counted, of_path.partition)
    absent = {"Ranks": NOTHING, "Memory": NO_MEMORY}
    expected = [title for title, view in TITLES.items() if absent.get(title) not in asked(view, whole)[1]]
    assert [section["title"] for section in shown["sections"]] == expected
    for section in shown["sections"]:
        titles, notes = asked(TITLES[section["title"]], whole)
        assert [table["title"] for table in section["tables"]] == titles
        assert titles or section["notes"] == notes


@pytest.mark.parametrize(("title", "path"), [("Memory", with_memory), ("Ranks", communicating)])
def test_a_report_with_the_data_has_a_section_of_it(title, path):
    found = drawn(path())
    (section,) = (one for one in found["sections"] if one["title"] == title)
    assert section["tables"]
    assert bool(found["memory"]) is (title == "Memory")
    facts = [fact for fact in found["data"]["facts"] if fact["name"] == "memory"]
    assert bool(facts) is (title == "Memory")


def test_what_is_known_of_ranges_has_its_figures():
    facts = drawn(DATA / "h200_train_fp32.sqlite")["data"]["facts"]
    tree = drawn(DATA / "h200_train_fp32.sqlite")["data"]["tree"]
    softmax = [fact["lines"] for fact in facts if tree["name"][fact["path"]] == "computing softmax"]
    assert any("0.2% of the peak of fp32" in line for lines in softmax for line in lines)


def test_of_two_reports_the_answer_and_tables_are_those_of_compare(tmp_path):
    reports = [opened(two_steps(tmp_path / f"{name}.sqlite", slower)) for name, slower in (("a", 0), ("b", 60))]
    (difference,) = contents(reports).differences
    assert difference["answer"].startswith("Cannot tell whether B is faster: a step takes 980 µs, was 950 µs")
    assert any("by kernel" in table["title"] for table in difference["tables"])


def test_everything_that_has_a_colour_has_one_in_the_style_sheet():
    sheet = (as_html.ASSETS / "page.css").read_text()
    tones = [*CAUSES, *CPU_CAUSES, *(kind or NO_KIND for kind in CALL_KINDS), "communication", "copies"]
    tones += [headings.phase(phase) for phase in PHASES]
    assert [
        tone for tone in tones if not re.search(rf"^  --{tone.replace(' ', '-')}: #", sheet, re.MULTILINE)
    ] == []
    phases = [re.search(rf"--{headings.phase(phase).replace(' ', '-')}: (#\w+)", sheet)[1] for phase in PHASES]
    assert len(set(phases)) == len(PHASES)


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


def test_a_page_loads_nothing_and_runs_only_its_own_script(tmp_path):
    text = as_html.present(
        contents([opened(two_steps(tmp_path / "r.sqlite", names={"exp": "<script>1</script>"}))])
    )
    loads = Loads()
    loads.feed(text)
    assert loads.found == []
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"'sha256-(.+?)'", loads.policy) == digests
    assert len(digests) == 1
    assert loads.policy.startswith("default-src 'none'; ")


def test_equal_reports_give_equal_pages(tmp_path):
    path = two_steps(tmp_path / "r.sqlite")
    first, second = (as_html.present(contents([opened(path)])) for _ in range(2))
    assert first == second


def test_a_page_of_a_wide_report_stays_small(tmp_path):
    assert len(as_html.present(contents([opened(wide(tmp_path))])).encode()) < 2_000_000


@pytest.mark.parametrize(
    ("reports", "output", "status", "says"),
    [
        (["none.sqlite"], "page.html", 1, "none.sqlite does not exist"),
        (["r.sqlite"], "no/such/page.html", 2, "cannot be written"),
        ([f"r{number}.sqlite" for number in range(9)], "page.html", 2, "at most 8 reports"),
    ],
)
def test_what_cannot_be_made_into_a_page_is_said_in_a_sentence(tmp_path, capsys, reports, output, status, says):
    two_steps(tmp_path / "r.sqlite")
    assert command.main([*(str(tmp_path / name) for name in reports), "-o", str(tmp_path / output)]) == status
    assert says in capsys.readouterr().err
    assert not (tmp_path / output).exists()
