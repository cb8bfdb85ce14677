"""Every format against a file that was looked at; to make a new one, print `presenter(name).present(DOCUMENT)`."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from markdown_it import MarkdownIt
from nvtx_kernels.analysis.document import FOR_MACHINES, Column, Document, Row, Table, by_key, headed, records
from nvtx_kernels.analysis.errors import UsageError
from nvtx_kernels.analysis.presenters import PRESENTERS, as_csv, as_latex, as_parquet, as_table, presenter
from nvtx_kernels.analysis.presenters.output import SUFFIXES, format_of, presented, write
from nvtx_kernels.analysis.support.text import cells

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[3]
REPORT = ROOT / "tests" / "data" / "h200_train_fp32.sqlite"
FILES = {
    "table": "table.txt", "markdown": "markdown.md", "latex": "latex.tex", "csv": "csv.csv",
    "json": "json.json", "html": "html.html",
}  # fmt: skip
HOSTILE = (
    r"void k<a|b>::operator()(float const*, \input{/etc/passwd}, $x_1^2$, 50% & #2 ~ {y}) [clone]",
    '=HYPERLINK("http://x.example/","y")',
    "#read(\"/etc/passwd\") *bold* _emph_ `raw` <label> @ref \\u{1f600}",
    "\x1b[31mred\x1b[0m \u202ereversed\u202c new\nline \ttab",
    "注意力 → softmax µ² ≥ 1 … -- --- ''quoted''",
)  # fmt: skip
TIMES = Table(
    "times",
    "Kernel time, {unit} over 2 steps",
    headed(name="range and kernel", category="category", total_ns="total", share="%", count="launches"),
    (
        Row(("forward > layer * > attention", "gemm", 12_345_678, 0.75, 24), strong=True),
        *(Row((name, "other", 1_000_000 * n, 0.05, n), indent=1) for n, name in enumerate(HOSTILE)),
        Row(("launches", "", 1_330, None, 2.5), kind="count"),
    ),
    "% is of all kernel time & <more>.",
)
RATES = Table(
    "rates",
    "What it computes_and moves",
    (
        Column("phase", "phase"), Column("flops", "FLOPs", "flops"), Column("rate", "FLOP/s", "flops/s"),
        Column("bytes", "bytes", "bytes"), Column("bandwidth", "B/s", "bytes/s"),
        Column("ratio", "ratio", "ratio"), Column("time_ns", "time", "ns"),
    ),
    (Row(("forward", 38_654_705_664, 2.7e13, 1_509_949_440, 1.06e12, 51.2, 1_430)), Row(("other", *[None] * 6))),
)  # fmt: skip
DOCUMENT = Document(
    "r_1.sqlite · NVIDIA H200 · 100% of {it}", (TIMES, RATES), ("All GPU work: 1 ms = 1 ms (100.0%) #own.",),
    (HOSTILE[2], "CUDA graphs_hide"),
)  # fmt: skip


@pytest.mark.parametrize("format_", FILES)
def test_a_format_writes_what_its_golden_file_holds(format_):
    expected = (GOLDEN / FILES[format_]).read_bytes().decode()
    assert presenter(format_).present(DOCUMENT) == expected


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_table_fits_the_screen_and_cannot_drive_it(width):
    shown = as_table.present(DOCUMENT, width=max(width, 60))
    assert max(map(cells, shown.splitlines())) <= max(width, 60)
    assert not {"\x1b", "\u202e", "\t"} & set(shown)


@pytest.mark.parametrize(("width", "shares"), [(40, ["61.9", "-2.5"]), (24, ["62", "-2"])])
def test_percentages_lose_their_decimals_where_a_table_would_be_too_wide(width, shares):
    columns = (Column("what", "category"), *(Column(f"{n}", "%", "share") for n in range(2)))
    table = Table("t", "shares", columns, (Row(("a category's name", 0.619, -0.0249)),))
    last = as_table.present(Document("heading", (table,)), width=width).splitlines()[-1]
    assert last.split()[-2:] == shares
    assert len(last) <= width


@pytest.mark.parametrize("format_", [name for name in PRESENTERS if name not in FOR_MACHINES])
def test_no_heading_can_drive_the_screen(format_):
    table = Table("t", "title", (Column("name", "\x1b[31mred", "name"),), (Row(("a",)),))
    shown = presenter(format_).present(Document("heading", (table,)))
    assert "31mred" in shown
    assert "\x1b" not in shown


def test_colour_is_only_for_terminals():
    assert "\x1b[" in as_table.present(DOCUMENT, color=True)
    assert "\x1b[31m" not in as_table.present(DOCUMENT, color=True)


def test_parquet_read_by_pandas_equals_the_json(tmp_path):
    (tmp_path / "t.parquet").write_bytes(as_parquet.present(DOCUMENT))
    frame = pd.read_parquet(tmp_path / "t.parquet")
    frame = frame.astype(object).where(frame.notna(), None)
    for expected in json.loads(presenter("json").present(DOCUMENT))["tables"]:
        keys = [column["key"] for column in expected["columns"]]
        assert frame[frame["table"] == expected["key"]][keys].to_dict("records") == expected["rows"]
    assert pq.read_schema(tmp_path / "t.parquet").metadata[b"heading"].decode() == DOCUMENT.heading


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_a_table_of_one_phase_says_so_in_each_row(format_, tmp_path):
    columns = (Column("ms", "ms"), Column("shown", "shown", seen_by="people"))
    tables = tuple(Table(name, "", columns, (Row((1, "one")),), phase=name) for name in ("forward", "backward"))
    write(presenter(format_).present(Document("", tables)), tmp_path / "file")
    found = getattr(pd, f"read_{format_}")(tmp_path / "file")
    assert found.to_dict("split")["columns"] == ["table", "phase", "ms"]
    assert found.to_dict("split")["data"] == [["forward", "forward", 1], ["backward", "backward", 1]]


@pytest.mark.parametrize("ending", SUFFIXES)
def test_a_files_ending_chooses_the_format_unless_another_is_asked_for(ending):
    assert format_of(None, Path(f"answer{ending}")) == SUFFIXES[ending]
    assert format_of("latex", Path(f"answer{ending}")) == "latex"
    assert format_of(None, Path("answer")) == format_of(None, None) == "table"
    with pytest.raises(UsageError, match=r"No answer is written as \.xlsx: use one of \.txt, \.md"):
        format_of(None, Path("answer.xlsx"))
    with pytest.raises(UsageError, match="Parquet is binary: use -o FILE"):
        format_of("parquet", None)


@pytest.mark.parametrize("text", HOSTILE)
def test_latex_is_left_no_character_that_means_something(text):
    written = as_latex.safe(text)
    for command in as_latex.ESCAPED.values():
        written = written.replace(command, "")
    assert not set("\\{}&%$#_~^<>|") & set(written.replace("-{}-", "")) - set("{}")
    assert "--" not in written


LINKING = (
    "![pixel](https://x.example/p.png)", "[click](https://x.example)", "[ref][1]", "[1]: https://x.example",
    "<https://x.example>", "<a href=x>", "<img src=x>", "a|b", "~~x~~", "`x`", "*x*", "__x__", "&lt;b&gt;",
)  # fmt: skip


@pytest.mark.parametrize("name", LINKING)
def test_markdown_shows_a_name_as_it_is_and_makes_nothing_of_it(name):
    table = Table("t", "title", (Column("name", "name", "name"),), (Row((name,)),))
    tokens = (
        MarkdownIt("commonmark")
        .enable(["table", "strikethrough"])
        .parse(presenter("markdown").present(Document(name, (table,), (name,), (name,))))
    )
    inline = [token for token in tokens if token.type == "inline"]
    kinds = {child.type for token in inline for child in token.children}
    assert kinds <= {"text", "strong_open", "strong_close"}
    shown = ["".join(child.content for child in token.children).replace("\u200b", "") for token in inline]
    assert [text for text in shown if text not in ("title", "name")] == [name, name, name, f"Note: {name}"]


UNASKED = re.compile(r"(?i)://|\bwww\.|@\w|mailto:\w|#\d")


@pytest.mark.parametrize(
    "name", ["https://x.example", "ftp://x", "www.x.example", "a@x.example", "@team", "see #12"]
)
def test_markdown_leaves_viewers_nothing_to_link_unasked(name):
    assert UNASKED.search(name)
    assert not UNASKED.search(presenter("markdown").present(Document(name, ())).replace("&#8203;", "\u200b"))


FORMULAS = ("=1+1", " =1+1", "\u3000=1", "\uff1d1+1", " \uff0b1", "\u200b@SUM(1)", "\t=1", "\n-1", "\ufeff=1")
OTHERS = ("a = b", "layer -1", "\u3000x", "", " ")


@pytest.mark.parametrize("cell", FORMULAS + OTHERS, ids=ascii)
def test_no_cell_is_taken_for_a_formula_and_others_stay_as_they_are(cell):
    table = replace(TIMES, rows=(Row((cell, "other", 1, 0.05, 1)),))
    (row,) = csv.DictReader(io.StringIO(presenter("csv").present(replace(DOCUMENT, tables=(table,))), newline=""))
    assert row["name"] == ("'" + cell if cell in FORMULAS else cell)


def test_only_programs_read_nothing_where_a_name_is_empty():
    columns = (Column("range", "range", "name"), Column("ns", "time", "ns"))
    table = Table("ranges", "Ranges", columns, (Row(("", 3)),))
    assert by_key(table) == [{"range": "", "ns": 3}]
    assert records(table) == [{"range": None, "ns": 3}]


class Terminal(io.StringIO):
    """A terminal that keeps what it was sent."""

    def isatty(self):
        return True


@pytest.mark.parametrize("format_", ["csv", "json", "markdown", "latex", "html"])
def test_no_format_sends_a_terminal_what_controls_it(format_, monkeypatch):
    monkeypatch.setattr("sys.stdout", Terminal())
    write(presented(DOCUMENT, format_, None), None)
    text = sys.stdout.getvalue()
    assert text.replace("\n", "").isprintable()
    assert "red" in text
    if format_ == "json":
        assert json.loads(text)["tables"][0]["rows"][4]["name"] == HOSTILE[3]


PRINTING = {
    "rank": ("rank", REPORT), "view": ("view", "idle", REPORT), "doctor": ("doctor", REPORT),
    "scrub": ("scrub", "--check", REPORT), "compare": ("compare", REPORT, REPORT), "skill": ("skill",),
    "help": ("rank", "--help"), "version": ("--version",), "completion": ("--print-completion", "bash"),
    "doctor of this machine": ("doctor", "--quick"),
    "nsys": ("nsys", "--print-command", "--sizes", "tiny", "--device", "cpu"),
    "run": ("run", "--size", "tiny", "--device", "cpu", "--steps", "1", "--warmup", "0"),
}  # fmt: skip


PRINTED = [
    pytest.param(words, id=name, marks=[pytest.mark.slow] * (name == "run")) for name, words in PRINTING.items()
]


@pytest.mark.parametrize("words", PRINTED)
def test_a_full_disk_behind_standard_output_is_a_sentence(words):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "nvtx_kernels", *map(str, words)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, len(errors)) == (2, 1), done.stderr
    assert "No space left on device" in errors[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", PRINTED)
def test_a_reader_that_has_read_enough_ends_a_command_in_silence(words):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "nvtx_kernels", *map(str, words)]
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


@pytest.mark.parametrize("command", ["timeline", "page", "rank"])
def test_standard_output_is_a_target_also_where_it_is_a_pipe(command):
    words = [sys.executable, "-m", "nvtx_kernels", command, str(REPORT), "-o", "/dev/stdout"]
    done = subprocess.run(words, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 1000


@pytest.mark.parametrize("name", ["a\rb", "a\r\nb", "a\nb", 'a"\rb', "\r=1+1"])
def test_csv_keeps_what_may_end_a_line_inside_its_cell(name):
    document = Document(
        "", (Table("t", "", (Column("name", "name"), Column("n", "n")), (Row((name, 1)), Row(("c", 2)))),)
    )
    text = as_csv.present(document)
    rows = [*csv.reader(io.StringIO(text, newline=""))]
    assert [row[1].removeprefix("'") for row in rows] == ["name", name, "c"]
    assert text.endswith("c,2\n")
