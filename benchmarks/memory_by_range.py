"""Hold memory by range against PyTorch's own figures, to the byte: our model and GPT-2, recorded and under nsys.

python benchmarks/memory_by_range.py OUT                # one GPU with nsys, about 80 s
python benchmarks/memory_by_range.py OUT --device cpu   # try it: tiny models, recorded, without figures to compare

Of the measured steps: the peak of `--view memory` and torch.cuda.max_memory_allocated; the sums of what all ranges
allocated and freed, and torch.cuda.memory_stats; and for every call of every module what its range allocated and
freed in forward, and the same statistics read by hooks around the module.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.memory import memory
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling.annotate import range_stack
from nvtx_kernels.profiling.sweep.nsight import MEASURED_STEPS, export_command, find_nsys, profile_command
from torch import nn

import nvtx_kernels as nk
from benchmarks.efficiency import run

ROOT = Path(__file__).resolve().parents[1]
STEPS = 3
BATCH = {"cuda": (4, 512), "cpu": (1, 16)}
GPT2 = {"cuda": {}, "cpu": {"n_embd": 32, "n_head": 2, "n_layer": 2, "vocab_size": 64, "n_positions": 16}}
#: Figures of the allocator: what it handed out and took back since the process began.
STATISTICS = {"allocated": "allocated_bytes.all.allocated", "freed": "allocated_bytes.all.freed"}
SEPARATOR = " > "


def our_model(device: str) -> tuple[nn.Module, Any]:
    """Return our model, and a function that returns its loss."""
    config = CONFIGS["small" if device == "cuda" else "tiny"]
    with torch.device(device):
        model = TransformerLM(config, BATCH[device][1])
        tokens = torch.randint(config.vocabulary, BATCH[device])
    return model, lambda: cross_entropy(model(tokens), tokens)


def gpt2(device: str) -> tuple[nn.Module, Any]:
    """Return HF's GPT-2 with random weights, and a function that returns its loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**GPT2[device], bos_token_id=0, eos_token_id=0)
    with torch.device(device):
        model = GPT2LMHeadModel(config)
        ids = torch.randint(config.vocab_size, BATCH[device])
    return model, lambda: model(input_ids=ids, labels=ids, use_cache=False).loss


PROGRAMS = {"ours": our_model, "GPT-2": gpt2}


def statistics() -> dict[str, int]:
    """Return what the allocator has handed out and taken back so far; nothing without a GPU."""
    if not torch.cuda.is_available():
        return dict.fromkeys(STATISTICS, 0)
    found = torch.cuda.memory_stats()
    return {name: found[key] for name, key in STATISTICS.items()}


def hooked(model: nn.Module, sums: dict[str, dict[str, int]]) -> None:
    """Add up by the path of ranges what the allocator did during each module's forward."""
    began: list[dict[str, int]] = []

    def before(*_: object) -> None:
        began.append(statistics())

    def after(*_: object) -> None:
        first, last = began.pop(), statistics()
        names = [one.label.name for one in range_stack.stack()]
        path = SEPARATOR.join(names[names.index("step") + 1 :]) if "step" in names else ""
        for name in STATISTICS:
            sums[path][name] += last[name] - first[name]

    for module in model.modules():
        module.register_forward_pre_hook(before, prepend=True)
        module.register_forward_hook(after)


def train(name: str, device: str, report: Path) -> None:
    """Profile some steps, and write PyTorch's figures of them next to the report."""
    torch.manual_seed(0)
    model, loss = PROGRAMS[name](device)
    optimizer = torch.optim.AdamW(model.parameters())
    sums: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(STATISTICS, 0))

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    hooked(model, sums)
    figures: dict[str, int] = {}
    with nk.profile(model, optimizer, report, warmup=0, steps=STEPS, memory=True):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        first = statistics()
        for number in range(STEPS):
            if (
                number == STEPS - 1
            ):  # the profile ends with its last step, and what it frees then is not in the report
                optimizer.register_step_post_hook(lambda *_: figures.update(ended(first)))
            step()
    written = {"figures": figures, "modules": sums}
    report.with_suffix(".json").write_text(json.dumps(written))


