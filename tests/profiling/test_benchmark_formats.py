import io
import json

import pandas as pd
import pytest

from profiling import table_formats
from profiling.study_frames import frame
from profiling.study_tables import TABLES
from tests.profiling.measured_rows import no_memory, row

ABOUT = ["100% of_it"]
LINES = frame([row(measured=(20, 22)), no_memory(size="large")])
SUMMARY = TABLES["summary"](LINES)
MEMORY = TABLES["memory"](LINES)
GOLDEN = {
    "markdown": """\
- 100% of_it

**Peak memory of tensors per phase, of one step (n = 1) after the measured ones**

|   size |   forward GiB |   backward GiB |   step GiB |                             result |
|-------:|--------------:|---------------:|-----------:|-----------------------------------:|
|  small |             3 |              4 |          4 |                                 ok |
|  large |             - |              - |          - | OOM in backward, asked for 1.5 GiB |
""",
    "latex": r"""% 100% of_it
\begin{table}
\caption{Peak memory of tensors per phase, of one step (n = 1) after the measured ones}
\begin{tabular}{rrrrr}
\toprule
size & forward GiB & backward GiB & step GiB & result \\
\midrule
small & 3 & 4 & 4 & ok \\
large & - & - & - & OOM in backward, asked for 1.5 GiB \\
\bottomrule
\end{tabular}
\end{table}
""",
    "typst": r"""// 100% of_it
#figure(
table(
  columns: 5,
  [size], [forward GiB], [backward GiB], [step GiB], [result],

  [small], [3], [4], [4], [ok],
  [large], [\-], [\-], [\-], [OOM in backward, asked for 1.5 GiB],
),
  caption: [Peak memory of tensors per phase, of one step (n = 1) after the measured ones],
)
""",
}


HAS_TYPST = hasattr(pd.DataFrame().style, "to_typst")
TYPST = pytest.param("typst", marks=pytest.mark.skipif(not HAS_TYPST, reason="pandas 3 writes Typst"))


@pytest.mark.parametrize("name", ["markdown", "latex", TYPST])
def test_format_is_as_it_is_kept(name):
    assert table_formats.FORMATS[name]([MEMORY], ABOUT) == GOLDEN[name]


def test_screen_breaks_headers_and_leaves_numbers_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = table_formats.as_screen([SUMMARY], ABOUT)
    small = next(line for line in text.splitlines() if "small" in line)
    assert "42.000 ± 2.828  3.000 ± 0.000  67.000 ± 4.243" in small
    assert text.splitlines()[0] == "100% of_it"
    assert "OOM in backward," in text
    assert "asked for 1.5 GiB" in text


@pytest.mark.parametrize("width", [20, 80, 200])
def test_no_number_is_cut_however_narrow_the_screen(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = table_formats.as_screen([TABLES["times"](LINES)], ABOUT)
    assert "…" not in text
    backward = next(line for line in text.splitlines() if " backward " in line and "42.000" in line)
    assert backward.split()[:6] == ["small", "backward", "2", "42.000", "2.828", "6.73"]


def test_csv_and_json_hold_the_same_numbers():
    read = pd.read_csv(io.StringIO(table_formats.as_csv([TABLES["times"](LINES)], ABOUT)))
    [table] = json.loads(table_formats.as_json([TABLES["times"](LINES)], ABOUT))["tables"]
    told = pd.DataFrame(table["lines"])
    assert list(read.columns) == list(told.columns)
    numbers = ["n", "mean_ms", "std_ms", "cv_percent", "first_ms", "tflops", "mfu_percent", "requested_bytes"]
    pd.testing.assert_frame_equal(read[numbers], told[numbers], check_dtype=False, check_exact=False, rtol=1e-9)
    assert told["requested_bytes"].max() == 3 << 29


def test_csv_refuses_two_tables():
    with pytest.raises(table_formats.FormatError, match="one table"):
        table_formats.as_csv([SUMMARY, SUMMARY], ABOUT)


@pytest.mark.parametrize(("text", "escaped"), [("a_b & 5%", r"a\_b \& 5\%"), ("1 ± 2", r"1 $\pm$ 2")])
def test_latex_gets_its_own_characters_escaped(text, escaped):
    assert table_formats._latex_text(text) == escaped
