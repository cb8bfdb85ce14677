"""A report in which something communicates, for tests that ask every view; made once a process."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.analysis.making.building import Launch, Range, Work, build, process_of, thread

NAME = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@cache
def communicating(ranks=1):
    """Return a report of two steps of each rank, each with a kernel that communicates and a copy."""
    rows = {"ranges": [], "launches": [], "work": []}
    for rank, start in ((rank, start) for rank in range(ranks) for start in (0, 100)):
        main, number = thread(100 + rank), len(rows["launches"])
        rows["ranges"] += [Range("step", start, start + 90, main), Range("forward", start + 1, start + 50, main)]
        place = {"process": process_of(main), "device": rank}
        rows["launches"] += [Launch(number + n, start + 2 + n, start + 3 + n, main) for n in (0, 1)]
        rows["work"].append(Work(number, start + 10, start + 30, NAME, **place))
        rows["work"].append(Work(number + 1, start + 20, start + 35, 1, "memcpy", **place))
    return build(Path(mkdtemp()), **rows)