def ended(first: dict[str, int]) -> dict[str, int]:
    """Return the allocator's figures of the measured steps, when the last optimizer has stepped."""
    changed = {name: value - first[name] for name, value in statistics().items()}
    on_gpu = torch.cuda.is_available()
    now = (
        {"peak": torch.cuda.max_memory_allocated(), "in use after": torch.cuda.memory_allocated()}
        if on_gpu
        else {}
    )
    return {**now, **changed}


def compared(program: str, tool: str, report: Path) -> bool:
    """Print figures of a report next to PyTorch's, and return whether all are equal."""
    written = json.loads(report.with_suffix(".json").read_text())
    found = memory(attribute(read(report)))
    if found is None:
        print(f"{program:<6} {tool:<9} the report has no allocations")
        return False
    (balance,) = found.balances
    top = [row for row in found.ranges if len(row.path) < 2]
    ours = {
        "peak": found.peaks[0].held_bytes,
        "in use after": balance.after_bytes,
        "allocated": sum(row.allocated_bytes for row in top),
        "freed": sum(row.freed_bytes for row in top),
    }
    for name, value in ours.items():
        line(program, tool, name, value, written["figures"].get(name))
    line(program, tool, "unseen", balance.unseen_bytes, 0)
    by_path = rows_by_path(found.ranges)
    differences = [
        abs(by_path.get(path, {}).get(name, 0) - value)
        for path, sums in written["modules"].items()
        for name, value in sums.items()
    ]
    missing = [path for path in written["modules"] if path not in by_path]
    print(f"{program:<6} {tool:<9} {len(written['modules'])} modules' forwards, allocated and freed: "
          f"{sum(map(bool, differences))} differ, by {max(differences, default=0):,} B at most; "
          f"{len(missing)} not in the report {missing[:3]}")  # fmt: skip
    return ours == {name: written["figures"].get(name) for name in ours} and not any(differences) and not missing


def rows_by_path(rows: Any) -> dict[str, dict[str, int]]:
    """Return what forward's ranges allocated and freed by their path below the step."""
    found = {}
    for row in rows:
        if row.phase == "forward" and "step" in row.path:
            path = SEPARATOR.join(row.path[row.path.index("step") + 1 :])
            found[path] = {"allocated": row.allocated_bytes, "freed": row.freed_bytes}
    return found


def line(program: str, tool: str, name: str, ours: int, theirs: int | None) -> None:
    """Print a figure by us, by PyTorch, and their difference, bytes."""
    other = "" if theirs is None else f"{theirs:>18,} {ours - theirs:>12,}"
    print(f"{program:<6} {tool:<9} {name:<13} {ours:>18,} {other}")


def recorded(program: str, tool: str, options: argparse.Namespace) -> Path:
    """Run a program with a tool, and return its report."""
    report = options.out / f"{program}_{tool}.sqlite"
    words = [
        sys.executable,
        str(Path(__file__).resolve()),
        str(report),
        "--device",
        options.device,
        "--train",
        program,
    ]
    if tool == "recorder":
        run(words)
        return report
    nsys, capture = find_nsys(), report.with_suffix(".nsys-rep")
    run(profile_command(nsys, words, capture, flags=MEASURED_STEPS["cuda"]))
    run(export_command(nsys, capture))
    return report


def main() -> int:
    """Record with both tools, and print; return 1 where a figure differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out = options.out.resolve()
    if options.train:
        train(options.train, options.device, options.out)
        return 0
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    programs = [name for name in PROGRAMS if name != "GPT-2" or find_spec("transformers")]
    print(f"{'model':<6} {'tool':<9} {'figure':<13} {'ours, B':>18} {'PyTorch, B':>18} {'difference':>12}")
    tools = ("recorder", "nsys") if options.device == "cuda" else ("recorder",)
    equal = [compared(name, tool, recorded(name, tool, options)) for name in programs for tool in tools]
    print(f"{time.monotonic() - began:.0f} s in total")
    return int(not all(equal) and options.device == "cuda")


if __name__ == "__main__":
    sys.exit(main())
