"""What ranges cost in compiled code: one model compiled twice in one process, with ranges and without.

    python benchmarks/compiled_cost.py small-bf16               # about four minutes on an H200
    python benchmarks/compiled_cost.py small-bf16 --nsys        # the price with a tool
    python benchmarks/compiled_cost.py tiny-fp32 --device cpu --compiles 0

Both copies have the same weights and inputs, and their steps take turns, so that whatever else the machine does
falls on both alike; each figure is a first decile. *step* is forward and backward until the device is done, *host*
the time until both are launched. The price of a kernel call is the difference in host time by the number of times
that generated code moves to a path, which is at most the number of its kernel calls. Compile times are of an empty
cache each, taking turns too; the first pair, which starts the compiler itself, is left out unless it is the only
one. *own* is the processor time of the program's process, without compilers that it starts.

Bits: a step repeated by one copy; where its results are equal, those of both copies; where not, the names of the
parameters whose gradients vary, and then all once more with PyTorch's deterministic algorithms. A second process
(`--compiles 0 --turns 0`) has computed the same where its digests are the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from annotation import Silent
from compiled import write
from compiled_bits import Results, compared, digest
from compiled_programs import CASES, Case, made, wait
from nvtx_kernels.profiling.annotate import range_stack
from nvtx_kernels.profiling.annotate.compiled import tracing
from nvtx_kernels.profiling.annotate.compiled.ranges import NOWHERE, Opened
from nvtx_kernels.profiling.study.nsight import find_nsys, profile_command

RANGED, BARE = "with ranges", "without"
TURN, WARM_UP = 5, 10


class Copy(NamedTuple):
    """A compiled model, and how to compute its loss."""

    model: nn.Module
    loss: Callable[[], Tensor]


class Times(NamedTuple):
    """Milliseconds of a step: until the device is done, and until all is launched."""

    step: float
    host: float


def compiled(case: Case, kind: str, device: str) -> Copy:
    """Return a model that is compiled when it runs first, by a function with code of its own: Dynamo's key."""
    with written(kind):
        model, loss_of = made(case.model, device)

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    own = FunctionType(call.__code__.replace(co_name=kind.replace(" ", "_")), globals(), closure=call.__closure__)
    return Copy(model, loss_of(torch.compile(own)))


@contextmanager
def written(kind: str) -> Iterator[None]:
    """Have what is compiled meanwhile with ranges, or without."""
    before, tracing.opaque = tracing.opaque, kind == BARE
    try:
        yield
    finally:
        tracing.opaque = before


def step(copy: Copy, case: Case, device: str) -> Times:
    """Run forward and backward."""
    copy.model.zero_grad(set_to_none=True)
    wait(device)
    began = time.perf_counter()
    with torch.autocast(device, torch.bfloat16, enabled=case.bf16):
        loss = copy.loss()
    loss.backward()
    launched = time.perf_counter()
    wait(device)
    return Times((time.perf_counter() - began) * 1e3, (launched - began) * 1e3)


class Seconds(NamedTuple):
    """Seconds until the first step is done, and the processor time of this process in these."""

    wall: float
    own: float


def compile_times(case: Case, device: str, pairs: int, seconds: float) -> dict[str, list[Seconds]]:
    """Compile both kinds in turns, each on an empty cache."""
    times: dict[str, list[Seconds]] = {RANGED: [], BARE: []}
    ends = time.monotonic() + seconds
    for pair in range(pairs):
        for kind in (RANGED, BARE) if pair % 2 else (BARE, RANGED):
            torch.compiler.reset()
            with fresh_cache():
                times[kind].append(first_step(compiled(case, kind, device), kind, case, device))
        if time.monotonic() > ends:
            break
    return times


def first_step(copy: Copy, kind: str, case: Case, device: str) -> Seconds:
    """Run the step that compiles a copy."""
    began, own = time.perf_counter(), time.process_time()
    with written(kind):
        step(copy, case, device)
    return Seconds(time.perf_counter() - began, time.process_time() - own)


def both(case: Case, device: str) -> dict[str, Copy]:
    """Return both kinds, compiled with one cache: what Triton chooses by measuring is then the same for both."""
    torch.compiler.reset()
    counters.clear()
    copies = {kind: compiled(case, kind, device) for kind in (RANGED, BARE)}
    with fresh_cache():
        for kind, copy in copies.items():
            first_step(copy, kind, case, device)
    return copies


def step_times(copies: dict[str, Copy], case: Case, device: str, turns: int) -> dict[str, Times]:
    """Run the copies' steps in turns; return the first decile of each figure."""
    found: dict[str, list[Times]] = {kind: [] for kind in copies}
    for copy in copies.values():
        for _ in range(WARM_UP):
            step(copy, case, device)
    for _ in range(turns):
        for kind, copy in copies.items():
            step(copy, case, device)  # the first after the other copy's finds its data in no cache
            found[kind] += [step(copy, case, device) for _ in range(TURN)]
    return {
        kind: Times(*(_decile([getattr(one, field) for one in of]) for field in Times._fields))
        for kind, of in found.items()
    }


