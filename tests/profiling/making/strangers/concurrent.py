"""Programs of several threads, coroutines and processes, and distributed training with one process."""

import asyncio
import multiprocessing
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from .table import Model, program, sgd, train, x_of


def run_together(workers):
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@program(threads=True)
def threads_that_train(annotate):
    workers = [threading.Thread(target=train, args=(annotate(Model().eval()),)) for _ in range(2)]
    run_together(workers)


@program(threads=True)
def forward_here_and_backward_there(annotate):
    model = annotate(Model())
    loss = model(x_of()).square().sum()
    worker = threading.Thread(target=loss.backward)
    run_together([worker])


@program(threads=True)
def thread_that_ends_within_a_step(annotate):
    model = annotate(Model())
    optimizer = sgd(model)
    train(model, optimizer)
    worker = threading.Thread(target=lambda: model(x_of()).sum().backward())
    run_together([worker])


@program()
def coroutines_that_wait_inside_a_module(annotate):
    class Waits(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        async def forward(self, x):
            y = self.first(x)
            await asyncio.sleep(0)
            return self.second(y)

    model = annotate(Waits())

    async def several():
        return await asyncio.gather(*(model(x_of(rows)) for rows in (1, 2, 3)))

    sum(output.sum() for output in asyncio.run(several())).backward()


@program(silent=True)
def a_forked_process(annotate):
    model, context = annotate(Model().eval()), multiprocessing.get_context("fork")
    mine, other = context.Pipe(duplex=False)

    def child():
        torch.set_num_threads(1)  # OpenMP's threads are not copied: this is what DataLoader's workers do
        with torch.no_grad():
            other.send(model(x_of()).sum().item())

    process = context.Process(target=child)
    process.start()
    process.join()
    return mine.recv() if mine.poll() else None, process.exitcode


@contextmanager
def group():
    """Be a process group of one."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{Path(folder) / 'store'}"
        distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            yield
        finally:
            distributed.destroy_process_group()


@program()
def data_parallel_annotated_from_outside(annotate):
    with group():
        train(annotate(nn.parallel.DistributedDataParallel(Model(), static_graph=True)))


@program()
def fully_sharded_in_one_process(annotate):
    with group():
        mesh, model = init_device_mesh("cpu", (1,)), annotate(Model())
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, sgd(model))
        state = {name: one.full_tensor().clone() for name, one in model.state_dict().items()}
        gradients = [one.grad.full_tensor().clone() for one in model.parameters()]
        model.zero_grad()
        for one in model.state_dict().values():
            assert type(one).__name__ == "DTensor"
    annotate(Model())
    return state, gradients
