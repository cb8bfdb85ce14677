"""The commands, a line each: what `nvtx-kernels` calls them, the module that runs them, and what they do."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command: a module with `parser(prog)` and `main(arguments, prog=...)`, and what it does."""

    module: str
    what: str


COMMANDS = {
    "rank": Command("analysis.kernels", "rank the kernels of each range of a report"),
    "ask": Command("analysis.questions", "answer the assignment's profiling questions, of one report or a sweep"),
    "compare": Command("analysis.compare", "show what changed between two reports"),
    "page": Command("analysis.page", "write a report as one HTML page"),
    "timeline": Command("analysis.timeline", "write a report as a timeline for Perfetto"),
    "doctor": Command("analysis.doctor", "check whether a report is sound"),
    "ncu": Command("analysis.ncu", "profile a report's ranges with ncu, and read its counters"),
    "scrub": Command("analysis.scrub", "copy a report without private data"),
    "record": Command("profiling.record", "run a Python program and record its training steps, without nsys"),
    "run": Command("profiling.run", "run the model's steps under NVTX ranges, and record them if asked"),
    "benchmark": Command("profiling.benchmark", "time every combination of settings"),
    "nsys": Command("profiling.nsys", "capture every combination of settings under nsys"),
    "attention": Command("profiling.attention", "time attention alone, over head dimension and length"),
    "precision": Command("profiling.precision", "show what each dtype does to sums and layers"),
    "accelerate": Command("profiling.doctor.accelerate", "make annotation cheaper with a small part in C++"),
    "check-machine": Command("profiling.doctor", "check whether this machine can profile"),
}


def listing(prefix: str = "") -> str:
    """List the commands whose module begins with `prefix`, a line each."""
    rows = {name: one for name, one in COMMANDS.items() if one.module.startswith(prefix)}
    return "\n".join(f"  {name:<14} {one.what}" for name, one in rows.items())


def modules(prefix: str) -> str:
    """List the commands as `python -m` runs them, a line each."""
    rows = [one for one in COMMANDS.values() if one.module.startswith(prefix)]
    width = max(len(one.module) for one in rows)
    return "\n".join(f"  python -m {one.module:<{width}} {one.what}" for one in rows)
