"""Experiments on precision: sums of hundredths, the types that autocast chooses, layer norm in half precision.

The first two are of the course (Stanford CS336, assignment 2); the third shows why autocast keeps a layer norm in
FP32 on a GPU, and what bfloat16 changes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from nvtx_kernels.analysis.document import Document, Table
from torch import Tensor, nn

from ..machine import versions
from .settings import AUTOCAST_DTYPE
from .table import Shown, number, of_frame, setting

ADDENDS = 1000
ADDEND = 0.01
# The type of the sum, of each addend, and what an addend is turned into before it is added.
SUMS: Sequence[tuple[torch.dtype, torch.dtype, torch.dtype | None]] = (
    (torch.float32, torch.float32, None),
    (torch.float16, torch.float16, None),
    (torch.float32, torch.float16, None),
    (torch.float32, torch.float16, torch.float32),
)
TOY_WIDTHS = (20, 10, 5)
TOY_BATCH = 8
# Rows that a layer norm meets, by their mean and standard deviation.
NORM_WIDTH = 4096
NORM_ROWS = {"ordinary": (0.0, 1.0), "large": (0.0, 300.0), "far from zero": (100.0, 0.1)}
# A variance that is off by more than this is counted as wrong.
TOLERANCE = 0.05


def accumulation(device: str) -> Table:
    """Return the sums in every combination of types; exactly they would be 10."""
    lines = []
    for of_sum, of_addend, added_as in SUMS:
        total = torch.tensor(0, dtype=of_sum, device=device)
        addend = torch.tensor(ADDEND, dtype=of_addend, device=device)
        for _ in range(ADDENDS):
            total += addend if added_as is None else addend.to(added_as)
        types = {"sum": _name(of_sum), "addend": _name(of_addend), "added_as": _name(added_as)}
        lines.append({**types, "result": total.item()})
    columns = (
        setting("sum", "sum"),
        setting("addend", "addend"),
        setting("cast before adding", "added_as"),
        Shown("result", "ratio", lambda line: f"{line['result']:.4f}"),
        Shown("to the last digit", "ratio", lambda line: f"{line['result']:.6f}"),
    )
    title = f"{ADDEND} added {ADDENDS:,} times, exactly {ADDEND * ADDENDS:g} (one run: n = 1)"
    return of_frame("accumulation", title, pd.DataFrame(lines), columns)


def autocast_types(dtype: torch.dtype, device: str) -> dict[str, str]:
    """Return the type of every tensor of a toy model's forward and backward under autocast, by name.

    It is two linear layers and a layer norm between them (Stanford CS336, assignment 2).
    """
    width_in, width, width_out = TOY_WIDTHS
    toy = nn.ModuleDict({"fc1": nn.Linear(width_in, width, bias=False), "ln": nn.LayerNorm(width)})
    toy["fc2"] = nn.Linear(width, width_out, bias=False)
    weights = dict(toy.to(device).named_parameters())
    labels = torch.zeros(TOY_BATCH, dtype=torch.long, device=device)
    with torch.autocast(torch.device(device).type, dtype):
        projected = toy["fc1"](torch.ones(TOY_BATCH, width_in, device=device))
        normed = toy["ln"](torch.relu(projected))
        logits = toy["fc2"](normed)
        loss = nn.functional.cross_entropy(logits, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    tensors: Mapping[str, Tensor | None] = {
        **{f"parameter {name}": weight for name, weight in weights.items()},
        "output of fc1": projected,
        "output of layer norm": normed,
        "logits": logits,
        "loss": loss,
        **{f"gradient of {name}": weight.grad for name, weight in weights.items()},
    }
    return {name: "none" if tensor is None else _name(tensor.dtype) for name, tensor in tensors.items()}


def autocast(device: str) -> Table:
    """Return the types of the toy model's tensors under each kind of autocast."""
    types = {name: autocast_types(dtype, device) for name, dtype in AUTOCAST_DTYPE.items()}
    lines = pd.DataFrame(types).rename_axis("tensor").reset_index()
    columns = (setting("tensor", "tensor"), *(setting(f"{name} autocast", name) for name in types))
    return of_frame("autocast", "Types under autocast (one step: n = 1)", lines, columns)


