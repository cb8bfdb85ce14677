"""Programs that loop, as reports without named steps: kernels in the order in which a model launches them.

A program is a list of what its thread does: the name of a kernel to launch, `COPY`, `wait(ns)`,
`OPEN("Forward")`, `CLOSE`, or `graph(3)`. Kernels of `backward` are launched on autograd's thread. Names are like
those of real ones, so that they have their categories.
"""

from dataclasses import dataclass, field, replace
from random import Random

from tests.analysis.making.building import Launch, Range, Rows, Work, in_process, thread

LAUNCH_NS, KERNEL_NS, PAUSE_NS = 5_000, 20_000, 3_000
MAIN, AUTOGRAD = thread(100), thread(100, 101)
TO_GPU = 1  # nsys's number of the direction


@dataclass(frozen=True)
class OPEN:
    """A range begins."""

    name: str


@dataclass(frozen=True)
class Wait:
    """The host does something else."""

    ns: int


@dataclass(frozen=True)
class Launched:
    """A kernel or a whole graph, and who launches it."""

    name: str
    kind: str = "kernel"
    on_autograd: bool = False


CLOSE, COPY = "close", "copy"
wait = Wait


def gemm(number, *, backward=False):
    """Return a product of its own name."""
    return Launched(f"ampere_sgemm_{number}x64_tn", on_autograd=backward)


def pointwise(number, *, backward=False):
    """Return an elementwise kernel of its own name."""
    return Launched(f"void at::native::vectorized_elementwise_kernel<{number}, F>(int)", on_autograd=backward)


def forward(layers):
    """Return a forward: an embedding, layers of six kernels, a head and a loss."""
    layer = [gemm(1), pointwise(1), gemm(2), pointwise(2), gemm(3), pointwise(3)]
    return [pointwise(90), *layer * layers, gemm(91), pointwise(92), pointwise(93)]


def backward(layers):
    """Return its backward, on autograd's thread, with other kernels."""
    layer = [(gemm, 11), (gemm, 12), (pointwise, 11), (gemm, 13), (gemm, 14), (pointwise, 12), (gemm, 15)]
    kernels = [(gemm, 81), (gemm, 82), *layer * layers, (pointwise, 83)]
    return [kind(number, backward=True) for kind, number in kernels]


def update(kind="Adam", kernels=4):
    """Return a multi-tensor optimizer's kernels."""
    return [Launched(f"void at::native::multi_tensor_apply_kernel<Fused{kind}Functor<float, 4>>(int)")] * kernels


def unknown_update(kernels=8):
    """Return an update by kernels that no rule knows as an optimizer's."""
    return [pointwise(700 + number % 3) for number in range(kernels)]


def graph(number):
    """Return the launch of a CUDA graph that hides its kernels."""
    return Launched(f"graph {number}", kind="graph")


def named(name, events):
    """Return events with a range around them."""
    return [OPEN(name), *events, CLOSE]


def training(steps, layers=4, *, between=()):
    """Return a loop that copies, trains and updates; `between` is done between two steps."""
    step = [COPY, *forward(layers), *backward(layers), *update()]
    return [*step, *(event for _ in range(steps - 1) for event in (*between, *step))]


@dataclass
class _Run:
    rows: Rows = field(default_factory=Rows)
    now: int = 1_000_000
    gpu_ns: int = 0
    open: list = field(default_factory=list)

    def launch(self, name, kind, on_thread, duration):
        number = len(self.rows.launches)
        start = self.now
        self.now += LAUNCH_NS
        self.gpu_ns = max(self.gpu_ns, self.now) + duration
        self.rows.launches.append(Launch(number, start, self.now - 1, on_thread))
        self.rows.work.append(Work(number, self.gpu_ns - duration, self.gpu_ns, name, kind))


def report_of(program, *, seed=0, launches=True):
    """Return the rows of a report of one process that runs a program; pauses and durations vary a little."""
    random, run = Random(seed), _Run()
    for event in program:
        run.now += random.randrange(PAUSE_NS)
        match event:
            case OPEN(name):
                run.open.append((name, run.now))
            case Wait(ns):
                run.now += ns
            case "close":
                name, start = run.open.pop()
                run.rows.ranges.append(Range(name, start, run.now, MAIN))
            case "copy":
                run.launch(TO_GPU, "memcpy", MAIN, KERNEL_NS)
            case Launched(name, kind, on_autograd):
                duration = KERNEL_NS + hash_of(name) % 7 * 2_000 + random.randrange(500)
                run.launch(name, kind, AUTOGRAD if on_autograd else MAIN, duration)
    rows = replace(run.rows, thread_names={AUTOGRAD: "pt_autograd_0"})
    return rows if launches else replace(rows, launches=[], ranges=[])


def hash_of(name):
    """Return a number for a name that is the same in every process."""
    return sum(map(ord, name))


def together(*reports):
    """Return the reports of several processes as one."""
    moved = [in_process(rows, 100 * number) for number, rows in enumerate(reports, 1)]
    return Rows(
        ranges=[row for rows in moved for row in rows.ranges],
        launches=[row for rows in moved for row in rows.launches],
        work=[row for rows in moved for row in rows.work],
        thread_names={key: name for rows in moved for key, name in rows.thread_names.items()},
    )
