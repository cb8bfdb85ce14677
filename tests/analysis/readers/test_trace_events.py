"""Chrome traces in blocks: every event once, whichever way the file is cut, and nothing of a damaged one."""

import gzip
import json
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.readers.chrome_events import TraceFile, nanoseconds

from nvtx_kernels import analysis
from tests.analysis.making.kineto import Call, Program, Work, write_kineto

# Names full of what JSON is made of.
TEXTS = st.text(st.sampled_from('[]{}",\\:a\u00e9\n '), max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers(-9, 9), lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXTS, v, max_size=2)
)
EVENTS = st.lists(
    st.fixed_dictionaries({"name": TEXTS, "args": st.dictionaries(TEXTS, VALUES, max_size=3)}), max_size=9
)
AROUND = st.dictionaries(TEXTS.filter(lambda key: key != "traceEvents"), VALUES, max_size=3)
LAYOUT = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


@given(EVENTS, AROUND, AROUND, LAYOUT, st.integers(1, 200))
def test_every_event_comes_once_and_in_order(tmp_path_factory, events, before, after, layout, block_bytes):
    path = tmp_path_factory.getbasetemp() / "cut.json"
    path.write_text(json.dumps({**before, "traceEvents": events, **after}, **layout))
    blocks = list(TraceFile(path, block_bytes=block_bytes).blocks())
    assert [event.name for block in blocks for event in block] == [event["name"] for event in events]


def test_what_stands_around_the_events_is_known_after_them(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [{}], "distributedInfo": {"rank": 2}}))
    file = TraceFile(path, block_bytes=5)
    assert len(list(file.blocks())) == 1
    assert (file.envelope.schema, file.envelope.distributed) == (1, {"rank": 2})


PROGRAM = Program(
    calls=[Call(n, n * 100, n * 100 + 50) for n in range(40)], work=[Work(n, n * 100, n * 101) for n in range(40)]
)


def refusals(path, contents):
    """Return what is said of each content; none is taken for a report."""
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(NotAReport) as refusal:
            analysis.read(path)
        yield str(refusal.value).removeprefix(str(path))


@pytest.mark.parametrize("pack", [bytes, lambda raw: gzip.compress(raw, mtime=0)], ids=["plain", "gzipped"])
def test_trace_that_breaks_off_anywhere_is_refused(tmp_path, pack):
    whole = pack(write_kineto(tmp_path / "whole.json", PROGRAM).read_bytes().strip())
    cuts = (whole[:length] for length in range(40, len(whole), max(1, len(whole) // 97)))
    said = set(refusals(tmp_path / "cut.json", cuts))
    assert said <= {
        " is truncated: its recording or copy did not finish. Copy or record it again.",
        " is not a trace of PyTorch's profiler: it has no traceEvents. "
        "Of nsys's exports, the SQLite one is read: nsys export --type sqlite",
    }


DAMAGES = {
    "a bracket lost": (b"},", b","),
    "a quote lost": (b'"cat"', b'"cat'),
    "text between": (b'"ph": "X"', b'"ph" "X"'),
    "two traces": (b'"traceName"', b'}{"traceName"'),
}


@pytest.mark.parametrize(("sound", "damaged"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_json_is_refused(tmp_path, sound, damaged):
    whole = write_kineto(tmp_path / "whole.json", PROGRAM).read_bytes()
    middle = whole.index(sound, len(whole) // 2)
    (said,) = refusals(tmp_path / "a.json", [whole[:middle] + whole[middle:].replace(sound, damaged, 1)])
    assert " is damaged: " in said or " is truncated: " in said


def test_damaged_gzip_is_refused(tmp_path):
    packed = bytearray(gzip.compress(write_kineto(tmp_path / "whole.json", PROGRAM).read_bytes(), mtime=0))
    packed[len(packed) // 2] ^= 0xFF
    (said,) = refusals(tmp_path / "a.json.gz", [bytes(packed)])
    assert " is damaged: " in said


@given(st.lists(st.tuples(st.integers(0, 2**61), st.sampled_from(["{}", '"{}"'])), min_size=1, max_size=5))
def test_nanoseconds_are_exact(times):
    written = [quotes.format(f"{ns // 1000}.{ns % 1000:03}").encode() for ns, quotes in times]
    assert nanoseconds([msgspec.Raw(text) for text in written]).tolist() == [ns for ns, _ in times]


@given(st.lists(st.floats(-1e15, 1e15) | st.integers(-(10**15), 10**15), min_size=1, max_size=5))
def test_finer_fractions_are_rounded_and_exponents_understood(times):
    written = [json.dumps(time) for time in times]
    exact = [int((Decimal(text) * 1000).to_integral_value()) for text in written]
    assert nanoseconds([msgspec.Raw(text.encode()) for text in written]).tolist() == exact


@pytest.mark.parametrize("text", ["", "null", "[1]", "1e999999999", "NaN", "-1e300", str(2**62)])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match="time"):
        nanoseconds([msgspec.Raw(text.encode())])
