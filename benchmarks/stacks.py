"""How much of the kernel time of PyTorch traces lies below a module, and what reading them costs.

    python -m benchmarks.stacks TRACE …            # a row a trace
    python -m benchmarks.stacks --tile 40 TRACE OUT  # TRACE forty times in a row, to measure large ones

Each trace is read and attributed in a process of its own. With PYTHONPATH set to another checkout and this file
called by its path, that one is measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

HEADER = "| trace | kernels | below a module | forward | backward | optimizer | serving | no phase | CPU s | MiB |"
COLUMNS = "module", "forward", "backward", "optimizer", "serving", "other"


def measured(path: Path) -> str:
    """Return the row of a trace."""
    import numpy as np
    from nvtx_kernels.analysis.attribution.causes import attribute
    from nvtx_kernels.analysis.readers import read
    from nvtx_kernels.analysis.trace import KERNEL
    from nvtx_kernels.analysis.vocabulary import PHASES

    began = time.process_time()
    attribution = attribute(read(path))
    seconds = time.process_time() - began
    work, forest = attribution.trace.work, attribution.forest
    kernels = np.flatnonzero(work.kind == KERNEL)
    duration = work.duration_ns[kernels]
    in_module = forest.below(attribution.ranges.of_model[forest.range])[attribution.node[kernels]]
    total = max(1, int(duration.sum()))
    shares = [duration[in_module].sum() / total]
    shares += [duration[attribution.phase[kernels] == PHASES.index(phase)].sum() / total for phase in PHASES]
    named = dict(zip(["module", *PHASES], shares, strict=True))
    named["serving"] = sum(share for phase, share in named.items() if phase not in COLUMNS)
    columns = [f"{named[name]:.1%}" for name in COLUMNS]
    mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return f"| {path.name} | {len(kernels):,} | {' | '.join(columns)} | {seconds:.2f} | {mebibytes} |"


def tile(source: Path, copies: int, into: Path) -> None:
    """Write a trace that has another one several times, with ids of its own each time."""
    opened = gzip.open if source.suffix == ".gz" else open
    with opened(source, "rt", encoding="utf-8") as file:
        content = json.load(file)
    events = content.pop("traceEvents")
    timed = [event for event in events if isinstance(event.get("ts"), int | float) and event.get("ph") != "M"]
    others = [event for event in events if event.get("ph") == "M"]
    first = min(event["ts"] for event in timed if event["ts"])
    period = max(event["ts"] + event.get("dur", 0) for event in timed) - first + 1000
    ids = ("correlation", "External id", "external id", "Sequence number")
    largest = {
        key: 1 + max((a.get(key) or 0 for e in timed if (a := e.get("args"))), default=0) for key in ids[:3]
    }
    largest["Sequence number"] = 1 << 20
    flows = 1 + max((event["id"] for event in timed if isinstance(event.get("id"), int)), default=0)
    with into.open("w", encoding="utf-8") as out:
        out.write(json.dumps(content)[:-1] + ',"traceEvents":[' + ",".join(map(json.dumps, others)))
        for copy in range(copies):
            for event in timed:
                moved = event | {"ts": round(event["ts"] + copy * period, 3)}
                if isinstance(event.get("id"), int):
                    moved["id"] = event["id"] + copy * flows
                if args := event.get("args"):
                    numbered = {
                        key: args[key] + copy * largest[key] for key in ids if isinstance(args.get(key), int)
                    }
                    moved["args"] = args | numbered
                out.write(",\n" + json.dumps(moved))
        out.write("]}")


def main() -> None:
    """Print the rows of traces, or write one trace several times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--tile", type=int, metavar="COPIES")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tile:
        tile(options.traces[0], options.tile, options.traces[1])
    elif options.one:
        print(measured(options.traces[0]))
    else:
        print(HEADER, "|---" + "|---:" * 9 + "|", sep="\n", flush=True)
        for path in options.traces:
            command = [sys.executable, __file__, "--one", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            last = (done.stdout or done.stderr).strip().splitlines()[-1]
            print(last if done.returncode == 0 else f"| {path.name} | {last} |", flush=True)


if __name__ == "__main__":
    main()
