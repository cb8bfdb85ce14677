"""Programs as people write them, and what could be changed in each: the study of `view fix` measures both.

A program takes the set of its changes and returns a `Program`: a batch, its forward and loss, and what follows
a step. `PROGRAMS` lists them, each with its changes and the rule that would suggest each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

Changes = frozenset[str]


@dataclass
class Machine:
    """Where programs run: on a CPU all sizes are small, so that they can be tried."""

    device: str

    def size(self, on_gpu: int, on_cpu: int) -> int:
        """Return a size for this machine."""
        return on_gpu if self.device == "cuda" else on_cpu


@dataclass
class Program:
    """One program: `batch` is what its step begins with, `loss` its forward, `after` what follows the update."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    batch: Callable[[], Any]
    loss: Callable[[Any], Any]
    after: Callable[[Any], None] = field(default=lambda _: None)

    def update(self) -> None:
        """Update the parameters."""
        assert self.optimizer is not None
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        """Run one step."""
        loss = self.loss(self.batch())
        if self.optimizer is not None:
            loss.backward()
            self.update()
        self.after(loss)


class Reader:
    """Reads each step's loss, or adds it up on the GPU."""

    def __init__(self, changes: Changes) -> None:
        self.reads, self.total = "no_item" not in changes, 0.0

    def __call__(self, loss: Tensor) -> None:
        """Take one loss."""
        self.total = self.total + (loss.item() if self.reads else loss.detach())  # type: ignore[assignment]


def adamw(model: nn.Module, changes: Changes, *, foreach: bool = True) -> torch.optim.Optimizer:
    """Return AdamW: fused if that is the change."""
    how: dict[str, Any] = {"fused": True} if "fused" in changes else {"foreach": foreach}
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **how)


def precision(changes: Changes) -> None:
    """Allow TF32 in products and convolutions if that is the change."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "tf32" in changes


class Attention(nn.Module):
    """Causal attention, written out or fused."""

    def __init__(self, width: int, heads: int, *, fused: bool, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.fused, self.causal = heads, fused, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            if self.causal:
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            mixed = scores.softmax(-1) @ v
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int, heads: int, *, fused: bool, causal: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, fused=fused, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class Language(nn.Module):
    """A small language model."""

    def __init__(self, vocabulary: int, width: int, layers: int, *, fused: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*[Block(width, width // 64, fused=fused) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.norm(self.blocks(self.embedding(ids))))
        return logits


def _language(
    on: Machine, changes: Changes, sizes: tuple[int, int, int, int], *, bf16: bool, **of_adam: bool
) -> Program:
    """Return training of a language model: batch, context, width and layers."""
    precision(changes)
    batch, context, width, layers = sizes if on.device == "cuda" else (2, 16, 64, 2)
    model = Language(on.size(16_384, 100), width, layers, fused="sdpa" in changes).to(on.device)
    ids = torch.randint(0, 100, (batch, context + 1), device=on.device)

    def loss(ids: Tensor) -> Tensor:
        with torch.autocast(on.device, torch.bfloat16, enabled=bf16):
            logits = model(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    return Program(model, adamw(model, changes, **of_adam), lambda: ids, loss, Reader(changes))


def language_fp32(on: Machine, changes: Changes) -> Program:
    """Return a language model in fp32, attention written out, that reads its loss."""
    return _language(on, changes, (8, 512, 768, 8), bf16=False)


def language_bf16(on: Machine, changes: Changes) -> Program:
    """Return a language model under bf16 autocast with a long context, attention written out."""
    return _language(on, changes, (4, 2048, 1024, 6), bf16=True)


def language_small(on: Machine, changes: Changes) -> Program:
    """Return a small one, limited by launching, with an optimizer that loops over parameters."""
    program = _language(on, changes, (2, 128, 256, 8), bf16=False, foreach=False)
    if "graphs" in changes and on.device == "cuda":
        ids = program.batch()[:, :-1]
        model = torch.cuda.make_graphed_callables(program.model, (ids,))
        every = program.batch()
        program.loss = lambda _: F.cross_entropy(model(ids).flatten(0, 1), every[:, 1:].flatten())
    return program


def mlp_fp32(on: Machine, changes: Changes) -> Program:
    """Return a wide perceptron in fp32 whose optimizer loops over its parameters."""
    precision(changes)
    width = on.size(2048, 32)
    layers = [part for _ in range(12) for part in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers).to(on.device)
    x = torch.randn(on.size(4096, 16), width, device=on.device)
    optimizer = adamw(model, changes, foreach=False)
    return Program(model, optimizer, lambda: x, lambda x: F.mse_loss(model(x), x), Reader(changes))


def mlp_compiled(on: Machine, changes: Changes) -> Program:
    """Return a compiled perceptron in fp32."""
    precision(changes)
    width = on.size(2048, 32)
    layers = [part for _ in range(4) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    model = nn.Sequential(*layers).to(on.device)
    compiled = torch.compile(model) if on.device == "cuda" else model
    x = torch.randn(on.size(8192, 16), width, device=on.device)
    return Program(model, adamw(model, changes), lambda: x, lambda x: F.mse_loss(compiled(x), x))


class Residual(nn.Module):
    """Two convolutions around which a shortcut leads."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return F.relu(x + self.convs(x))


