"""200 secret words, one in each place of a PyTorch trace that holds free text: none is in its copy."""

import gzip
import json
from itertools import count

from tests.analysis.making.copies import scrubbed
from tests.analysis.making.fragments import REPORTS, of_report

PLACES = 200
#: What decides how an event is read; a word there makes it another event.
READ = ("ph", "cat")


def planted(value, number):
    """Return JSON with a word of its own at the end of each text, as long as there are words."""
    if isinstance(value, dict):
        return {key: part if key in READ else planted(part, number) for key, part in value.items()}
    if isinstance(value, list):
        return [planted(part, number) for part in value]
    if isinstance(value, str) and (at := next(number)) < PLACES:
        return f"{value} zqsecret{chr(97 + at // 26)}{chr(97 + at % 26)}x"
    return value


def test_no_word_planted_anywhere_in_a_trace_is_in_its_copy(tmp_path):
    report = next(path for path in REPORTS if "emit_nvtx" in path.name)
    trace, number = json.loads(of_report(report)[-1]), count()
    trace = planted(trace, number)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    assert next(number) >= PLACES
    copy = scrubbed(path).read_bytes()
    assert b"zqsecret" not in copy + gzip.decompress(copy)
