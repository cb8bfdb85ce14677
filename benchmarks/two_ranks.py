"""Two ranks of the model under DistributedDataParallel: for a report with several processes, GPUs and NCCL.

nsys profile -t cuda,nvtx torchrun --standalone --nproc-per-node 2 benchmarks/two_ranks.py
torchrun --standalone --nproc-per-node 2 benchmarks/two_ranks.py --size large --events
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from phase_timing import Phase, warm_up_and_measure
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy

CONTEXT, WARM_UP = 512, 2


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens_BT: torch.Tensor, phase: Phase) -> None:
    """Run one training step in its phases, and wait for the GPU."""
    with phase("forward"):
        loss = cross_entropy(model(tokens_BT), tokens_BT)
    with phase("backward"):
        loss.backward()
    with phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


def main() -> None:
    """Run warm-up and measured steps on this rank's GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=CONFIGS)
    parser.add_argument("--batch-size", type=int, default=4, help="sequences of each rank (default 4)")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--fused", action="store_true", help="the fused AdamW instead of foreach")
    parser.add_argument(
        "--events", action="store_true", help="print each rank's phase times instead of opening ranges"
    )
    options = parser.parse_args()
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    config = CONFIGS[options.size]
    with torch.device("cuda", rank):
        model = TransformerLM(config, CONTEXT)
        tokens_BT = torch.randint(config.vocabulary, (options.batch_size, CONTEXT))
    parallel = DistributedDataParallel(model, device_ids=[rank])
    kind = "fused" if options.fused else "foreach"
    optimizer = torch.optim.AdamW(parallel.parameters(), **{kind: True})
    run = partial(step, parallel, optimizer, tokens_BT)
    warm_up_and_measure(run, warm_up=WARM_UP, steps=options.steps, events=options.events)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
