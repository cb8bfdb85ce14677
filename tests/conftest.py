"""The seed of the fuzzed slice: the same on every machine of ours, another in every run of CI, and printed."""

import os
import time

VARIABLE, USUAL = "NVTX_KERNELS_FUZZ_SEED", 7


def pytest_configure(config):
    # Workers of pytest-xdist inherit it, for they must agree on what is tested.
    os.environ.setdefault(VARIABLE, str(int(time.time()) if os.environ.get("CI") else USUAL))


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"fuzzed with {VARIABLE}={os.environ[VARIABLE]}")
