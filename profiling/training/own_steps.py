"""The ranges `warmup` and `step` of a program: the steps that the analysis will count, as seen while recording."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from nvtx_kernels.analysis.vocabulary import collapsed

from ..annotate import optimizers
from ..annotate.optimizers import STEP, WARM_UP, meanings_of


@dataclass(slots=True, eq=False)
class _Opened:
    """A range that is open; one that has lost its end contains later ones of its kind."""

    name: str
    has_lost_end: bool = False


class OwnSteps:
    """Hears the program's ranges (`annotate.others.hear`), and counts its steps.

    Steps are the outermost ranges called so in which a model was called: those with an update, if any have one.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], list[_Opened]] = {}  # by thread and domain
        self._steps: list[tuple[object, str]] = []  # and their names without numbers
        self._training: set[str] = set()  # the names of those with updates

    def push(self, name: str, payload: int | float | None = None, domain: str = "") -> None:  # noqa: ARG002
        """Handle the start of a range."""
        opened = self._open.setdefault((threading.get_ident(), domain), [])
        if meanings_of(name) & {STEP}:
            for outer in opened:
                outer.has_lost_end |= collapsed(outer.name) == collapsed(name)
        opened.append(_Opened(name))

    def pop(self, domain: str = "") -> None:
        """Handle the end of the range that began last in a domain on this thread."""
        opened = self._open.get((threading.get_ident(), domain))
        if opened:
            opened.pop()

    def block_began(self, name: str) -> None:
        """Handle the start of a record_function block."""
        self.push(name, domain="record_function")

    def block_ended(self, *, is_outermost: bool) -> None:  # noqa: ARG002
        """Handle the end of a record_function block."""
        self.pop("record_function")

    def is_in_warm_up(self) -> bool:
        """Return whether this thread is inside a range of warm-up."""
        return self._outermost(WARM_UP) is not None

    def note(self, *, updates: bool) -> None:
        """Count the step that this thread is inside, if it is new, and whether it `updates`."""
        outermost = self._outermost(STEP)
        if outermost is None:
            return
        opened, name = outermost
        if updates:
            self._training.add(name)
        if all(opened is not other for other, _ in self._steps[-2:]):
            self._steps.append((opened, name))

    @property
    def counted(self) -> tuple[int, str]:
        """Return how many steps there were, and their name without numbers."""
        names = (name for opened, name in self._steps if not getattr(opened, "has_lost_end", False))
        counts = Counter(name for name in names if name in self._training or not self._training)
        if not counts:
            return 0, ""
        [(name, count)] = counts.most_common(1)
        return count, name

    def _outermost(self, meaning: str) -> tuple[object, str] | None:
        """Return this thread's outermost range that means this, and its name without numbers."""
        own_range = optimizers.own_range(meaning)
        if own_range is not None:
            return own_range, collapsed(own_range.label.name)
        here = threading.get_ident()
        for (thread, _), opened in [*self._open.items()]:
            for candidate in opened:
                if thread == here and not candidate.has_lost_end and meaning in meanings_of(candidate.name):
                    return candidate, collapsed(candidate.name)
        return None
