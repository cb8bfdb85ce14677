"""What `view fix` says of five programs, against what each change saved on an H200."""

import json

import pytest
from nvtx_kernels.analysis.account import partition
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.fixes import fixes_of
from nvtx_kernels.analysis.readers import read

from tests.analysis.making.bundled import SHARED, unpacked

TRUTH = SHARED / "gains" / "truth.json"
MS = 1e6
#: By the program's name in the truth: its report, and which change measures what a rule suggests.
PROGRAMS = {
    "loader (record)": (
        "loader.sqlite.xz",
        {
            "host_pause": "sleep removed",
            "scalar_read": "no_item",
            "fp32": "tf32",
            "attention": "sdpa",
            "optimizer": "fused",
        },
    ),
    "small (record)": ("small.sqlite.xz", {"fp32": "tf32", "optimizer": "fused", "attention": "sdpa"}),
    "sync (nsys)": ("sync.nsys.sqlite.xz", {"fp32": "tf32", "scalar_read": "no reads in forward"}),
    "images (record)": ("images.record.sqlite.xz", {"pageable_copy": "pinned", "fp32": "tf32"}),
    "embed (record)": ("embed.record.sqlite.xz", {"optimizer": "fused", "fp32": "tf32"}),
}
needs_gains = pytest.mark.skipif(not TRUTH.exists(), reason="needs ../shared/gains")


def judged(name, folder):
    """Return the rows of a program's report that a measurement judges, what that saved, and the truth."""
    report, measured_by = PROGRAMS[name]
    truth = json.loads(TRUTH.read_text())[name]
    attribution = attribute(read(unpacked(f"gains/{report}", folder)))
    found = fixes_of(partition(attribution), unrecorded_step_ns=truth["step"] * MS)
    pairs = [(fix, truth[measured_by[fix.rule]] * MS) for fix in found.fixes if fix.rule in measured_by]
    return pairs, truth


@needs_gains
@pytest.mark.parametrize("name", PROGRAMS)
def test_ranges_hold_what_was_measured(name, tmp_path):
    pairs, truth = judged(name, tmp_path)
    noise_ns = truth["noise"] * MS
    for fix, saved_ns in pairs:
        assert saved_ns <= fix.alone_ns + noise_ns
        least_ns = fix.alone_low_ns * (0.5 if fix.up_to else 1)
        assert saved_ns >= least_ns - noise_ns


@needs_gains
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_five_percent_saved_less_than_one(name, tmp_path):
    pairs, truth = judged(name, tmp_path)
    step_ns = truth["step"] * MS
    assert all(saved_ns >= 0.01 * step_ns for fix, saved_ns in pairs if fix.alone_low_ns >= 0.05 * step_ns)


@needs_gains
@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("small")])
def test_the_first_is_among_the_largest(name, tmp_path):
    pairs, truth = judged(name, tmp_path)
    largest = max(truth[change] * MS for change in PROGRAMS[name][1].values())
    assert pairs[0][1] >= 0.7 * largest
