"""Programs of other people's making for `strangers.py`: random weights, phases that end in a synchronization.

Each builder returns one training step, which opens the phases that it is given. With `--annotated` the programs
open no ranges: their models are annotated, and marks, which are not ranges, note when a phase began and ended.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.profiling import annotate

STEPS, WARM_UP, BATCH, CONTEXT = 2, 1, 4, 256
SIZES: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024}
Phase = Callable[[str], Any]
Step = Callable[[Phase], None]
ANNOTATED = "--annotated" in sys.argv


def synchronize() -> None:
    """Wait for all GPUs of this process."""
    for device in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        torch.cuda.synchronize(device)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Open a range that its work does not outlast."""
    with opened(name):
        yield
        synchronize()


@contextmanager
def opened(name: str) -> Iterator[None]:
    """Open a range, or mark its begin and end where models are annotated instead."""
    if not ANNOTATED:
        with annotate.range(name):
            yield
        return
    with marked(name):
        yield


@contextmanager
def marked(name: str) -> Iterator[None]:
    """Mark the begin and the end of a phase."""
    annotate.mark(f"begins: {name}")
    yield
    annotate.mark(f"ends: {name}")


def train_step(phase: Phase, loss_of: Callable[[], torch.Tensor], optimizer: Any) -> None:
    """Run the usual three phases."""
    with phase("forward"):
        loss = loss_of()
    with phase("backward"):
        loss.backward()
    with phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def annotated(model: nn.Module) -> Any:
    """Annotate a model where that is asked for, and return it."""
    if ANNOTATED:
        annotate.annotate_modules(model)
    return model


def trained(model: nn.Module, loss_of: Callable[[], torch.Tensor], optimizer: Any = None) -> Step:
    """Return the usual step of a model."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    annotated(model)
    return partial(train_step, loss_of=loss_of, optimizer=optimizer)


def language(device: torch.device, kind: str = "gpt2") -> tuple[nn.Module, torch.Tensor]:
    """Return a causal language model and its tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if kind == "gpt2":
        config: Any = GPT2Config(n_layer=4, n_embd=512, n_head=8, vocab_size=8192)
        model: nn.Module = GPT2LMHeadModel(config)
    else:
        config = LlamaConfig(**SIZES, num_attention_heads=8, num_key_value_heads=4, vocab_size=8192)
        model = LlamaForCausalLM(config)
    shape = (BATCH, CONTEXT) if device.type == "cuda" else (BATCH, 16)
    tokens = torch.randint(config.vocab_size, shape, device=device)
    return model.to(device).train(), tokens