def _decile(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[0]


def moves(copy: Copy, case: Case, device: str) -> int:
    """Return how often generated code moves to a path in one step."""
    count, move = 0, Opened._move

    def counted(self: Opened, number: int) -> None:
        nonlocal count
        count += number != NOWHERE
        move(self, number)

    Opened._move = counted  # type: ignore[method-assign]
    try:
        with range_stack.listen(Silent()):
            step(copy, case, device)
    finally:
        Opened._move = move  # type: ignore[method-assign]
    return count


def results(copy: Copy, case: Case, device: str) -> Results:
    """Return the loss and all gradients of one step."""
    copy.model.zero_grad(set_to_none=True)
    with torch.autocast(device, torch.bfloat16, enabled=case.bf16):
        loss = copy.loss()
    loss.backward()
    gradients = {name: one.grad.clone() for name, one in copy.model.named_parameters() if one.grad is not None}
    return {"loss": loss.detach().clone(), **gradients}


def show_bits(title: str, copies: dict[str, Copy], case: Case, device: str) -> None:
    """Print what differs between repeated steps, and between the copies."""
    print(f"\nbits, {title}:")
    for line in compared({kind: partial(results, copy, case, device) for kind, copy in copies.items()}):
        print(line)
    for kind, copy in copies.items():
        print(f"digest of all results, {kind}: {digest(results(copy, case, device))}")


def deterministic(case: Case, device: str) -> dict[str, Copy]:
    """Return both kinds compiled with deterministic algorithms, and without choices that Inductor measures."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_cudnn_sdp(False)  # the gradients of cuDNN's attention vary nevertheless
    if hasattr(inductor_config, "deterministic"):
        inductor_config.deterministic = True
    return both(case, device)


def show_compile_times(seconds: dict[str, list[Seconds]]) -> None:
    """Print each and the medians, without the first pair where there are more."""
    kept = slice(1 if len(seconds[BARE]) > 1 else 0, None)
    medians = {kind: Seconds(*map(statistics.median, zip(*of[kept], strict=True))) for kind, of in seconds.items()}
    heads = ("code", "median", "own", "each")
    listed = [(kind, *(f"{one:.2f}" for one in medians[kind]), _each(of)) for kind, of in seconds.items()]
    write("compile time with an empty cache, s", [heads, *listed])
    ratios = [100 * (one / other - 1) for one, other in zip(medians[RANGED], medians[BARE], strict=True)]
    print("compiling with ranges: {:+.1f} %, own {:+.1f} %".format(*ratios))


def _each(seconds: list[Seconds]) -> str:
    return " ".join(f"{one.wall:.1f}" for one in seconds)


def show_steps(copies: dict[str, Copy], case: Case, device: str, turns: int) -> None:
    """Time the copies' steps, and print what the ranges cost."""
    times = step_times(copies, case, device, turns)
    tool = "with a tool" if range_stack.active else "without a tool"
    rows = [(kind, f"{one.step:.3f}", f"{one.host:.3f}") for kind, one in times.items()]
    write(f"{tool}: first decile, ms", [("code", "step", "host"), *rows])
    count = moves(copies[RANGED], case, device)
    ranged, bare = times[RANGED], times[BARE]
    print(f"step with ranges: {100 * (ranged.step / bare.step - 1):+.2f} %, {count} moves to a path per step")
    print(f"host: {1e3 * (ranged.host - bare.host) / max(count, 1):+.3f} us per move")


def main() -> None:
    """Compile, time, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=CASES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--compiles", type=int, default=5, metavar="PAIRS", help="of both kinds, in turns (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=150, help="after which no pair begins (%(default)s)")
    parser.add_argument("--turns", type=int, default=20, help=f"of {TURN} steps for each copy (%(default)s)")
    parser.add_argument("--no-bits", action="store_true", help="do not compare results bit by bit")
    parser.add_argument("--nsys", action="store_true", help="run under nsys: nothing but the steps")
    options = parser.parse_args()
    if options.nsys:
        captured = Path(tempfile.mkdtemp()) / "cost"
        program = [sys.executable, __file__, options.program, "--compiles", "0", "--no-bits"]
        raise SystemExit(subprocess.call(profile_command(find_nsys(), program, captured, preset="graphs")))
    case = CASES[options.program]
    print(options.program)
    if options.compiles:
        show_compile_times(compile_times(case, options.device, options.compiles, options.seconds))
    copies = both(case, options.device)
    print(f"graphs {counters['stats']['unique_graphs']} of both copies, recompiled {len(counters['recompiles'])}")
    if options.turns:
        show_steps(copies, case, options.device, options.turns)
    if not options.no_bits:
        show_bits("as usual", copies, case, options.device)
        show_bits("deterministic algorithms", deterministic(case, options.device), case, options.device)


if __name__ == "__main__":
    main()
