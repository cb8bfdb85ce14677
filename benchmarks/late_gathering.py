"""Rank the blocks of a model under FSDP2 by exposed communication: one whose gathering comes late must be first.

torchrun --standalone --nproc-per-node 2 benchmarks/late_gathering.py OUT                    # two GPUs, about 60 s
torchrun --standalone --nproc-per-node 2 benchmarks/late_gathering.py OUT --device cpu   # try it: the steps

Each block's parameters are gathered while the block before it computes (`set_modules_to_forward_prefetch`,
`set_modules_to_backward_prefetch`), except those of LATE, which are gathered when it needs them. Both ranks record
the measured steps; rank 0 prints `--view communication` of both reports, and holds each report's sums against
`--view overlap`. It ends with status 1 where another row ranks first, or sums differ.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from nvtx_kernels.analysis import kernels
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import nvtx_kernels as nk

BLOCKS, LATE = 6, 3
WARMUP, STEPS = 3, 5
WIDTH, TOKENS = {"cuda": 4096, "cpu": 32}, {"cuda": 8192, "cpu": 8}
#: Products with one small weight before and after the blocks, behind which the first gathering and last sum hide.
AROUND = 8


class Around(nn.Module):
    """Computes much with few parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply one layer again and again."""
        for _ in range(AROUND):
            x = nn.functional.layer_norm(self.layer(x), x.shape[-1:])
        return x


class Model(nn.Module):
    """Blocks with many parameters between two parts with few."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = Around(width), Around(width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(BLOCKS)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x).square().mean()


def sharded(model: Model, device: str) -> Model:
    """Shard every block and the rest, and have every block but LATE gathered ahead."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    root: FSDPModule = fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    # Gathered on the stream that computes, parameters that are not prefetched are surely late.
    root._set_unshard_async_op(True)
    blocks: list[FSDPModule] = list(model.blocks)
    root.set_modules_to_forward_prefetch(blocks[:1])
    root.set_modules_to_backward_prefetch(blocks[-1:])
    for number, block in enumerate(blocks):
        for step, prefetch in (
            (1, block.set_modules_to_forward_prefetch),
            (-1, block.set_modules_to_backward_prefetch),
        ):
            target = number + step
            is_due = 0 <= target < BLOCKS and target != LATE
            prefetch([blocks[target] if is_due else block])  # itself: nothing is left to gather
    return model


def trained(device: str, report: Path, on_cpu: dist.ProcessGroup) -> None:
    """Record some steps of this rank; all ranks begin each together, without a kernel that waits."""
    torch.manual_seed(0)
    model = sharded(Model(WIDTH[device]).to(device), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(TOKENS[device], WIDTH[device], device=device)
    with nk.profile(model, optimizer, report, warmup=WARMUP, steps=STEPS):
        for _ in range(WARMUP + STEPS):
            if device == "cuda":
                torch.cuda.synchronize()
            dist.barrier(group=on_cpu)
            time.sleep(0.01)  # the barrier's own record_function block ends on another thread, a moment later
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()


def held_against(reports: list[Path]) -> bool:
    """Print the view of all reports, and return whether LATE is first and the sums are those of overlap."""
    words = [*map(str, reports), "--view", "communication", "--per-step", "--no-cache"]
    said = reports[0].with_name("communication.json")
    if kernels.main([*words, "--top", "12"]) or kernels.main([*words, "--format", "json", "-o", str(said)]):
        raise SystemExit("the view has no answer")
    tables = {table["key"]: table["rows"] for table in json.loads(said.read_text())["tables"]}
    is_first = f"blocks.{LATE}" in tables["modules"][0]["module"]
    print(f"blocks.{LATE}, which is not prefetched, ranks {'first' if is_first else 'NOT first'}")
    return all([is_first, *(sums_agree(report) for report in reports)])


def sums_agree(report: Path) -> bool:
    """Print one report's communication by both views, ns, and return whether they agree."""
    rows = nk.communication(report)["communication"].to_dict("records")
    mine = [sum(row[key] for row in rows) for key in ("time_ns", "hidden_ns", "exposed_ns")]
    (other,) = nk.overlap(report)["overlap"].to_dict("records")
    theirs = [other[key] for key in ("communication_ns", "hidden_ns", "exposed_ns")]
    said = "equal" if mine == theirs else "DIFFERENT"
    print(f"{report.name}: time, hidden, exposed by module {mine}, by overlap {theirs}: {said}")
    return mine == theirs


def main() -> int:
    """Train on all ranks, and show what rank 0 finds in the reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    began, rank = time.monotonic(), int(os.environ["RANK"])
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    on_cpu = dist.new_group(backend="gloo")
    options.out.mkdir(parents=True, exist_ok=True)
    reports = [options.out.resolve() / f"rank{one}.sqlite" for one in range(dist.get_world_size())]
    trained(options.device, reports[rank], on_cpu)
    dist.barrier(group=on_cpu)
    is_right = True
    if rank == 0 and options.device == "cuda":
        is_right = held_against(reports)
    if rank == 0:
        print(f"{time.monotonic() - began:.0f} s in total")
    dist.barrier(group=on_cpu)
    dist.destroy_process_group()
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
