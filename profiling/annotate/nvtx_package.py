"""The package nvtx, where it is installed. Only a tool such as nsys needs it: our recorder keeps its own log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tool import how_to_get_nvtx, watcher

try:
    import nvtx as _nvtx
except ModuleNotFoundError:
    _nvtx = None
#: The package, or None where it is not installed.
nvtx: Any = _nvtx


def domain(name: str | None = None) -> Any:
    """Return NVTX's domain of this name, or its default domain, if a tool listens; else None."""
    nvtx_domain = nvtx.get_domain(name) if nvtx is not None and nvtx.enabled() else None
    has_handle = hasattr(nvtx_domain, "handle")  # without a tool, nvtx returns a dummy without one
    return nvtx_domain if has_handle else None


def require_nvtx(variables: Mapping[str, str]) -> None:
    """Raise ModuleNotFoundError, with a remedy, under nsys without nvtx: its report would have no ranges."""
    if nvtx is None and watcher(variables):
        message = f"annotation under nsys needs the package nvtx: {how_to_get_nvtx()}"
        raise ModuleNotFoundError(message, name="nvtx")
