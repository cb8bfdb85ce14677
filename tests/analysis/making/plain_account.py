"""What each GPU does in each step, moment by moment: the slow reference of the account's cells."""

import heapq
from collections import Counter, defaultdict
from itertools import pairwise

from nvtx_kernels.analysis.account.sums import kinds_of, names_of
from nvtx_kernels.analysis.trace import MEMCPY, MEMSET
from nvtx_kernels.analysis.vocabulary import PHASES

from tests.analysis.making.plain_sums import rows_of

COPIES = {
    "Host-to-Device": "to GPU",
    "Device-to-Host": "to host",
    "Device-to-Device": "on GPU",
    "Peer-to-Peer": "between GPUs",
}
IDLE = (3, "idle", "", "")


def state_of(row):
    """Return what a piece of work is, the first of those that run at once: tier, kind, detail and phase."""
    if row.kind == MEMSET:
        return 2, "copy", "memset", row.phase
    if row.kind == MEMCPY:
        direction = row.name.removeprefix("[CUDA memcpy ").rstrip("]")
        return 2, "copy", COPIES.get(direction, "of another kind"), row.phase
    if row.category == "communication":
        return 1, "communication", row.category, row.phase
    return 0, "compute", row.category, row.phase


def swept(pieces, work):
    """Return how long each step is in each state, ns, by a sweep over all edges.

    `pieces` are the (step, start, end) of steps' time, `work` the (start, end, state) of one GPU's work in the
    order in which it began.
    """
    edges = sorted({edge for _, *times in pieces for edge in times} | {edge for row in work for edge in row[:2]})
    steps, behind = dict.fromkeys(edges), dict.fromkeys(edges, 0)
    for step, start, end in pieces:
        steps[start], behind[start] = step, end
    cells, running, waiting, step, until = Counter(), [], 0, None, 0
    for now, later in pairwise(edges):
        while waiting < len(work) and work[waiting][0] <= now:
            _, end, state = work[waiting]
            heapq.heappush(running, (state[0], waiting, end, state))
            waiting += 1
        while running and running[0][2] <= now:
            heapq.heappop(running)
        if behind[now]:
            step, until = steps[now], behind[now]
        if now < until:
            cells[step, running[0][3] if running else IDLE] += later - now
    return cells


def expected_cells(partition):
    """Return the time of each (step, GPU, state) by sweeps, ns; of idle time only how long it is."""
    work = defaultdict(list)
    rows = rows_of(partition.attribution, include_warm_up=True)
    for row, gpu in zip(rows, partition.gpus.of_work.tolist(), strict=True):
        work[gpu].append((row.start, row.end, state_of(row)))
    cells = Counter()
    for number, loop in enumerate(partition.steps.loops):
        times = loop.pieces.in_steps()
        pieces = zip(times.row.tolist(), times.start_ns.tolist(), times.end_ns.tolist(), strict=True)
        pieces = [piece for piece in pieces if piece[1] < piece[2]]
        for gpu in partition.gpus_of(number):
            of_gpu = sorted((row for row in work[gpu] if row[0] < row[1]), key=lambda row: row[0])
            for (step, state), ns in swept(pieces, of_gpu).items():
                cells[step, gpu, *state[1:]] += ns
    return cells


def actual_cells(partition):
    """Return the same of the account's cells."""
    names, kinds, cells = names_of(partition), kinds_of(partition), Counter()
    columns = (getattr(partition.cells, name).tolist() for name in ("row", "gpu", "kind", "what", "phase", "ns"))
    for step, gpu, kind, what, phase, ns in zip(*columns, strict=True):
        detail = ("", "") if kinds[kind] == "idle" else (names[kind][what], PHASES[phase])
        cells[step, gpu, kinds[kind], *detail] += ns
    return cells
