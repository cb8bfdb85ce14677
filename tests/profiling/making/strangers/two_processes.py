"""Train in two processes, with and without annotation: `python -m tests.profiling.making.strangers.two_processes`.

Prints one word per way of training, `same` where both processes computed the same bits, called the same
operators and left no range open. It is a program of its own because autograd must not have run before a fork.
"""

import multiprocessing
import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from .harness import Operators, outcome
from .table import Model, Program, sgd, train, x_of


def data_parallel(annotate):
    rank, parallel = distributed.get_rank(), nn.parallel.DistributedDataParallel(annotate(Model()))
    optimizer = sgd(parallel)
    for index in range(3):
        with parallel.no_sync() if index == 0 else torch.enable_grad():
            parallel(x_of(rank + 1)).square().sum().backward()
        optimizer.step()


def fully_sharded(annotate):
    model, mesh = annotate(Model()), init_device_mesh("cpu", (2,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    train(fully_shard(model, mesh=mesh))


LOOKED_AT = ("error", "weights", "gradients", "operators")
WAYS = {one.__name__: Program(one) for one in (data_parallel, fully_sharded)}


def process(rank, way, folder, results):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/{way}", rank=rank, world_size=2)
    seen = []
    for annotated in (False, True):
        with Operators() as operators:
            found = outcome(WAYS[way], annotated=annotated)
        seen.append((found.error, found.weights, found.gradients, operators.names))
    distributed.destroy_process_group()
    assert found.ranges
    differs = [name for name, one, other in zip(LOOKED_AT, *seen, strict=True) if one != other]
    results.put(str(found.error or differs or found.left_open or "same"))


def main(ways):
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        for way in ways:
            results = context.Queue()
            group = [context.Process(target=process, args=(rank, way, Path(folder), results)) for rank in range(2)]
            for one in group:
                one.start()
            print(way, *{results.get(timeout=60) for _ in group})  # noqa: T201
            for one in group:
                one.join()


if __name__ == "__main__":
    main(sys.argv[1:] or WAYS)
