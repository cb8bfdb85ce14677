"""Hold the FLOPs that ncu measures against the counted ones, kernel by kernel: the longest products of one step.

python benchmarks/measured_flops.py OUT                    # one GPU with ncu: fp32, tf32 and bf16, about 110 s
python benchmarks/measured_flops.py OUT --dtypes bf16
python benchmarks/measured_flops.py OUT --device cpu       # try it without ncu: what would be compared

A training step of our small model with two layers is recorded, and run again under ncu with the filter of
`nvtx-kernels ncu`, for all kernels that multiply matrices. Each is joined with the operator that launched it by
their order in one range, and its FLOPs in the registry of torch.utils.flop_counter. ncu's are the operations of
tensor cores (sm__ops_path_tensor_*, 2 per multiply-add) and twice the FFMA instructions. Where these are more than
5% apart, the product padded to the kernel's tiles is tried as the reason.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import AnalysisError
from nvtx_kernels.analysis.kernel_names.categories import gemm_launches
from nvtx_kernels.analysis.kernel_names.short import short_name
from nvtx_kernels.analysis.ncu.choosing import choose
from nvtx_kernels.analysis.ncu.counters import Launch
from nvtx_kernels.analysis.ncu.counters import read as read_counters
from nvtx_kernels.analysis.ncu.joining import join
from nvtx_kernels.analysis.ncu.tool import command, find_ncu, run_ncu
from nvtx_kernels.analysis.ncu.wanted import Asked, Kernels, kernels
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.report import Path as Names
from nvtx_kernels.analysis.summary.selection import collapsed_path
from nvtx_kernels.analysis.vocabulary import PHASES

ROOT = Path(__file__).resolve().parents[1]
DTYPES = ("fp32", "tf32", "bf16")
SIZES = {"cuda": ("--size", "small", "--layers", "2"), "cpu": ("--size", "tiny")}
LONGEST, NEAR = 20, 0.05
TIME, FFMA = "gpu__time_duration.sum", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
TENSOR = re.compile(r"sm__ops_path_tensor_src_(?:bf16|fp16|tf32)(?:_dst_fp32|_dst_fp16)?")
TILE = re.compile(r"(?<![0-9])(\d{2,3})x(\d{2,3})(?:[x_](\d{1,3}))?")
Place = tuple[str, Names]  # phase, and path below the step with its indices collapsed


@dataclass(frozen=True)
class Product:
    """One operator's matrix products: how many, rows, inner and columns, and the FLOPs of the registry."""

    name: str
    sizes: tuple[int, int, int, int]
    flops: int

    def padded(self, kernel: str) -> Iterator[float]:
        """Yield the FLOPs of tiles that a kernel's name states, either way round."""
        count, rows, inner, columns = self.sizes
        for first, second, deep in TILE.findall(kernel):
            for high, wide in ((int(first), int(second)), (int(second), int(first))):
                depth = max(int(deep or 8), 1)
                sides = ceil(rows / high) * high, ceil(columns / wide) * wide, ceil(inner / depth) * depth
                yield 2.0 * count * sides[0] * sides[1] * sides[2]


@dataclass(frozen=True)
class Compared:
    """Kernels and the operators that they are of: usually one each."""

    place: Place
    kernels: tuple[str, ...]
    products: tuple[Product, ...]
    ns: int
    measured: float | None

    @property
    def counted(self) -> int:
        """FLOPs by the registry."""
        return sum(one.flops for one in self.products)

    @property
    def difference(self) -> float | None:
        """By which part ncu measured more than was counted."""
        return None if self.measured is None else self.measured / self.counted - 1

    def reason(self) -> str:
        """Return what explains a difference."""
        if self.difference is None:
            return "not joined"
        if abs(self.difference) <= NEAR:
            return ""
        pairs = zip(self.products, self.kernels, strict=False)
        padded = (
            [flops for one, kernel in pairs for flops in one.padded(kernel)] if len(self.products) == 1 else []
        )
        near = [flops for flops in padded if abs(flops / (self.measured or 1) - 1) <= NEAR]
        return f"padded to tiles: {near[0] / 1e9:.2f}" if near else "UNEXPLAINED"


