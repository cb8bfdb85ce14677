"""Every format against a file that was looked at; to make a new one, print `presenter(name).present(DOCUMENT)`."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.errors import UsageError
from analysis.kernel_names import cells
from analysis.presenters import PRESENTERS, as_latex, as_parquet, as_table, as_typst, presenter
from analysis.tables import Column, Document, Row, Table

GOLDEN = Path(__file__).parent / "golden"
FILES = {
    "table": "table.txt", "markdown": "markdown.md", "latex": "latex.tex", "typst": "typst.typ", "csv": "csv.csv",
    "json": "json.json",
}  # fmt: skip
HOSTILE = (
    r"void k<a|b>::operator()(float const*, \input{/etc/passwd}, $x_1^2$, 50% & #2 ~ {y}) [clone]",
    '=HYPERLINK("http://x.example/","y")',
    "#read(\"/etc/passwd\") *bold* _emph_ `raw` <label> @ref \\u{1f600}",
    "\x1b[31mred\x1b[0m \u202ereversed\u202c new\nline \ttab",
    "注意力 → softmax µ² ≥ 1 … -- --- ''quoted''",
)  # fmt: skip
COLUMNS = (
    Column("name", "range and kernel", "name"), Column("category", "category"), Column("total_ns", "total", "ns"),
    Column("share", "%", "share"), Column("count", "launches", "count"),
)  # fmt: skip
TIMES = Table(
    "times",
    "Kernel time, {unit} over 2 steps",
    COLUMNS,
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


@pytest.mark.parametrize("format_", PRESENTERS)
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


@pytest.mark.parametrize("format_", [name for name in PRESENTERS if name not in ("csv", "json")])
def test_no_heading_can_drive_the_screen(format_):
    table = Table("t", "title", (Column("name", "\x1b[31mred", "name"),), (Row(("a",)),))
    shown = presenter(format_).present(Document("heading", (table,)))
    assert "31mred" in shown
    assert "\x1b" not in shown


def test_colour_is_only_for_terminals():
    assert "\x1b[" in as_table.present(DOCUMENT, color=True)
    assert "\x1b[31m" not in as_table.present(DOCUMENT, color=True)


def test_csv_gives_every_value_back_and_no_spreadsheet_takes_a_name_for_a_formula():
    times, _ = presenter("csv").present(DOCUMENT).split("\n\nphase,")
    rows = list(csv.DictReader(io.StringIO(times)))
    assert [row["total_ns"] for row in rows][:3] == ["12345678", "0", "1000000"]
    assert [row["name"] for row in rows][1] == HOSTILE[0]
    assert [row["name"] for row in rows][2] == "'" + HOSTILE[1]


def test_json_holds_raw_values_and_null_for_what_is_absent():
    times, rates = json.loads(presenter("json").present(DOCUMENT))["tables"]
    assert [row["name"] for row in times["rows"][1:6]] == list(HOSTILE)
    assert times["rows"][-1] == {
        "name": "launches",
        "category": None,
        "total_ns": 1330,
        "share": None,
        "count": 2.5,
    }
    assert set(rates["rows"][1].values()) == {"other", None}


@pytest.mark.parametrize("table", [TIMES, RATES], ids=["times", "rates"])
def test_parquet_read_by_pandas_equals_the_json(table, tmp_path):
    document = replace(DOCUMENT, tables=(table,))
    (tmp_path / "t.parquet").write_bytes(as_parquet.present(document))
    frame = pd.read_parquet(tmp_path / "t.parquet")
    (expected,) = json.loads(presenter("json").present(document))["tables"]
    assert frame.astype(object).where(frame.notna(), None).to_dict("records") == expected["rows"]
    assert pq.read_schema(tmp_path / "t.parquet").metadata[b"heading"].decode() == DOCUMENT.heading


def test_parquet_holds_one_table_or_none():
    with pytest.raises(UsageError, match="2: times, rates"):
        as_parquet.present(DOCUMENT)


@pytest.mark.parametrize("text", HOSTILE)
def test_latex_is_left_no_character_that_means_something(text):
    written = as_latex.safe(text)
    for command in as_latex.ESCAPED.values():
        written = written.replace(command, "")
    assert not set("\\{}&%$#_~^<>|") & set(written.replace("-{}-", "")) - set("{}")
    assert "--" not in written


def test_typst_takes_every_text_for_a_string():
    typst = pytest.importorskip("typst", reason="the typst package compiles what we write")
    assert typst.compile(as_typst.present(DOCUMENT).encode(), format="svg", output=None)
