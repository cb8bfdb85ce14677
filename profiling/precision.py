"""Two experiments on precision: sums of a thousand hundredths, and the types that autocast chooses.

python -m profiling.precision
python -m profiling.precision --device cuda --format markdown
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from profiling import table_formats
from profiling.environment import versions
from profiling.settings import AUTOCAST_DTYPE, SettingsError, default_device, with_defaults
from profiling.tables import Column, Table

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
        Column("sum", ("sum",), str),
        Column("addend", ("addend",), str),
        Column("cast before adding", ("added_as",), str),
        Column("result", ("result",), "{:.4f}".format),
        Column("to the last digit", ("result",), "{:.6f}".format),
    )
    title = f"{ADDEND} added {ADDENDS:,} times, exactly {ADDEND * ADDENDS:g} (one run: n = 1)"
    return Table(title, pd.DataFrame(lines), columns)


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


def autocast_report(device: str) -> Table:
    """Return the types of the toy model's tensors under each kind of autocast."""
    types = {name: autocast_types(dtype, device) for name, dtype in AUTOCAST_DTYPE.items()}
    lines = pd.DataFrame(types).rename_axis("tensor").reset_index()
    columns = [Column(f"{name} autocast", (name,), str) for name in types]
    return Table("Types under autocast (one step: n = 1)", lines, (Column("tensor", ("tensor",), str), *columns))


def _name(dtype: torch.dtype | None) -> str:
    return "no" if dtype is None else str(dtype).removeprefix("torch.")


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    description = "Compute the accumulation experiment, and the types that autocast gives a toy model."
    this = argparse.ArgumentParser("python -m profiling.precision", description=description)
    this.add_argument(
        "--device", default=default_device(), help="cuda, cuda:1, cpu (default: cuda where there is one)"
    )
    this.add_argument("--format", default="table", choices=table_formats.FORMATS, help="default table")
    this.add_argument("--table", choices=TABLES, help="only this one, as csv needs it")
    return this


TABLES = {"accumulation": accumulation, "autocast": autocast_report}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    this = parser()
    asked = this.parse_args(arguments)
    try:
        with_defaults({"device": asked.device})
        tables = [make(asked.device) for name, make in TABLES.items() if asked.table in (None, name)]
        about = [
            f"device {_device_name(asked.device)}, torch {torch.__version__}, CUDA {versions()['cuda'] or 'none'}",
            "What autocast lowers depends on the kind of device: a layer norm on a CPU, not on a GPU.",
        ]
        sys.stdout.write(table_formats.FORMATS[asked.format](tables, about))
    except (SettingsError, table_formats.FormatError) as error:
        this.error(str(error))
    return 0


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


if __name__ == "__main__":
    sys.exit(main())
