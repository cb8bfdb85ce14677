"""What a capture says of itself, in one NVTX mark: settings, machine, and what each range must compute.

The mark's text is the word `MARK`, a space, and a JSON object: the settings and the environment by name, with
`size` naming the dimensions that a run changed (`small, layers 4`), `parameters`, and `flops` and `bytes` of
one step by range. A range is its path from the phase down, joined by ` > `; layers count together as `layer *`.
`model.cost` defines both figures.
"""

import json
import re
from collections import Counter

from model.config import name_of
from model.cost import cost_by_range
from profiling.environment import environment
from profiling.settings import AUTOCAST_DTYPE, Settings
from profiling.workload import Workload

MARK = "nvtx-kernels.run"
FLOPS_CONVENTION = "2 per multiply-add; softmax 5 per score forward, 4 backward; scale 1; one step"


def mark_text(workload: Workload) -> str:
    """Return the message of the mark."""
    return f"{MARK} {json.dumps(description(workload), separators=(',', ':'))}"


def description(workload: Workload) -> dict[str, object]:
    """Return what decides the run's numbers, ready for JSON."""
    settings = workload.settings
    flops, least_bytes = costs(settings)
    return {
        **settings.told(),
        "size": name_of(settings.told()),
        "parameters": workload.parameters,
        **environment(settings),
        "flops_convention": FLOPS_CONVENTION,
        "flops": flops,
        "bytes": least_bytes,
    }


def costs(settings: Settings) -> tuple[dict[str, int], dict[str, int]]:
    """Return the FLOPs and the least bytes moved of one step by range, of the phases that the mode runs."""
    flops: Counter[str] = Counter()
    least_bytes: Counter[str] = Counter()
    for path, cost in cost_by_range(
        settings.config,
        settings.batch_size,
        settings.context_length,
        attention=settings.attention,
        element_bytes=2 if settings.dtype in AUTOCAST_DTYPE else 4,
    ).items():
        if path[0] in settings.phases and not (settings.mode == "forward" and "loss" in path):
            name = re.sub(r"\blayer \d+", "layer *", " > ".join(path))
            flops[name] += cost.flops
            least_bytes[name] += cost.bytes
    return {name: count for name, count in flops.items() if count}, dict(least_bytes)