def program(dtype: str, device: str) -> list[str]:
    """Return the training run of one step that is recorded, and that ncu watches."""
    steps = ["--warmup", "1", "--steps", "1", "--dtype", dtype, "--device", device]
    return [sys.executable, "-m", "profiling.run", *SIZES[device], *steps]


def products(dtype: str, device: str) -> dict[Place, list[Product]]:
    """Run a step here, and return its products in their order by the ranges that compute them."""
    from nvtx_kernels.profiling.annotate.counting import Counting
    from nvtx_kernels.profiling.annotate.counts import Counts
    from nvtx_kernels.profiling.run import parser
    from nvtx_kernels.profiling.workload.model_steps import Workload, timed_steps
    from nvtx_kernels.profiling.workload.settings import with_defaults

    found: dict[Place, list[Product]] = defaultdict(list)

    class Listing(Counts):
        """Keeps every operator that has FLOPs."""

        def add(self, place: tuple[str, Names], func: Any, call: tuple[Any, Any, Any]) -> None:
            before = self.flops
            super().add(place, func, call)
            if self.flops > before:
                name = str(func.overloadpacket if hasattr(func, "overloadpacket") else func)
                found[place[0], below_step(place[1])].append(Product(name, sizes_of(call[0]), self.flops - before))

    asked = vars(parser().parse_args(program(dtype, device)[3:]))
    workload, counting = Workload(with_defaults(asked)), Counting()
    counting.counts = Listing()
    with counting.step():
        list(timed_steps(workload, 1))
    return found


def sizes_of(arguments: Sequence[Any]) -> tuple[int, int, int, int]:
    """Return how many products, rows, inner and columns an operator's arguments have."""
    matrices = [one.shape for one in arguments if hasattr(one, "shape") and len(one.shape) > 1][-2:]
    (*many, rows, inner), columns = matrices[0], matrices[1][-1]
    return int(np.prod(many)), rows, inner, columns


def below_step(path: Names) -> Names:
    """Return the names below the step, with `*` for indices."""
    whole = collapsed_path(path)
    return whole[len(whole) - whole[::-1].index("step") :] if "step" in whole else whole


def multiplying(report: Path) -> Kernels:
    """Return the kernels of a report that multiply matrices in forward and backward."""
    found = kernels(attribute(read(report)), Asked(phases=("forward", "backward")))
    is_gemm = np.array(gemm_launches([found.name(row) for row in found.rows.tolist()]), np.bool_)
    return replace(found, wanted=found.wanted & is_gemm, named=found.named & is_gemm)


def compared(found: Kernels, launches: Sequence[Launch], of: dict[Place, list[Product]]) -> list[Compared]:
    """Join kernels, ncu's launches and products; those of one range together where their numbers differ."""
    joined = join(found, launches, 1) if launches else None
    flops = {twin.row: measured(one) for twin in joined.twins for one in twin.launches} if joined else {}
    for note in joined.notes if joined else ():
        print(f"  note: {note}")
    duration, phase = found.attribution.trace.work.duration_ns, found.attribution.phase
    places: dict[Place, list[int]] = defaultdict(list)
    for row, path, wanted in zip(found.rows.tolist(), found.paths(), found.wanted.tolist(), strict=True):
        if wanted:
            places[PHASES[phase[row]], below_step(path)].append(row)
    pairs = []
    if unknown := {place: len(rows) for place, rows in places.items() if place not in of}:
        print(f"  note: {sum(unknown.values())} kernels are in ranges in which no product was counted: {unknown}")
    for place, rows in places.items():
        mine = of.get(place, [])
        each = (
            [([row], [one]) for row, one in zip(rows, mine, strict=True)]
            if len(rows) == len(mine)
            else [(rows, mine)]
        )
        for some, ones in each:
            values = [flops.get(row) for row in some]
            known = None if any(value is None for value in values) else float(sum(value or 0 for value in values))
            names, ns = tuple(found.name(row) for row in some), int(sum(duration[row] for row in some))
            if ones:
                pairs.append(Compared(place, names, tuple(ones), ns, known))
    return sorted(pairs, key=lambda one: -one.ns)


