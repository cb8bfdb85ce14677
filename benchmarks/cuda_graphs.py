"""Passes that replay CUDA graphs, for reports of both kinds of graph tracing, or timed with CUDA events.

nsys profile -t cuda,nvtx --cuda-graph-trace=node python benchmarks/cuda_graphs.py
nsys profile -t cuda,nvtx --cuda-graph-trace=graph python benchmarks/cuda_graphs.py --size large --train
python benchmarks/cuda_graphs.py --size large --train --events
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from phase_timing import Phase, warm_up_and_measure
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy

BATCH, CONTEXT, WARM_UP = 4, 512, 4


class Replays:
    """A model whose passes are captured in graphs through torch.compile, and an optimizer that is not."""

    def __init__(self, size: str, *, train: bool) -> None:
        config = CONFIGS[size]
        with torch.device("cuda"):
            model = TransformerLM(config, CONTEXT)
            self.tokens_BT = torch.randint(config.vocabulary, (BATCH, CONTEXT))
        self.forward: Callable[[Tensor], Tensor] = torch.compile(model, mode="reduce-overhead")
        self.train = train
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(self, phase: Phase) -> None:
        """Run one step in its phases, and wait for the GPU."""
        torch.compiler.cudagraph_mark_step_begin()
        with torch.set_grad_enabled(self.train), phase("forward"):
            result = self.forward(self.tokens_BT)
            if self.train:
                result = cross_entropy(result, self.tokens_BT)
        if self.train:
            with phase("backward"):
                result.backward()
            with phase("optimizer"):
                self.optimizer.step()
                self.optimizer.zero_grad()
        torch.cuda.synchronize()


def main() -> None:
    """Warm up, which captures the graphs, then replay them in measured steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=CONFIGS)
    parser.add_argument("--train", action="store_true", help="backward and a fused AdamW too")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--events", action="store_true", help="print the phases' times instead of opening ranges")
    options = parser.parse_args()
    replays = Replays(options.size, train=options.train)
    warm_up_and_measure(replays.step, warm_up=WARM_UP, steps=options.steps, events=options.events)


if __name__ == "__main__":
    main()
