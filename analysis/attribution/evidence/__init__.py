"""Steps by evidence, where no range names them: by updates, by ranges that repeat, or by repetition alone.

    work of a process ─► sequence ─► updates, ranges, repetition ─► agreement ─► windows
                         (symbols)   (periods, or why none)         (of ranks)   (times of steps)

`evidence_of` is the entrance; `calls_as_steps` looks at blocks of `nk.profile` in which no step ended, and
`updates_every` at steps that have names. A kind of evidence counts if all processes that do much of the work agree
on it: ranks of one job have the same steps. docs/attribution.md has the definitions, under "Steps".

It belongs to `attribution` and may import what that may. It promises to name no step unless all processes that do
much of the work agree, and to say why where it names none.
"""

from .calls import calls_as_steps
from .deciding import evidence_of
from .updates import updates_every

__all__ = ["calls_as_steps", "evidence_of", "updates_every"]