def _images(on: Machine, width: int) -> nn.Module:
    """Return a residual network."""
    stages = [nn.Conv2d(3, width, 7, stride=4, padding=3), nn.ReLU()]
    for channels in (width, 2 * width, 4 * width):
        stages += [
            Residual(channels),
            Residual(channels),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        ]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 1000)).to(on.device)


def images(on: Machine, changes: Changes) -> Program:
    """Return training on images in fp32, copied from pageable memory."""
    precision(changes)
    model = _images(on, on.size(64, 4))
    x = torch.randn(on.size(96, 2), 3, on.size(224, 32), on.size(224, 32))
    y = torch.randint(0, 1000, (len(x),))
    pinned = "pinned" in changes and on.device == "cuda"
    x, y = (x.pin_memory(), y.pin_memory()) if pinned else (x, y)

    def batch() -> tuple[Tensor, Tensor]:
        return x.to(on.device, non_blocking=pinned), y.to(on.device, non_blocking=pinned)

    return Program(
        model, adamw(model, changes), batch, lambda pair: F.cross_entropy(model(pair[0]), pair[1]), Reader(changes)
    )


def loader(on: Machine, changes: Changes) -> Program:
    """Return training whose batches are augmented on the CPU within the step."""
    precision(changes)
    model, size = _images(on, on.size(32, 4)), on.size(128, 32)
    raw = np.random.default_rng(0).integers(0, 255, (on.size(64, 2), 3, size, size), dtype=np.uint8)

    def augmented() -> Tensor:
        flipped = raw[:, :, :, ::-1].astype(np.float32)
        return torch.from_numpy((flipped - flipped.mean()) / (flipped.std() + 1e-6))

    ready = augmented()
    pinned = "pinned" in changes and on.device == "cuda"
    ready = ready.pin_memory() if pinned else ready
    y = torch.zeros(len(raw), dtype=torch.long, device=on.device)

    def batch() -> Tensor:
        x = ready if "no_pause" in changes else augmented()
        return x.to(on.device, non_blocking=pinned)

    return Program(model, adamw(model, changes), batch, lambda x: F.cross_entropy(model(x), y), Reader(changes))


class Denoiser(nn.Module):
    """A small U-Net with attention in its middle."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.begin, self.end = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.down = nn.Sequential(Residual(width), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1))
        self.middle = nn.ModuleList([Residual(2 * width), Block(2 * width, 8, fused=True, causal=False)])
        self.up = nn.Sequential(nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), Residual(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the noise."""
        x = self.begin(x)
        low = self.middle[0](self.down(x))
        mixed = self.middle[1](low.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, low.shape[2:])
        noise: Tensor = self.end(x + self.up(mixed))
        return noise


def diffusion(on: Machine, changes: Changes) -> Program:
    """Return training of a denoiser, whose noise is made on the CPU."""
    precision(changes)
    model, x = Denoiser(on.size(128, 8)).to(on.device), torch.randn(on.size(16, 2), 4, 64, 64, device=on.device)
    generator = np.random.default_rng(0)

    def batch() -> tuple[Tensor, Tensor]:
        if "no_pause" in changes:
            return x, torch.randn_like(x)
        noise = generator.standard_normal((8, *x.shape), dtype=np.float32).mean(0)
        return x, torch.from_numpy(noise).to(on.device)

    def loss(pair: tuple[Tensor, Tensor]) -> Tensor:
        clean, noise = pair
        return F.mse_loss(model(clean + noise), noise)

    return Program(model, adamw(model, changes), batch, loss, Reader(changes))


