"""What ranking a PyTorch profiler trace takes, by its size: plain and as gzip.

python benchmarks/traces.py --megabytes 50 1000
python benchmarks/traces.py REAL.pt.trace.json --megabytes 1000

Without a trace, a training step of the smallest model is recorded here: on a GPU if there is one. The trace is
repeated in time, as it is written, until it has the wanted size; times, correlation ids, external ids, flows and
sequence numbers are shifted. Every measurement is a whole command in a fresh process.
"""

import argparse
import gzip
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.analysis.readers.chrome_events import opened
from nvtx_kernels.analysis.support.cores import cores

from benchmarks.attribution import RANK, apart, measured

EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
SHIFTED = re.compile(r'("(?:ts|correlation|External id|external id|id|Sequence number)"\s*:\s*)(\d+(?:\.\d+)?)')


def record(out: Path) -> None:
    """Record two training steps of the smallest model with torch.profiler."""
    import torch
    from nvtx_kernels.model.config import CONFIGS
    from nvtx_kernels.model.transformer import TransformerLM
    from torch.profiler import profile

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = TransformerLM(CONFIGS["small"], 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(1, 64, dtype=torch.long, device=device)
    with profile() as profiler:
        for _ in range(2):
            model(ids).float().logsumexp(-1).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    profiler.export_chrome_trace(str(out))


def repeat(source: Path, megabytes: int, out: Path) -> int:
    """Repeat a trace in time until it has this size; return its number of timed events."""
    with opened(source) as file:
        text = file.read().decode("utf-8", "replace")
    begins, ends = EVENTS.search(text).end(), text.rindex("]")
    pieces = SHIFTED.split(text[begins:ends])
    fields = list(zip(pieces[1::3], pieces[2::3], strict=True))
    keys = ("ts", "correlation", "xternal id", '"id"', "Sequence number")
    numbers = [(key, [value for field, value in fields if key in field]) for key in keys]
    by = {key: max(map(_thousandths, found), default=0) + 1000 for key, found in numbers if key != "ts"}
    times = sorted(map(_thousandths, numbers[0][1]))
    times = [time for time in times if time > times[len(times) // 2] // 2]  # metadata is at 0
    by["ts"] = times[-1] - times[0] + 10**6
    copies = max(1, round(megabytes * 1e6 / len(text)))
    with out.open("w") as file:
        file.write(text[:begins])
        for copy in range(copies):
            file.write(("," if copy else "") + _shifted(pieces, by, copy))
        file.write(text[ends:])
    return copies * len(numbers[0][1])


def _shifted(pieces: list[str], by: dict[str, int], copy: int) -> str:
    new = pieces.copy()
    for at in range(1, len(pieces), 3):
        step = next((by[key] for key in by if key in pieces[at]), 0)
        if step and pieces[at + 1] != "0":
            number = _thousandths(pieces[at + 1]) + step * copy
            new[at + 1] = f"{number // 1000}.{number % 1000:03d}" if "." in pieces[at + 1] else str(number // 1000)
    return "".join(new)


def _thousandths(number: str) -> int:
    whole, _, fraction = number.partition(".")
    return int(whole) * 1000 + int((fraction + "000")[:3])


def main() -> None:
    """Print one line per size and packing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[50, 1000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the big traces are made (a temporary folder)")
    options = parser.parse_args()
    print(f"{cores()} cores\nevents | format | MB | s | CPU s | peak MiB | MB of text per CPU s")
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        source = options.source or Path(place) / "one.pt.trace.json"
        if not options.source:
            apart(record, source)
        for megabytes in options.megabytes:
            plain = Path(place) / "big.pt.trace.json"
            events = apart(repeat, source, megabytes, plain)
            packed = plain.with_name(f"{plain.name}.gz")
            with plain.open("rb") as text, gzip.open(packed, "wb", compresslevel=1) as file:
                shutil.copyfileobj(text, file, 1 << 20)
            for name, trace in {"plain": plain, "gzip": packed}.items():
                command = [*RANK, str(trace)]
                wall, cpu, peak = min((measured(command) for _ in range(options.rounds)), key=lambda one: one[1])
                size, rate = trace.stat().st_size / 1e6, plain.stat().st_size / 1e6 / cpu
                print(
                    f"{events:,} | {name} | {size:,.0f} | {wall:.1f} | {cpu:.1f} | {peak:,} | {rate:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
