"""The commands, a line each: what `nvtx-kernels` calls them, the module that runs them, and what they do."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command: a module with `parser(prog)` and `main(arguments, prog=...)`, and what it does."""

    module: str
    what: str


#: By purpose.
GROUPS: dict[str, dict[str, Command]] = {
    "look at reports": {
        "rank": Command("analysis.kernels", "rank the kernels of each range of a report"),
        "view": Command("analysis.view", "answer one question: idle, steps, fix, memory, …"),
        "page": Command("analysis.page", "write a report as one HTML page"),
        "timeline": Command("analysis.timeline", "write a report as a timeline for Perfetto"),
        "compare": Command("analysis.compare", "show what changed between two reports"),
        "summarize": Command("analysis.ranks", "write one rank's summary; rank compares a folder of them"),
    },
    "run a program": {
        "record": Command("profiling.record", "run a program and record its training steps, without nsys"),
        "try": Command("profiling.try_", "apply each known change to a program, and measure it"),
    },
    "check and share": {
        "doctor": Command("analysis.doctor", "check whether a report is sound; without one, this machine"),
        "join": Command("analysis.join", "save a report of any format as one SQLite file"),
        "scrub": Command("analysis.scrub", "copy a report without private data"),
        "mcp": Command("analysis.agent.server", "serve a folder of reports to a coding agent"),
        "skill": Command("analysis.agent.skill", "print how a coding agent uses these commands"),
    },
    "the course's model (Stanford CS336): run it and measure it": {
        "run": Command("profiling.run", "run its steps under NVTX ranges, and record them if asked"),
        "benchmark": Command("profiling.benchmark", "time every combination of settings, or a program's phases"),
        "nsys": Command("profiling.nsys", "capture every combination of settings under nsys"),
        "precision": Command("profiling.precision", "show what each dtype does to sums and layers"),
        "ask": Command("analysis.questions", "answer the assignment's profiling questions from reports"),
    },
}
COMMANDS: dict[str, Command] = {name: command for group in GROUPS.values() for name, command in group.items()}

#: The doctor of the machine, where no report is named.
MACHINE = "profiling.doctor"
#: Short forms of commands: what takes the place of the word.
SHORT = {"fix": ("view", "fix"), "open": ("page", "--open")}

#: Commands of earlier versions, and what to use instead.
REMOVED = {
    "check-machine": "nvtx-kernels doctor, without a report",
    "attention": "nvtx-kernels benchmark --attention",
    "ncu": "view kernels --kernel NAME, which ends with ncu's command line",
    "accelerate": "nothing: recording needs no part in C++ any more",
}


def listing() -> str:
    """List the commands by purpose, a line each."""
    groups = (
        "\n".join([f"{purpose}:", *(f"  {name:<14} {command.what}" for name, command in commands.items())])
        for purpose, commands in GROUPS.items()
    )
    return "\n\n".join(groups)


def modules(prefix: str) -> str:
    """List the commands whose module begins with `prefix` as `python -m` runs them, a line each."""
    rows = [command for command in COMMANDS.values() if command.module.startswith(prefix)]
    width = max(len(row.module) for row in rows)
    return "\n".join(f"  python -m {row.module:<{width}} {row.what}" for row in rows)
