"""Two ranks of the model under DistributedDataParallel, for a report with several processes, GPUs and NCCL.

nsys profile -t cuda,nvtx torchrun --standalone --nproc-per-node 2 benchmarks/two_ranks.py
"""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from model.config import CONFIGS
from model.transformer import TransformerLM, cross_entropy
from profiling import annotate

VOCABULARY_BATCH, CONTEXT = 4, 512


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens_BT: torch.Tensor) -> None:
    """Run one training step in its phases."""
    with annotate.range("step"):
        with annotate.range("forward"):
            loss = cross_entropy(model(tokens_BT), tokens_BT)
        with annotate.range("backward"):
            loss.backward()
        with annotate.range("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()


def main() -> None:
    """Run warm-up and measured steps on this rank's GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=CONFIGS)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    config = CONFIGS[options.size]
    with torch.device("cuda", rank):
        model = TransformerLM(config, CONTEXT)
        tokens_BT = torch.randint(config.vocabulary, (VOCABULARY_BATCH, CONTEXT))
    parallel = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.AdamW(parallel.parameters(), foreach=True)
    with annotate.range("warmup"):
        for _ in range(2):
            step(parallel, optimizer, tokens_BT)
    with annotate.range("measure"):
        for _ in range(options.steps):
            step(parallel, optimizer, tokens_BT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
