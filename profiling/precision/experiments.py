"""Sums of a thousand hundredths, and the types that autocast chooses (Stanford CS336, assignment 2)."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import torch
from nvtx_kernels.analysis.document import Document, Table
from torch import Tensor, nn

from ..show.tables import Shown, setting, table
from ..workload.environment import versions
from ..workload.settings import AUTOCAST_DTYPE

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


def accumulate(of_sum: torch.dtype, of_addend: torch.dtype, added_as: torch.dtype | None, device: str) -> float:
    """Return 0.01 added a thousand times, in the types given."""
    total = torch.tensor(0, dtype=of_sum, device=device)
    addend = torch.tensor(ADDEND, dtype=of_addend, device=device)
    for _ in range(ADDENDS):
        total += addend if added_as is None else addend.to(added_as)
    return total.item()


def accumulation(device: str) -> Table:
    """Return the sums in every combination of types; exactly they would be 10."""
    lines = [
        {"sum": _name(of_sum), "addend": _name(of), "added_as": _name(added_as), "result": result}
        for of_sum, of, added_as in SUMS
        for result in [accumulate(of_sum, of, added_as, device)]
    ]
    columns = (
        setting("sum", "sum"), setting("addend", "addend"), setting("cast before adding", "added_as"),
        Shown("result", ("result",), "ratio", "{:.4f}".format),
        Shown("to the last digit", ("result",), "ratio", "{:.6f}".format),
    )  # fmt: skip
    title = f"{ADDEND} added {ADDENDS:,} times, exactly {ADDEND * ADDENDS:g} (one run: n = 1)"
    return table("accumulation", title, pd.DataFrame(lines), columns)


class Toy(nn.Module):
    """Two linear layers and a layer norm between them (Stanford CS336, assignment 2)."""

    def __init__(self) -> None:
        super().__init__()
        width_in, width, width_out = TOY_WIDTHS
        self.fc1 = nn.Linear(width_in, width, bias=False)
        self.ln = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, width_out, bias=False)

    def outputs(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield what each part returns, by name, up to the logits."""
        x = self.fc1(x)
        yield "output of fc1", x
        x = self.ln(torch.relu(x))
        yield "output of layer norm", x
        yield "logits", self.fc2(x)


def autocast_types(dtype: torch.dtype, device: str) -> dict[str, str]:
    """Return the type of every tensor of the toy model's forward and backward under autocast, by name."""
    torch.manual_seed(0)
    toy = Toy().to(device)
    x = torch.randn(TOY_BATCH, TOY_WIDTHS[0], device=device)
    labels = torch.zeros(TOY_BATCH, dtype=torch.long, device=device)
    with torch.autocast(torch.device(device).type, dtype):
        outputs = dict(toy.outputs(x))
        loss = nn.functional.cross_entropy(outputs["logits"], labels)
    loss.backward()  # type: ignore[no-untyped-call]
    weights = dict(toy.named_parameters())
    named: Mapping[str, Tensor | None] = {
        **{f"parameter {name}": weight for name, weight in weights.items()},
        **outputs,
        "loss": loss,
        **{f"gradient of {name}": weight.grad for name, weight in weights.items()},
    }
    return {name: "none" if tensor is None else _name(tensor.dtype) for name, tensor in named.items()}


def autocast(device: str) -> Table:
    """Return the types of the toy model's tensors under each kind of autocast."""
    types = {name: autocast_types(dtype, device) for name, dtype in AUTOCAST_DTYPE.items()}
    lines = pd.DataFrame(types).rename_axis("tensor").reset_index()
    columns = (setting("tensor", "tensor"), *(setting(f"{name} autocast", name) for name in types))
    return table("autocast", "Types under autocast (one step: n = 1)", lines, columns)


def _name(dtype: torch.dtype | None) -> str:
    return "no" if dtype is None else str(dtype).removeprefix("torch.")


def document(tables: Sequence[Table], device: str) -> Document:
    """Return the tables, with the device and versions they were computed on."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"
    heading = f"device {name}, torch {torch.__version__}, CUDA {versions()['cuda'] or 'none'}"
    about = "What autocast lowers depends on the kind of device: a layer norm on a CPU, not on a GPU."
    return Document(heading, tuple(tables), (about,))
