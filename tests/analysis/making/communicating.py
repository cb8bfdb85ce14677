"""A report in which something communicates, for tests that ask every view; made once a process."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.analysis.making.building import Launch, Range, Work, build, process_of, thread

NAME = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@cache
def communicating(ranks=1):
    """Return a report of two steps of each rank, each with a kernel that communicates."""
    rows = {"ranges": [], "launches": [], "work": []}
    for rank, start in ((rank, start) for rank in range(ranks) for start in (0, 100)):
        main, number = thread(100 + rank), len(rows["launches"])
        rows["ranges"] += [Range("step", start, start + 90, main), Range("forward", start + 1, start + 50, main)]
        rows["launches"].append(Launch(number, start + 2, start + 3, main))
        rows["work"].append(Work(number, start + 10, start + 30, NAME, process=process_of(main), device=rank))
    return build(Path(mkdtemp()), **rows)
