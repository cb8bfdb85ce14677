"""Write docs/names.md: the names of ranges that open a phase or a step, as the tables have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nvtx_kernels.analysis.range_names import PHASE_NAMES, STEP_NAMES, NamePattern

PAGE = Path(__file__).parents[1] / "docs" / "names.md"
INTRODUCTION = """\
# Names of phases and steps

The whole name of a range is compared with these names, without its NVTX domain, the marks around it (`## forward
##`) and regardless of case. The nearest range around a kernel that matches decides; forward below backward is
backward. A name marked *part* gives the work inside it that phase, but does not begin the phase: a loss next to
the forward, FSDP's gathering, clipping. For your own names, use `--phase-names forward='fit *',backward=bp` and
`--step 'minibatch *'`.

Each line is a row of `analysis/range_names.py`, with a name that it matches, and a similar one that it does not
match.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, "## Phases\n", *_rows(PHASE_NAMES), "\n## Steps\n", *_rows(STEP_NAMES), ""])


def _rows(patterns: Iterable[NamePattern]) -> list[str]:
    lines = [
        f"| {row.means}{' (part)' if row.part else ''} | `{row.example}` | `{row.near_miss}` | {row.source} |"
        for row in patterns
    ]
    return ["| phase or step | matches | does not match | written by |", "|---|---|---|---|", *lines]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
