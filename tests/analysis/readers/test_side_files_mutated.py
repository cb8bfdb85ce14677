"""Files that are read beside a report, with changed bytes: read, or refused in one sentence."""

import json
import os
from random import Random

import pytest
from nvtx_kernels.analysis.errors import AnalysisError
from nvtx_kernels.analysis.readers import capture_traces, given_names, graph_stacks

from tests.analysis.making.kineto import STEP, events_of, trace_text
from tests.analysis.making.several import IN_CONTENT
from tests.conftest import VARIABLE

NAMES = {
    "model": "M",
    "modules": [{"path": "a", "class": "Linear", "name": "a", "below": ""}],
    "order": "definition",
}
FILES = {
    "capture": (trace_text(events_of(STEP)), capture_traces.captured_graphs),
    "stacks": (json.dumps({"12": "a.py:3:f\nb.py:4:g"}), graph_stacks._paths_in),
    "names": (json.dumps(NAMES), given_names.read_names),
}  # fmt: skip
CHANGES = [change for name, change in IN_CONTENT.items() if name != "gzipped"]
CASES = 300


@pytest.mark.parametrize("what", FILES)
def test_a_file_with_changed_bytes_is_read_or_refused(tmp_path, what):
    text, read = FILES[what]
    random, path, answered = Random(int(os.environ[VARIABLE])), tmp_path / "file", 0
    for _ in range(CASES):
        content = bytearray(text.encode())
        for change in random.choices(CHANGES, k=random.choice((1, 1, 2, 8))):
            change(content, random)
        path.write_bytes(content)
        try:
            read(path)
            answered += 1
        except AnalysisError as error:
            assert "\n" not in str(error), content  # noqa: PT017
    assert answered


def test_a_graphs_node_of_thousands_of_digits_is_passed_over(tmp_path):
    path = tmp_path / "stacks.json"
    path.write_text(json.dumps({"9" * 5000: "a.py:3:f", "12": "b.py:4:g"}))
    assert [*graph_stacks._paths_in(path)] == [12]
