"""docs/trust.md under test: its numbers are those of the tests and limits that stand for its promises."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from nvtx_kernels.analysis.agent.quoting import LONGEST_ANSWER
from nvtx_kernels.analysis.attribution.forest import MAX_DEPTHS_PER_RANGE
from nvtx_kernels.analysis.questions.timed import LARGEST_FILE, MOST_STEPS
from nvtx_kernels.analysis.readers.many_names import MOST_NAMES
from nvtx_kernels.analysis.readers.safety import LONGEST_NAME, MOST_TIMES

from tests.analysis.making import planted

PAGE = Path(__file__).parents[2].joinpath("docs", "trust.md").read_text()
#: A sentence of the page, with its number left open.
LIMITS = [
    ("none of {:,} secrets planted in names", planted.COUNT),
    ("may unpack to {} times its size", MOST_TIMES),
    ("at most {} MiB and", LARGEST_FILE >> 20),
    ("MiB and {:,} steps", MOST_STEPS),
    ("can have {:,} distinct names", MOST_NAMES),
    ("more than\n  {:,} characters", LONGEST_NAME),
    ("plus {} for each range", MAX_DEPTHS_PER_RANGE),
    ("has at most {:,} characters", LONGEST_ANSWER),
]


@pytest.mark.parametrize(("sentence", "number"), LIMITS, ids=[sentence for sentence, _ in LIMITS])
def test_a_number_is_that_of_the_limit_or_test(sentence, number):
    assert " ".join(sentence.format(number).split()) in " ".join(PAGE.split())


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_page_counts_the_programs_that_are_tried():
    from tests.profiling.making.small_programs import SMALL
    from tests.profiling.making.strangers import PROGRAMS

    assert f"gradients of {len(PROGRAMS)} programs are bit-identical" in PAGE
    assert f"{len(SMALL)} programs print, compute, raise, write" in PAGE