class Experts(nn.Module):
    """A mixture of experts that asks the GPU for each expert's rows, or computes all experts on all rows."""

    def __init__(self, width: int, experts: int, *, asks: bool) -> None:
        super().__init__()
        self.router, self.asks = nn.Linear(width, experts), asks
        self.experts = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(experts)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the experts' outputs, weighted."""
        weight, chosen = self.router(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        per_expert = len(x) // len(self.experts)
        order = chosen.argsort()
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0] if self.asks else order[number * per_expert :][:per_expert]
            result = result.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return x + result


def experts(on: Machine, changes: Changes) -> Program:
    """Return a mixture of experts in fp32: each forward waits for the number of rows of each expert."""
    precision(changes)
    width = on.size(1024, 32)
    asks = "no_reads" not in changes
    model = nn.Sequential(*[Experts(width, 4, asks=asks) for _ in range(4)]).to(on.device)
    x = torch.randn(on.size(8192, 64), width, device=on.device)
    return Program(model, adamw(model, changes), lambda: x, lambda x: F.mse_loss(model(x), x))


class Recurrent(nn.Module):
    """A cell in a loop over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits after the last moment."""
        state = torch.zeros_like(x[0])
        for moment in x:
            state = self.cell(moment, state)
        logits: Tensor = self.head(state)
        return logits


def recurrent(on: Machine, changes: Changes) -> Program:
    """Return training of a recurrent cell, limited by launching."""
    precision(changes)
    width = on.size(256, 16)
    model = Recurrent(width).to(on.device)
    x, y = (
        torch.randn(on.size(48, 4), 64, width, device=on.device),
        torch.zeros(64, dtype=torch.long, device=on.device),
    )
    graphed = "graphs" in changes and on.device == "cuda"
    called = torch.cuda.make_graphed_callables(model, (x,)) if graphed else model
    return Program(
        model, adamw(model, changes), lambda: x, lambda x: F.cross_entropy(called(x), y), Reader(changes)
    )


