"""Which GPU kernels did each annotated part of a model spend its time in: forward, backward, optimizer.

>>> import nvtx_kernels as nk
>>> with nk.profile(model, optimizer, "report.sqlite") as p:
...     for batch in data:
...         train_step(batch)
>>> p.show()
>>> nk.rank("report.sqlite").kernels

Everything here is loaded when it is first used. Reading and ranking need no PyTorch; recording and annotating do.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not Path(__file__).with_name("analysis").exists():  # in a checkout, its packages are the folders next to it
    __path__.append(str(Path(__file__).resolve().parents[1]))

#: The NVTX domain of our ranges: recording writes them into it, and reading knows them by it.
DOMAIN = "nvtx-kernels"
#: "NVTK" in the header of our SQLite files: recording and saving write it, and reading knows them by it.
APPLICATION_ID = 0x4E56544B
#: "NVTS" in that of a summary of one rank's report.
SUMMARY_ID = 0x4E565453

if TYPE_CHECKING:
    from .analysis import rank, read
    from .analysis.frames.views import (
        agreement,
        attention,
        communication,
        compare,
        efficiency,
        fixes,
        idle,
        kernels,
        memory,
        steps,
    )
    from .profiled import profile
    from .profiling import annotate
    from .profiling.annotate import annotate_modules
    from .profiling.annotate.call_order import names
    from .profiling.recorder import record
    from .profiling.recorder.seen import Reader
    from .profiling.training import integrations

_VIEWS = "agreement attention communication compare efficiency fixes idle kernels memory steps"
#: Each public name and the module that has it; those of MODULES are modules themselves.
PUBLIC = {
    "annotate": "profiling",
    "annotate_modules": "profiling.annotate",
    "integrations": "profiling.training",
    "names": "profiling.annotate.call_order",
    "profile": "profiled",
    "rank": "analysis",
    "read": "analysis",
    "record": "profiling.recorder",
    **dict.fromkeys(_VIEWS.split(), "analysis.frames.views"),
}
MODULES = ("annotate", "integrations")

__all__ = [
    "agreement",
    "annotate",
    "annotate_modules",
    "attention",
    "communication",
    "compare",
    "efficiency",
    "fixes",
    "idle",
    "integrations",
    "kernels",
    "memory",
    "names",
    "profile",
    "rank",
    "read",
    "record",
    "steps",
]


def session_reader() -> Reader:
    """Return the reader of the file that Kineto saves for a session: recording itself imports no reader."""
    from .sessions import read

    return read


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("nvtx-kernels")
        except metadata.PackageNotFoundError:
            return "unknown"
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{PUBLIC[name]}")
    return import_module(f"{module.__name__}.{name}") if name in MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]  # what completion offers
