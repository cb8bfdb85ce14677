"""Ranks of a job on simulated hosts and GPUs; a collective waits for the last rank, and then moves its bytes.

A program is a generator that gets a `Rank`, makes its calls and yields each collective. Each rank's clock is an
hour from the next: `paths = recorded_job(folder, program)`, and `job_step_ns(program)` is the true step.
"""

from dataclasses import dataclass

from tests.analysis.making.building import Work, write
from tests.analysis.making.simulated import GAP, LAG, MAIN_STREAM, US, Simulated

NCCL, HOUR = 17, 3_600_000_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SUM_OF_MAPS = "ncclDevKernel_AllReduce_Sum_u32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_bias_TNT"


@dataclass(frozen=True)
class Collective:
    """A collective that all ranks make; on the stream of compute where the program asks for its result."""

    lasts: int = 400 * US
    name: str = ALL_REDUCE
    stream: int = NCCL


class Rank(Simulated):
    """A rank's host and GPU."""

    def __init__(self, number, **options):
        super().__init__(gpu="NVIDIA H100 80GB HBM3", **options)
        self.number, self.steps, self.now = number, 0, number * HOUR

    def arrive(self, collective):
        """Launch a collective behind the work of both streams; return when it can begin."""
        self.called = self.call("cuLaunchKernelEx")
        begin = self.rows.launches[-1].start + round(LAG * self.slower)
        ready = max(self.ends.get(MAIN_STREAM, 0), self.ends.get(collective.stream, 0)) + GAP
        return max(begin, ready)

    def run(self, collective, arrived, last):
        """Run a collective: it waits until the last rank has come, and then moves its bytes."""
        end = last + collective.lasts
        self.ends[collective.stream] = self.last_end = end
        self.rows.work.append(Work(self.called, arrived, end, collective.name, stream=collective.stream))

    def join(self):
        """Let later work wait for the collectives."""
        self.ends[MAIN_STREAM] = max(self.ends.get(MAIN_STREAM, 0), self.ends.get(NCCL, 0))


def simulated_job(program, count=2, *, steps=8, slower=()):
    """Run a program on some ranks; return them. Recording makes each rank's host slower by its own factor."""
    factors = slower or (1.0,) * count
    ranks = [Rank(number, slower=factors[number]) for number in range(count)]
    for _ in range(steps):
        _exchange(ranks, [_stepping(rank, program) for rank in ranks])
    return ranks


def _stepping(rank, program):
    with rank.step():
        yield from program(rank)
        rank.join()
    rank.steps += 1


def _exchange(ranks, parts):
    """Run the ranks from one collective to the next."""
    while collectives := [each for part in parts if (each := next(part, None))]:
        arrived = [rank.arrive(each) for rank, each in zip(ranks, collectives, strict=True)]
        last = max(at - rank.number * HOUR for rank, at in zip(ranks, arrived, strict=True))
        for rank, each, at in zip(ranks, collectives, arrived, strict=True):
            rank.run(each, at, last + rank.number * HOUR)


def job_step_ns(program, count=2, **options):
    """Return how long a step of the job takes."""
    ends = simulated_job(program, count, **options)[0].step_ends
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def recorded_job(folder, program, count=2, **options):
    """Write what nsys would record of each rank, and return the reports' paths."""
    ranks = simulated_job(program, count, **options)
    return [write(folder / f"rank{rank.number}.sqlite", rank.rows) for rank in ranks]
