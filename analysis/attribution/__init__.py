"""From a `Trace` to an `Attribution`: which ranges caused each piece of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .causes import HOW, Attribution, Rules, attribute

__all__ = ["HOW", "Attribution", "Rules", "attribute"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import causes  # deferred: it imports numpy

    return getattr(causes, name)
