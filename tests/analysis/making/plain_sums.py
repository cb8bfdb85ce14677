"""Sums over attributed rows in plain Python: the slow reference of ranges, launches and memory."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from nvtx_kernels.analysis.attribution.steps import step_of_nodes
from nvtx_kernels.analysis.kernel_names.categories import categorize
from nvtx_kernels.analysis.trace import KERNEL, KINDS
from nvtx_kernels.analysis.vocabulary import PHASES

#: How the parts of attention are called.
PARTS = {
    "attention scores": "scores", "computing attention scores": "scores", "scale": "scale", "scaling": "scale",
    "mask": "mask", "masking": "mask", "causal mask": "mask", "causal masking": "mask", "softmax": "softmax",
    "computing softmax": "softmax", "final matmul": "final matmul", "computing final matmul": "final matmul",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One piece of work; `around` are the (path, phase) of its ranges, `place` the ranges themselves."""

    start: int
    end: int
    kind: int
    name: str
    category: str
    blocks: int
    gpu: tuple[int, int]
    stream: int
    phase: str
    around: tuple[tuple[tuple[str, ...], str], ...]
    place: tuple[int, ...]
    step: int
    counted: bool

    @property
    def ns(self):
        return self.end - self.start

    @property
    def path(self):
        return self.around[-1][0] if self.around else ()


def _chains(attribution):
    """Return what tells the ranges around each node: their (path, phase), and their positions."""
    forest, ranges, names = attribution.forest, attribution.ranges, attribution.trace.names
    parent, range_ = forest.parent.tolist(), forest.range.tolist()
    known = {-1: ((), ())}

    def chain(node):
        if node not in known:
            around, place = chain(parent[node])
            path = (*(around[-1][0] if around else ()), names[ranges.name_id[range_[node]]])
            known[node] = (*around, (path, PHASES[attribution.node_phase[node]])), (*place, range_[node])
        return known[node]

    return chain


def rows_of(attribution, *, include_warm_up, steps=None):
    """Return all work as rows, in the order of the trace; those of some `steps` are counted, or all."""
    trace, work, chain = attribution.trace, attribution.trace.work, _chains(attribution)
    counted, step = _counted(attribution, attribution.node, steps, include_warm_up)
    categories = dict(zip(trace.names, categorize(trace.names), strict=True)) | trace.categories
    columns = (
        work.start_ns, work.end_ns, work.kind, work.name_id, work.grid, work.process, work.device_id,
        work.stream_id, attribution.phase, attribution.node,
    )  # fmt: skip
    rows = []
    for number, (start, end, kind, name_id, grid, process, device, stream, phase, node) in enumerate(
        zip(*map(np.ndarray.tolist, columns), strict=True)
    ):
        name, (around, place) = trace.names[name_id], chain(node)
        category = categories[name] if kind == KERNEL else KINDS[kind]
        rows.append(
            Row(
                start, end, kind, name, category, grid, (process, device), stream, PHASES[phase], around, place,
                step[number], counted[number],
            )
        )  # fmt: skip
    return rows


def _counted(attribution, node, steps, include_warm_up):
    """Return of each row with a node whether it is counted, and its step."""
    warm_up = np.append(attribution.warm_up, False)[node].tolist()
    step = step_of_nodes(attribution, include_warm_up=include_warm_up)[node].tolist()
    if steps is not None:
        return [number in steps for number in step], step
    return [include_warm_up or not warm for warm in warm_up], step


def inclusive(rows):
    """Return the kernel time inside each (path, phase), ns."""
    sums = Counter()
    for row in rows:
        if row.kind == KERNEL:
            for key in row.around:
                sums[key] += row.ns
    return sums


def launch_groups(rows):
    """Return by kernel and phase the (blocks, launches, ranges, ns) of each path and grid, in order."""
    groups = defaultdict(list)
    for row in rows:
        if row.kind == KERNEL:
            groups[row.name, row.phase, row.path, row.blocks].append(row)
    found = defaultdict(list)
    for (name, phase, path, blocks), members in groups.items():
        places = len({row.place for row in members}) if path else 0
        found[name, phase].append((blocks, len(members), places, sum(row.ns for row in members)))
    return {key: sorted(value) for key, value in found.items()}


