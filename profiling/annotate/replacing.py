"""Replace attributes of modules and classes while a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(*attributes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes, each an object, a name and a value; afterwards put back those that still have it."""
    before = [getattr(target, name) for target, name, _ in attributes]
    for target, name, value in attributes:
        setattr(target, name, value)
    try:
        yield
    finally:
        for (target, name, value), original in zip(attributes, before, strict=True):
            if vars(target).get(name) is value:
                setattr(target, name, original)
