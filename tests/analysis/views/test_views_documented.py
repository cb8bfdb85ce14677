"""What docs/views.md shows is what the views print."""

import re

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.document import seen_by
from nvtx_kernels.analysis.views.overview import everything
from nvtx_kernels.analysis.views.registry import VIEWS

from tests.analysis.making.answering import answering
from tests.analysis.making.lined import traced_report
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.stacks import Event, launch, write
from tests.analysis.making.subjects import DATA, screen, subject, viewed

PAGE = (DATA.parents[1] / "docs" / "views.md").read_text(encoding="utf-8")
FOR_PROGRAMS = (DATA.parents[1] / "docs" / "json.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^## (\w+)\n\n```\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL))


def test_the_page_shows_some_views():
    assert set(SHOWN) == {"idle", "attention"}


@pytest.mark.parametrize("name", SHOWN)
def test_every_paragraph_shown_is_printed(name):
    printed = screen(viewed(name, OURS, per_step=True, top=4)).split("\n\n")
    assert [
        part for part in SHOWN[name].split("\n\n") if part not in [text.rstrip("\n") for text in printed]
    ] == []


def columns_of(document):
    return [(t.key, ", ".join(f"`{c.key}`" for c in seen_by("programs", t).columns)) for t in document.tables]


def stacked(folder):
    """Write a trace with stacks, of one kernel that a function launches."""
    return write(folder / "trace.json", Event("train.py(5): step", 0, 1_000), launch(1, 100))


#: The rankings that a report of kernels alone has none of, and reports that have them.
WITH_CODE = {"line": traced_report, "function": stacked}


def test_the_columns_that_programs_get_are_those_written_down():
    written = re.findall(r"^\| `(--by|view) (\w+)` \| `(\w+)` \| (.*) \|$", FOR_PROGRAMS, re.MULTILINE)
    named = list(dict.fromkeys((how, what) for how, what, *_ in written))
    assert [what for _, what in named] == ["kernel", "category", *WITH_CODE, "range", *VIEWS]
    whole = {"whole": True, "every_index": True, "timed": {"step": 1e6}}
    for how, what in named:
        if what in WITH_CODE:
            continue  # the next test
        document = (
            everything(subject(OURS).report, by=what)
            if how == "--by"
            else viewed(what, answering(what, ranks=2), **whole)
        )
        assert [row[2:] for row in written if row[:2] == (how, what)] == columns_of(document)


@pytest.mark.parametrize("what", WITH_CODE)
def test_the_columns_of_lines_and_functions_are_those_written_down(what, tmp_path, capsys):
    (written,) = re.findall(rf"^\| `--by {what}` \| `\w+` \| (.*) \|$", FOR_PROGRAMS, re.MULTILINE)
    assert kernels.main([str(WITH_CODE[what](tmp_path)), "--by", what, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split(",")[1:] == written.replace("`", "").split(", ")