class Recommender(nn.Module):
    """A large table of embeddings under a perceptron."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width)
        self.mlp = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.mlp(self.table(ids))
        return scores


def recommender(on: Machine, changes: Changes) -> Program:
    """Return training of a recommender, whose ids are drawn on the CPU."""
    precision(changes)
    rows, generator = on.size(1_000_000, 1000), np.random.default_rng(0)
    model = Recommender(rows, on.size(128, 16)).to(on.device)

    def drawn() -> Tensor:
        return torch.from_numpy(generator.zipf(1.3, (on.size(16_384, 32), 20)) % rows)

    ready = drawn().to(on.device)
    return Program(
        model,
        adamw(model, changes),
        lambda: ready if "no_pause" in changes else drawn().to(on.device),
        lambda ids: model(ids).square().mean(),
    )


def many_tensors(on: Machine, changes: Changes) -> Program:
    """Return a network of many small parameters with SGD that loops over them."""
    precision(changes)
    width = on.size(512, 16)
    parts = [part for _ in range(60) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())]
    model = nn.Sequential(*parts).to(on.device)
    how: dict[str, Any] = {"fused": True} if "fused" in changes else {"foreach": False}
    if on.device == "cpu":
        how = {}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, **how)
    x = torch.randn(on.size(2048, 16), width, device=on.device)
    return Program(model, optimizer, lambda: x, lambda x: F.mse_loss(model(x), x), Reader(changes))


def decoding(on: Machine, changes: Changes) -> Program:
    """Return decoding one token at a time, which reads each token to see whether it is the last."""
    precision(changes)
    width, batch = on.size(1024, 64), 8
    model = Language(on.size(16_384, 100), width, on.size(8, 2), fused=True).to(on.device).bfloat16().eval()
    prompt = torch.randint(0, 100, (batch, 64), device=on.device)
    with torch.no_grad():
        called: Callable[[Tensor], Tensor] = model
        if "graphs" in changes and on.device == "cuda":
            called = torch.cuda.make_graphed_callables(model, (prompt,))

    def loss(ids: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(8):
                token = called(ids)[:, -1].argmax(-1)
                ids = torch.cat([ids[:, 1:], token[:, None]], 1)
                if "no_item" not in changes and bool((token == -1).all()):
                    break
        return ids

    return Program(model, None, lambda: prompt, loss)


class Viewer(nn.Module):
    """A vision transformer."""

    def __init__(self, width: int, layers: int, *, fused: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        heads = max(width // 64, 1)
        self.blocks = nn.Sequential(*[Block(width, heads, fused=fused, causal=False) for _ in range(layers)])
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return logits


def viewing(on: Machine, changes: Changes) -> Program:
    """Return inference of a vision transformer in fp32, attention written out, from pageable memory."""
    precision(changes)
    size = on.size(224, 32)
    model = Viewer(on.size(768, 64), on.size(8, 2), fused="sdpa" in changes).to(on.device).eval()
    x = torch.randn(on.size(64, 2), 3, size, size)
    pinned = "pinned" in changes and on.device == "cuda"
    x = x.pin_memory() if pinned else x

    def loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x).argmax(-1)

    return Program(model, None, lambda: x.to(on.device, non_blocking=pinned), loss)


def healthy(on: Machine, changes: Changes) -> Program:
    """Return training that follows all recipes, bf16, fused attention and optimizer, and reads its loss."""
    return _language(on, changes | {"sdpa", "fused"}, (8, 1024, 1024, 8), bf16=True)


def healthy_viewing(on: Machine, changes: Changes) -> Program:
    """Return inference that follows all recipes: bf16, fused attention, inputs on the GPU."""
    precision(changes)
    size = on.size(224, 32)
    model = Viewer(on.size(768, 64), on.size(12, 2), fused=True).to(on.device).bfloat16().eval()
    x = torch.randn(on.size(128, 2), 3, size, size, device=on.device, dtype=torch.bfloat16)

    def loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x)

    return Program(model, None, lambda: x, loss)


@dataclass(frozen=True)
class Case:
    """A program, with its changes and the rule that would suggest each."""

    make: Callable[[Machine, Changes], Program]
    changes: dict[str, str]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.make.__name__


_TF32, _FUSED, _SDPA, _ITEM = (
    {"tf32": "fp32"},
    {"fused": "optimizer"},
    {"sdpa": "attention"},
    {"no_item": "scalar_read"},
)
_PINNED, _PAUSE, _GRAPHS = {"pinned": "pageable_copy"}, {"no_pause": "host_pause"}, {"graphs": "launching"}
_READS = {"no_reads": "forward_read"}

PROGRAMS: Iterable[Case] = (
    Case(language_fp32, _TF32 | _SDPA | _FUSED | _ITEM),
    Case(language_bf16, _SDPA | _FUSED | _ITEM),
    Case(language_small, _GRAPHS | _FUSED | _TF32),
    Case(mlp_fp32, _TF32 | _FUSED | _ITEM),
    Case(mlp_compiled, _TF32 | _FUSED),
    Case(images, _TF32 | _PINNED | _FUSED),
    Case(loader, _PAUSE | _PINNED | _ITEM),
    Case(diffusion, _PAUSE | _TF32 | _FUSED),
    Case(experts, _READS | _TF32),
    Case(recurrent, _GRAPHS | _FUSED),
    Case(recommender, _PAUSE | _FUSED),
    Case(many_tensors, _FUSED | _TF32),
    Case(decoding, _ITEM | _GRAPHS),
    Case(viewing, _TF32 | _SDPA | _PINNED),
    Case(healthy, _TF32 | _ITEM),
    Case(healthy_viewing, _TF32),
)


def made(name: str, changes: Iterable[str], device: str) -> Program:
    """Build a program; raises KeyError for one that is not listed."""
    case = {case.name: case for case in PROGRAMS}[name]
    torch.manual_seed(0)
    return case.make(Machine(device), frozenset(changes))


def synchronize(device: str) -> None:
    """Wait for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def now_ns() -> int:
    """Return the host's clock."""
    return time.perf_counter_ns()