def attention(rows):
    """Return by phase and part of attention the (kernel time, time of GEMMs, launches) inside its ranges."""
    kernels = [row for row in rows if row.kind == KERNEL]
    scores = {path for row in kernels for path, _ in row.around if PARTS.get(path[-1].lower()) == "scores"}
    near = scores | {path[:-1] for path in scores}
    sums = defaultdict(lambda: [0, 0, 0])
    for row in kernels:
        parts = {}
        for path, phase in row.around:
            part = PARTS.get(path[-1].lower())
            if part and (part not in ("scale", "mask") or path[:-1] in near):
                parts.setdefault(part, phase)
        for part, phase in parts.items():
            for place, value in enumerate((row.ns, row.ns * (row.category == "gemm"), 1)):
                sums[phase, part][place] += value
    return {key: tuple(value) for key, value in sums.items() if value[0]}


def flops(ranges, counted, steps):
    """Return by path and phase the FLOPs and bytes of what was counted in it and in ranges inside it.

    `ranges` are the report's (path, phase), `counted` the mark's by phase and path, `steps` how often each path
    of a step is there. What was counted in a range that the report lacks is of the next one around it.
    """
    sums = defaultdict(lambda: [0, 0])
    for entries in counted.values():
        for pattern, (_, moved, products) in entries.items():
            tail = pattern.split(" > ")[2:]  # of a warm-up's step
            computed = sum(value for kind, value in products.items() if kind != "elementwise")
            while not any(_is_of(path, tail) for path, _ in ranges):
                tail = tail[:-1]
            for path in {path for path, _ in ranges if _is_of(path, tail)}:
                for depth in range(1, len(path) + 1):
                    (key,) = (key for key in ranges if key[0] == path[:depth])
                    sums[key][0] += steps[path[:1]] * computed
                    sums[key][1] += steps[path[:1]] * moved
    return {key: tuple(value) for key, value in sums.items()}


def _is_of(path, tail):
    return len(path) == len(tail) + 1 and all(map(fnmatchcase, path[1:], tail)) and path[0].startswith("step")


@dataclass
class Block:
    """One allocation, or free: by whom, and when it ended (a position, or the end of all)."""

    at: int
    bytes: int
    gpu: tuple[int, int]
    phase: str
    around: tuple[tuple[tuple[str, ...], str], ...]
    step: int
    counted: bool
    held: int
    ended: float = float("inf")


def blocks_of(attribution, *, include_warm_up, steps=None):
    """Return what was allocated and freed, in the order of the trace; counted as in `rows_of`."""
    table, chain, living, blocks = attribution.trace.memory, _chains(attribution), {}, []
    counted, step = _counted(attribution, attribution.memory_node, steps, include_warm_up)
    for number in range(len(table)):
        gpu, address = (int(table.process[number]), int(table.device_id[number])), int(table.block[number])
        before = living.pop((gpu, address), None)
        if before is not None:
            before.ended = number
        block = Block(
            number, int(table.bytes[number]), gpu, PHASES[attribution.memory_phase[number]],
            chain(int(attribution.memory_node[number]))[0], step[number], counted[number],
            int(table.total_bytes[number]),
        )  # fmt: skip
        blocks.append(block)
        if block.bytes > 0:
            living[gpu, address] = block
    return blocks


def peaks(blocks):
    """Return the most each GPU held while counted, and the position at which it did first."""
    found = {}
    for block in blocks:
        if block.counted and block.held > found.get(block.gpu, (-1, 0))[0]:
            found[block.gpu] = block.held, block.at
    return found


def kept(block, blocks):
    """Return whether a block of forward lives when the backward of its step, or of what is in none, begins."""
    begins = [
        other.at
        for other in blocks
        if (other.gpu[0], other.step) == (block.gpu[0], block.step)
        and other.phase == "backward"
        and other.at > block.at
    ]
    return block.bytes > 0 and block.phase == "forward" and bool(begins) and block.ended >= begins[0]


def memory_of_ranges(blocks):
    """Return by (path, phase) number and bytes allocated, bytes kept, freed, and held at the peak."""
    peak, sums = peaks(blocks), defaultdict(lambda: [0] * 5)
    for block in blocks:
        at_peak = block.bytes > 0 and block.gpu in peak and block.at <= peak[block.gpu][1] < block.ended
        is_new, size = block.bytes > 0, abs(block.bytes)
        values = (
            is_new and block.counted,
            size * (is_new and block.counted),
            size * (block.counted and kept(block, blocks)),
            size * (not is_new and block.counted),
            size * at_peak,
        )
        for key in block.around or (((), ""),):
            sums[key] = [old + new for old, new in zip(sums[key], values, strict=True)]
    return {key: tuple(value) for key, value in sums.items() if any(value)}
