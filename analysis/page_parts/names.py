"""Names for a page: safe to show, of bounded length, each sent once."""

from __future__ import annotations

from collections.abc import Iterable

from analysis.kernel_names import distinct_short_names, fit
from analysis.report import Path

LONGEST_KERNEL, LONGEST_RANGE = 1_000, 120
OUTSIDE = "(outside all ranges)"


class Names:
    """Numbers texts in the order in which they are first asked for."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Return the number of a text."""
        return self._number.setdefault(text, len(self._number))

    def texts(self) -> list[str]:
        """Return all texts, each at its number."""
        return list(self._number)


def range_text(name: str) -> str:
    """Return a range's name for a page."""
    return fit(name, LONGEST_RANGE)


def path_texts(path: Path) -> list[str]:
    """Return a path's names for a page; work outside all ranges has a word of its own."""
    return [range_text(name) for name in path] or [OUTSIDE]


def kernel_texts(kernels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return per kernel name its short form, distinct among these, and its full one."""
    names = list(dict.fromkeys(kernels))
    short = distinct_short_names(names)
    return {
        name: (text or fit(name, LONGEST_RANGE), fit(name, LONGEST_KERNEL))
        for name, text in zip(names, short, strict=True)
    }
