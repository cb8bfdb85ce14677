"""Functions that other processes import to rank a report, and ones that are lost over it."""

import os
import signal

from nvtx_kernels.analysis import rank, read
from nvtx_kernels.analysis.errors import NotAReport


def summary(path):
    return rank(read(path)).report


def summary_or_death(path):
    if "deadly" in path.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return summary(path)


def refusal(path):
    raise NotAReport(f"{path.name} is no report.")