def layer_norm(device: str) -> Table:
    """Return the variance of several rows in half precision, each with what becomes of the normalized row.

    A layer norm rounds, centres, squares and sums; here the sum is kept in its own type, added one after another,
    and in FP32, as PyTorch's kernels keep it.
    """
    torch.manual_seed(0)
    noise = torch.randn(NORM_WIDTH, dtype=torch.float64)
    noise = ((noise - noise.mean()) / noise.std(unbiased=False)).to(device)
    lines = []
    for name, (mean, std) in NORM_ROWS.items():
        for dtype in (torch.float16, torch.bfloat16):
            centred = (mean + std * noise).to(dtype)
            centred = centred - centred.mean()
            squares = centred * centred
            total = torch.zeros((), dtype=dtype, device=device)
            for square in squares:
                total += square
            line = {
                "row": name,
                "mean": mean,
                "std": std,
                "dtype": _name(dtype),
                "variance": std**2,
                "largest_square": squares.max().item(),
                "summed_in_dtype": total.item() / NORM_WIDTH,
                "summed_in_fp32": squares.float().mean().item(),
            }
            lines.append({**line, "effect": effect_on_norm(line, dtype)})
    columns = (
        setting("row", "row"),
        number("mean", "mean", "ratio"),
        number("std", "std", "ratio"),
        setting("dtype", "dtype"),
        number("largest square", "largest_square", "ratio"),
        number("variance", "variance", "ratio"),
        number("summed in dtype", "summed_in_dtype", "ratio"),
        number("summed in FP32", "summed_in_fp32", "ratio"),
        Shown("effect", "prose", lambda line: line["effect"]),
    )
    title = f"The variance in a layer norm over {NORM_WIDTH:,} values, in half precision (one row each: n = 1)"
    return of_frame("layer_norm", title, pd.DataFrame(lines), columns)


def effect_on_norm(line: Mapping[str, Any], dtype: torch.dtype) -> str:
    """Return a sentence on the effect of a computed variance on the normalized row, and its cause."""
    limits = torch.finfo(dtype)
    exact = line["variance"]
    if line["largest_square"] == float("inf"):
        return f"squares exceed {limits.max:,.0f}: the row becomes 0"
    if abs(line["summed_in_fp32"] / exact - 1) > TOLERANCE:
        step = limits.eps * 2 ** math.floor(math.log2(abs(line["mean"])))
        return f"values near {line['mean']:g} are rounded in steps of {step:g}"
    if abs(line["summed_in_dtype"] / exact - 1) > TOLERANCE:
        return "its own sum stops growing; fine in FP32"
    return "fine"


AUTOCAST_NOTE = "What autocast lowers depends on the kind of device: a layer norm on a CPU, not on a GPU."
NORM_NOTE = (
    "A layer norm is sensitive in float16 for its range (squares over 65,504) and for its long sum. bfloat16 has "
    "the range of FP32, so nothing overflows, but 8 bits of precision instead of 11: rounding and sums get worse. "
    "Both keep their sums in FP32. On a GPU, autocast computes layer norms in FP32 altogether."
)
# Each experiment, and what must be known with its numbers.
EXPERIMENTS: Mapping[str, tuple[Callable[[str], Table], str]] = {
    "accumulation": (accumulation, ""),
    "autocast": (autocast, AUTOCAST_NOTE),
    "layer-norm": (layer_norm, NORM_NOTE),
}


def document(names: Sequence[str], device: str) -> Document:
    """Return the experiments of these names, with the device and versions they were computed on."""
    device_name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    heading = f"device {device_name}, torch {torch.__version__}, CUDA {versions()['cuda'] or 'none'}"
    tables, notes = zip(*(EXPERIMENTS[name] for name in names), strict=True)
    return Document(heading, tuple(make_table(device) for make_table in tables), tuple(filter(None, notes)))


def _name(dtype: torch.dtype | None) -> str:
    return "no" if dtype is None else str(dtype).removeprefix("torch.")
