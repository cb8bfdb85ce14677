"""What generated tests draw: slices by a seed that CI varies and prints, the others the same each time.

Without PyTorch, files that import it are left out, and the header names them.

HYPOTHESIS_PROFILE=search draws other examples in every run, as CI on hosted runners does; a failure then prints
what repeats it.
"""

import gc
import os
import time
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

VARIABLE, USUAL = "NVTX_KERNELS_FUZZ_SEED", 7
#: Folders and files that import PyTorch, which reading reports does not need.
NEED_PYTORCH = [
    "profiling",
    "model",
    *(f"analysis/attribution/test_{name}.py" for name in ("links_of_pytorch", "phases_of_annotation")),
    *(f"analysis/readers/test_{name}.py" for name in ("pytorch_trace", "stacks")),
    *(f"analysis/scrub/test_scrub{name}.py" for name in ("", "_fields", "_gpu")),
    "architecture/test_own_model.py",
]
collect_ignore = [] if find_spec("torch") else NEED_PYTORCH

# Nothing depends on how fast the machine is.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=40
)
settings.register_profile("search", settings.get_profile("repeatable"), derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser):
    parser.addoption("--golden", action="store_true", help="write the golden screens anew, to be read in review")


def pytest_configure(config):
    # PyTorch's threads wait for each other in loops, which takes all of a core from the other workers' tests.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Inductor would compile ten programs to find out what the CPU can, in each folder of what it compiles: 15 s.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
    # Workers of pytest-xdist inherit it, for they must agree on what is tested.
    os.environ.setdefault(VARIABLE, str(int(time.time()) if os.environ.get("CI") else USUAL))


def pytest_collection_finish():
    # What is imported stays: each recording begins with a collection, which would look through all of it.
    gc.collect()
    gc.freeze()


def pytest_report_header():
    return f"left out without PyTorch: {', '.join(collect_ignore)}" if collect_ignore else None


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is not None:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("PyTorch sees no CUDA GPU here")


def slice_of(values, share):
    """Return every so many of what is tested, of which another run of CI tests others."""
    return values[int(os.environ[VARIABLE]) % share :: share]


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"drawn with {VARIABLE}={os.environ[VARIABLE]}")
