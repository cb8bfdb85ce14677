"""Where a report's numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers come from, as far as the report says."""

    file: str
    tool: str = ""  # "nsys 2025.3.2", "nvtx-kernels recorder 0.1.0", "PyTorch profiler"
    schema: str = ""
    gpus: tuple[str, ...] = ()
    unit_of_work: str = "GPU"  # "CPU" where operators' self times stand in for kernels
    run: Mapping[str, Any] = field(default_factory=dict)  # what the run wrote about itself in its mark

    @property
    def is_of_pytorch(self) -> bool:
        """Whether PyTorch's own profiler recorded it, which hears no NVTX."""
        return self.tool.startswith("PyTorch")
