"""Named steps hidden: what the programs do tells the same ones, in every report that there is."""

import lzma
import shutil

import pytest
from nvtx_kernels.analysis.report.evidence import FOUND, REPETITION

from benchmarks.steps_by_evidence import EXACT, REFUSED, RIGHT, WRONG, Steps, cases, np, verdict
from tests.analysis.making.bundled import SHARED, needs_shared
from tests.analysis.making.plain_sql import OURS

#: Reports whose steps repetition alone finds.
SOME = (
    "gains/loader",
    "gains/small",
    "idle/gc",
    "idle/launch",
    "h200/fsdp2_llama",
    "h200/pipeline_1f1b",
    "ranks/fp32_grads.rank0",
)


def unpacked(folder, name):
    """Put a packed report of ../shared into a folder."""
    path = folder / f"{name.replace('/', '_')}.sqlite"
    with lzma.open(SHARED / f"{name}.sqlite.xz") as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return path


def test_both_steps_of_an_h200_are_found_at_the_very_kernel():
    for kinds in (FOUND, [REPETITION]):
        assert [result for _, result, _ in cases(OURS, kinds, launches=True)] == [EXACT]


@needs_shared
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("launches", [True, False])
def test_repetition_finds_the_steps_that_a_report_names(tmp_path, name, launches):
    results = [result for _, result, _ in cases(unpacked(tmp_path, name), [REPETITION], launches=launches)]
    assert results
    assert {*results} <= {EXACT, RIGHT}


@needs_shared
@pytest.mark.slow
def test_no_evidence_gives_wrong_steps(tmp_path):
    packed = [
        path for folder in ("gains", "idle", "ranks", "h200") for path in sorted((SHARED / folder).glob("*.xz"))
    ]
    for path in packed:
        name = f"{path.parent.name}/{path.name.removesuffix('.sqlite.xz')}"
        results = {result for _, result, _ in cases(unpacked(tmp_path, name), FOUND, launches=True)}
        assert results <= {EXACT, RIGHT, REFUSED}, name


@pytest.mark.parametrize(
    ("begins", "result"),
    [([0, 10, 20, 30, 40], EXACT), ([5, 15, 25, 35], RIGHT), ([0, 20, 40], WRONG), (None, REFUSED)],
)
def test_verdicts_count_steps_and_compare_their_times(begins, result):
    named = Steps(np.arange(0, 50, 10), np.arange(10, 60, 10))
    found = Steps(np.array(begins), np.array(begins) + 10) if begins else None
    assert verdict(named, found) == result
