"""Forward passes that replay CUDA graphs, for reports of both kinds of graph tracing.

nsys profile -t cuda,nvtx --cuda-graph-trace=node python benchmarks/cuda_graphs.py
nsys profile -t cuda,nvtx --cuda-graph-trace=graph python benchmarks/cuda_graphs.py
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from model.config import CONFIGS
from model.transformer import TransformerLM
from profiling import annotate

BATCH, CONTEXT, STEPS = 4, 512, 3


def main() -> None:
    """Capture the model's forward in graphs through torch.compile, then replay them in measured steps."""
    config = CONFIGS["small"]
    with torch.device("cuda"), torch.no_grad():
        model = TransformerLM(config, CONTEXT)
        tokens_BT = torch.randint(config.vocabulary, (BATCH, CONTEXT))
        forward = torch.compile(model, mode="reduce-overhead")
        with annotate.range("warmup"):
            for _ in range(4):
                forward(tokens_BT)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        with annotate.range("measure"):
            for _ in range(STEPS):
                with annotate.range("step"), annotate.range("forward"):
                    forward(tokens_BT)
                    torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
