import io
import json

import pandas as pd
import pytest
from nvtx_kernels.analysis.presenters import as_table, presenter
from nvtx_kernels.profiling.show import notes
from nvtx_kernels.profiling.show.frames import frame
from nvtx_kernels.profiling.show.studies import TABLES

from tests.profiling.making.measured_rows import failed, no_memory, row

ROWS = [row(measured=(20, 22)), no_memory(size="large")]
LINES = frame(ROWS)


def document(*names, rows=ROWS):
    lines = frame(rows)
    return notes.document(rows, lines, [TABLES[name](lines) for name in names])


MARKDOWN = """\
### Peak memory of tensors per phase, of one step (n = 1) after the measured ones

| size   |   forward GiB |   backward GiB |   step GiB | result                             |
|:-------|--------------:|---------------:|-----------:|:-----------------------------------|
| small  |             3 |              4 |          4 | ok                                 |
| large  |             – |              – |          – | OOM in backward, asked for 1.5 GiB |
"""


def test_tables_of_results_are_drawn_by_the_presenters_of_reports():
    assert MARKDOWN in presenter("markdown").present(document("memory"))


def test_screen_breaks_headers_and_leaves_numbers_whole():
    text = as_table.present(document("summary"), width=80)
    small = next(line for line in text.splitlines() if line.startswith("small"))
    assert "42.000 ± 2.828 3.000 ± 0.000 67.000 ± 4.243" in small
    assert text.splitlines()[0].startswith("device NVIDIA H200")
    assert "OOM in backward," in text
    assert "asked for 1.5 GiB" in text


@pytest.mark.parametrize("width", [20, 80, 200])
def test_no_number_is_cut_however_narrow_the_screen(width):
    text = as_table.present(document("times"), width=width)
    assert "…" not in text
    backward = next(line for line in text.splitlines() if " backward " in line and "42.000" in line)
    assert backward.split()[:6] == ["small", "backward", "2", "42.000", "2.828", "6.73"]


def test_csv_and_json_hold_the_same_numbers():
    both = document("times", "summary")
    read = pd.read_csv(io.StringIO(presenter("csv").present(both)))
    for table in json.loads(presenter("json").present(both))["tables"]:
        told = pd.DataFrame(table["rows"])
        same = read[read["table"] == table["key"]][list(told.columns)].reset_index(drop=True)
        numbers = list(told.select_dtypes("number").columns)
        pd.testing.assert_frame_equal(same[numbers], told[numbers], check_dtype=False, rtol=1e-9)
        assert told["requested_bytes"].max() == 3 << 29


HOSTILE = 'no room\n\\input{/etc/passwd}\n#read("/etc/passwd")\n1 ± 2 ~ ^ | `x`'


@pytest.mark.parametrize("name", ["latex", "typst", "markdown", "html"])
def test_a_failure_of_several_lines_is_no_live_markup(name):
    rows = [row(), {**failed(size="xl"), "message": HOSTILE}]
    lines = presenter(name).present(document("times", rows=rows)).splitlines()
    [said] = [line for line in lines if "no room" in line]
    assert "/etc/passwd" in said
    assert not any(line.lstrip("% /").startswith(("\\input", "#read(", "1 ")) for line in lines)
    assert "\\input{" not in said if name == "latex" else '#read("' not in said or name != "typst"