def gpt2(device: torch.device, *, checkpointed: str = "") -> Step:
    """GPT-2, plain or with checkpointed blocks."""
    model, tokens = language(device)
    if checkpointed:
        arguments = {"use_reentrant": checkpointed == "reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments)  # type: ignore[operator]
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


def llama(device: torch.device) -> Step:
    """Llama, two accumulated batches, gradients clipped."""
    model, tokens = language(device, "llama")
    optimizer = torch.optim.AdamW(annotated(model).parameters())

    def step(phase: Phase) -> None:
        for _ in range(2):
            with phase("forward"):
                loss = model(input_ids=tokens, labels=tokens).loss / 2
            with phase("backward"):
                loss.backward()
        with phase("optimizer"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return step


def lora(device: torch.device) -> Step:
    """Llama with low-rank adapters."""
    from peft import LoraConfig, get_peft_model

    model, tokens = language(device, "llama")
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    return trained(adapted, lambda: adapted(input_ids=tokens, labels=tokens).loss)


def images(device: torch.device, kind: str) -> Step:
    """ResNet-50 or a vision transformer."""
    from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

    vit = ViTConfig(**SIZES, num_attention_heads=8)
    model = ResNetForImageClassification(ResNetConfig()) if kind == "resnet" else ViTForImageClassification(vit)
    model = model.to(device).train()
    count = 8 if device.type == "cuda" else 1
    pixels, labels = (
        torch.randn(count, 3, 224, 224, device=device),
        torch.zeros(count, dtype=torch.long, device=device),
    )
    return trained(model, lambda: model(pixel_values=pixels, labels=labels).loss)


def perceptron(device: torch.device, width: int = 512) -> nn.Sequential:
    """Return a model of three linear layers."""
    return nn.Sequential(
        nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
    ).to(device)


def penalty(device: torch.device) -> Step:
    """Train a critic with a penalty on its gradient."""
    model, x = perceptron(device), torch.randn(256, 512, device=device, requires_grad=True)

    def loss_of() -> torch.Tensor:
        score = model(x).sum()
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        return score + (slope.norm(dim=1) - 1).square().mean()

    return trained(model, loss_of)


def graphed(device: torch.device) -> Step:
    """Train a model whose forward and backward are CUDA graphs."""
    x = torch.randn(256, 512, device=device, requires_grad=True)
    model = torch.cuda.make_graphed_callables(perceptron(device), (x,))
    return trained(model, lambda: model(x).square().mean())


def trainer(device: torch.device) -> Step:
    """Hugging Face's Trainer, its own loop with phases put around what it calls."""
    from transformers import Trainer, TrainingArguments

    model, tokens = language(device)
    rows = [{"input_ids": row, "labels": row} for row in tokens.repeat(2, 1).cpu()]
    arguments = TrainingArguments(
        "/tmp/strangers",
        per_device_train_batch_size=BATCH,
        max_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=device.type == "cpu",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )

    def step(phase: Phase) -> None:
        class Phased(Trainer):  # type: ignore[misc]
            def compute_loss(self, *rest: Any, **named: Any) -> Any:
                with phase("forward"):
                    return super().compute_loss(*rest, **named)

            def create_optimizer(self, *rest: Any, **named: Any) -> Any:
                made = super().create_optimizer(*rest, **named)
                made.step = _in(phase, "optimizer", made.step)
                return made

        run = Phased(model=annotated(model), args=arguments, train_dataset=rows)
        run.accelerator.backward = _in(phase, "backward", run.accelerator.backward)
        run.train()

    return step


def _in(phase: Phase, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*rest: Any, **named: Any) -> Any:
        with phase(name):
            return call(*rest, **named)

    called.__func__ = called  # type: ignore[attr-defined]  # the learning-rate scheduler asks a method for it
    called.__self__ = getattr(call, "__self__", None)  # type: ignore[attr-defined]
    return called


def data_parallel(device: torch.device) -> Step:
    """One process, a replica on each GPU, in threads."""
    model, tokens = language(device)
    parallel = nn.DataParallel(model)
    return trained(parallel, lambda: parallel(input_ids=tokens, labels=tokens, return_dict=False)[0].mean())


def sharded(device: torch.device, *, checkpointed: bool = False) -> Step:
    """FSDP2."""
    from torch.distributed.fsdp import fully_shard

    model, tokens = language(device, "llama")
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
    for layer in model.model.layers:  # type: ignore[union-attr]
        fully_shard(layer)
    fully_shard(model)
    return trained(model, lambda: model(input_ids=tokens, labels=tokens).loss)


def tensor_parallel(device: torch.device) -> Step:
    """Linear layers split over the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, x = perceptron(device), torch.randn(256, 512, device=device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    # Some parameters stay plain tensors, which a fused step over all of them would refuse.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    return trained(model, lambda: model(x).square().mean(), optimizer)


def pipeline(device: torch.device) -> Step:
    """Run a schedule of one forward and one backward in one range, with the phases of its microbatches inside."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = annotated(nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to(device))
    stage: Any = PipelineStage(part, rank, ranks, device)
    stage.forward_one_chunk = _in(phase, "forward", stage.forward_one_chunk)
    stage.backward_one_chunk = _in(phase, "backward", stage.backward_one_chunk)
    schedule = Schedule1F1B(stage, 4, loss_fn=_in(phase, "forward", nn.functional.mse_loss))
    x, optimizer = torch.randn(256, 512, device=device), torch.optim.AdamW(part.parameters())

    def step(phase: Phase) -> None:
        with phase("forward and backward"):
            schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == ranks - 1 else {}))
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return step


SINGLE: dict[str, Callable[[torch.device], Step]] = {
    "GPT-2": gpt2,
    "GPT-2 checkpointed": partial(gpt2, checkpointed="not reentrant"),
    "GPT-2 checkpointed, reentrant": partial(gpt2, checkpointed="reentrant"),
    "Llama, accumulated and clipped": llama,
    "Llama with LoRA": lora,
    "ResNet-50": partial(images, kind="resnet"),
    "ViT": partial(images, kind="vit"),
    "gradient penalty": penalty,
    "graphed callables": graphed,
    "Trainer": trainer,
}
REPLICAS: dict[str, Callable[[torch.device], Step]] = {"DataParallel": data_parallel}
PAIR: dict[str, Callable[[torch.device], Step]] = {
    "FSDP2": sharded,
    "FSDP2 checkpointed": partial(sharded, checkpointed=True),
    "tensor parallel": tensor_parallel,
    "pipeline 1F1B": pipeline,
}
SETS = {"single": SINGLE, "replicas": REPLICAS, "pair": PAIR}


def run(name: str, build: Callable[[torch.device], Step], device: torch.device) -> None:
    """Run one program in a range of its name; one that cannot run here says why and is left out."""
    torch.manual_seed(0)
    try:
        step = build(device)
    except (ImportError, RuntimeError, AttributeError) as error:
        print(f"left out: {name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return
    with opened(f"program {name}"):
        for number in range(WARM_UP + STEPS):
            with opened("warmup" if number < WARM_UP else f"step {number - WARM_UP}"):
                step(phase)
    synchronize()


def main() -> None:
    """Run a set of programs, on the CPU or on the GPU of this rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--only", default="", help="only programs with this in their names")
    parser.add_argument("--annotated", action="store_true", help="annotate the models, and open no range")
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    if options.set == "pair":
        dist.init_process_group("nccl")
    for name, build in SETS[options.set].items():
        if options.only in name:
            run(name, build, device)
    if options.set == "pair":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
