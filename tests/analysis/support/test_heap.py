"""What a process does with the memory of freed arrays, seen from outside: glibc's pools are a process's own."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these pools")

# Prints how many pages a second array of 100 MiB got anew from the system, after a first was freed.
AGAIN = """
import resource, sys
import numpy as np
from nvtx_kernels.analysis.support import heap
if sys.argv[1] == "keep":
    heap.keep()
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(100 << 17)
before = pages()
np.ones(100 << 17)
print(pages() - before)
"""

# Prints the MiB that stay resident after many small arrays were freed behind one that was not.
LEFT = """
import sys
import numpy as np
from nvtx_kernels.analysis.support import heap
def resident():
    return int(open("/proc/self/statm").read().split()[1]) >> 8
parts = [np.ones(1 << 13) for _ in range(3000)]
before, last = resident(), np.ones(1 << 13)
parts.clear()
heap.give_back(int(sys.argv[1]))
print(before - resident())
"""


def printed(program: str, argument: str) -> int:
    """Run a program in a process of its own; return the number that it prints."""
    done = subprocess.run([sys.executable, "-c", program, argument], check=True, capture_output=True, text=True)
    return int(done.stdout)


def test_a_command_uses_freed_memory_again_whatever_its_size():
    assert printed(AGAIN, "keep") < 5 <= printed(AGAIN, "default")


def test_a_library_gives_back_what_long_tables_left():
    assert printed(LEFT, str(1 << 22)) > 150
    assert printed(LEFT, "1000") < 50