def measured(launch: Launch) -> float:
    """Return the FLOPs that ncu measured: of tensor cores, and twice the multiply-adds of the other units."""
    tensor = sum(value for name, value in launch.metrics.items() if TENSOR.match(name))
    return tensor + 2 * launch.metrics.get(FFMA, 0.0)


def metrics(ncu: str) -> list[str]:
    """Return the metrics to collect, of those that ncu has for this GPU."""
    asked = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False).stdout
    known = {line.split()[0] for line in asked.splitlines() if line.strip()}
    tensor = sorted(name for name in known if TENSOR.fullmatch(name))
    tensor = tensor or sorted(name for name in known if name.endswith("_sparsity_off") and TENSOR.match(name))
    print(f"ncu's counters of tensor cores: {', '.join(tensor) or 'none'}")
    return [TIME, FFMA, *(f"{name}.sum" for name in tensor)]


def show(dtype: str, rows: Sequence[Compared]) -> bool:
    """Print the longest, and return whether every one is near or explained."""
    print(f"\n== {dtype}: the {min(LONGEST, len(rows))} longest of {len(rows)} products; GFLOP")
    print(
        f"{'us':>8} {'counted':>9} {'ncu':>9} {'diff %':>7}  {'count x rows x inner x columns':<24} range; kernel"
    )
    for one in rows[:LONGEST]:
        ncu = "" if one.measured is None else f"{one.measured / 1e9:.3f}"
        diff = "" if one.difference is None else f"{100 * one.difference:+.2f}"
        sizes = " + ".join("x".join(map(str, product.sizes)) for product in one.products)
        what = f"{one.place[0]}: {' > '.join(one.place[1])}; {short_name(one.kernels[0])[:60]}; {one.reason()}"
        print(f"{one.ns / 1e3:>8.1f} {one.counted / 1e9:>9.3f} {ncu:>9} {diff:>7}  {sizes:<24} {what}")
    known = [one for one in rows if one.measured is not None]
    counted, found = sum(one.counted for one in known), sum(one.measured or 0 for one in known)
    if known:
        print(f"all {len(known)} that were joined: counted {counted / 1e9:.2f}, ncu {found / 1e9:.2f} GFLOP, "
              f"{100 * (found / counted - 1):+.2f}%")  # fmt: skip
    near = sum(not one.reason() for one in rows[:LONGEST])
    explained = sum(one.reason().startswith("padded") for one in rows[:LONGEST])
    print(f"within 5%: {near}; padded: {explained}; of {min(LONGEST, len(rows))}")
    return near + explained == min(LONGEST, len(rows))


def one_dtype(dtype: str, options: argparse.Namespace, ncu: str, collected: Sequence[str]) -> bool:
    """Record, profile, join and print one precision."""
    report, log = options.out / f"{dtype}.sqlite", options.out / f"{dtype}.csv"
    words = program(dtype, options.device)
    subprocess.run([*words, "--record", str(report)], check=True, stdout=subprocess.DEVNULL)
    found = multiplying(report)
    launches: list[Launch] = []
    if ncu:
        chosen = choose(found)
        print(
            f"{dtype}: {' '.join(chosen.options())}; wanted {chosen.wanted}, surplus {chosen.surplus}", flush=True
        )
        run_ncu(command(ncu, chosen, log, collected, words), log)
        launches = read_counters(log)
    return show(dtype, compared(found, launches, products(dtype, options.device)))


def main() -> int:
    """Compare every precision; return 1 where something is left unexplained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtypes", nargs="*", default=DTYPES, choices=DTYPES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    began = time.monotonic()
    try:
        ncu = find_ncu() if options.device == "cuda" else ""
        collected = metrics(ncu) if ncu else []
        right = [one_dtype(dtype, options, ncu, collected) for dtype in options.dtypes]
    except (AnalysisError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{time.monotonic() - began:.0f} s in total")
    return int(not all(right) and options.device == "cuda")


if __name__ == "__main__":
    sys.exit(main())
