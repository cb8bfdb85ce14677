"""Why a recording has no lines of code, or not of the whole step that was traced."""

from __future__ import annotations

#: By a short name, what recordings and answers say.
REASONS = {
    "off": "lines were switched off",
    "traced": "another tracer was running, such as a debugger or coverage",
    "compiles": "the step in which lines were traced compiled code",
    "late": "the step in which lines were traced took too long",
    "failed": "tracing failed",
    "forked": "the process was forked",
    "unwritten": "what was traced could not be written",
}
